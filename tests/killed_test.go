// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	lib "github.com/rocl-go/rocl" // the name rocl is that of the command
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A mortal transport kills its process after a number of frames that have been sent or received
// over all of its connections, frames of handshakes included.
type mortal struct {
	subsys.Transport
	left *atomic.Int64 // frames until the process is killed
}

type (
	mortalPort struct {
		subsys.Port
		m mortal
	}
	mortalConn struct {
		subsys.Conn
		m mortal
	}
	mortalStream struct{ *mortalConn } // over TCP
	mortalSink   struct {
		subsys.Sink
		c subsys.Conn
		m mortal
	}
)

// mortally returns the options of a peer that is killed after so many frames.
func mortally(frames string) ([]lib.Option, error) {
	n, err := strconv.Atoi(frames)
	if err != nil {
		return nil, err
	}
	var tr subsys.Transport = tcp.New()
	if os.Getenv("ROCL_TEST_SHM") != "" {
		tr = shm.New()
	}
	m := mortal{tr, new(atomic.Int64)}
	m.left.Store(int64(n))
	return []lib.Option{lib.WithTransports(m)}, nil
}

// passes counts one frame that has been handed on.
func (m mortal) passes() {
	if m.left.Add(-1) == 0 {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// adopt returns a connection that counts its frames, in two forms. The caller must set its Conn.
func (m mortal) adopt() (*mortalConn, subsys.Conn) {
	c := &mortalConn{m: m}
	if m.Name() == "tcp" {
		return c, mortalStream{c}
	}
	return c, c
}

func (m mortal) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	accept := cfg.Accept
	cfg.Accept = func(c subsys.Conn) subsys.Sink {
		own, outer := m.adopt()
		own.Conn = c
		s := accept(outer)
		if s == nil {
			return nil
		}
		return &mortalSink{s, outer, m}
	}
	p, err := m.Transport.Listen(addr, cfg)
	if err != nil {
		return nil, err
	}
	return &mortalPort{p, m}, nil
}

func (p *mortalPort) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	own, outer := p.m.adopt()
	c, err := p.Port.Dial(ctx, addr, &mortalSink{s, outer, p.m})
	if err != nil {
		return nil, err
	}
	own.Conn = c
	return outer, nil
}

func (c *mortalConn) Send(fs []subsys.Frame) (n int, err error) {
	for n < len(fs) {
		took, err := c.Conn.Send(fs[n : n+1])
		if took == 0 || err != nil {
			return n, err
		}
		n++
		c.m.passes()
	}
	return n, nil
}

func (c *mortalConn) Admit() {
	if a, ok := c.Conn.(subsys.Admitter); ok {
		a.Admit()
	}
}

func (c mortalStream) Streams() {}

func (s *mortalSink) Frames(_ subsys.Conn, fs []subsys.Frame) error {
	for i := range fs {
		if err := s.Sink.Frames(s.c, fs[i:i+1]); err != nil {
			return err
		}
		s.m.passes()
	}
	return nil
}

func (s *mortalSink) Room(_ subsys.Conn, h *subsys.Header) (*buffers.Buffer, error) {
	return s.Sink.Room(s.c, h)
}
func (s *mortalSink) Writable(subsys.Conn)          { s.Sink.Writable(s.c) }
func (s *mortalSink) Down(_ subsys.Conn, err error) { s.Sink.Down(s.c, err) }

// atEveryFrame runs f, over TCP and over shared memory, with processes that are killed after their
// first frame, after their second one, and so on. It ends when f reports that its process has lived
// through all frames.
func atEveryFrame(t *testing.T, f func(t *testing.T, name string) (lived bool)) {
	step := 1
	if testing.Short() {
		step = 5
	}
	for _, transport := range []string{"tcp", "shm"} {
		t.Run(transport, func(t *testing.T) {
			if transport == "shm" {
				t.Setenv("ROCL_TEST_SHM", "adaptive")
			}
			for n := 1; ; n += step {
				t.Setenv("ROCL_TEST_MORTAL", strconv.Itoa(n))
				if f(t, fmt.Sprint("mortal", n)) {
					t.Logf("killed at %d places", (n-1)/step)
					return
				}
				if n > 1000 {
					t.Fatal("a process is killed after a thousand frames: the calls have no end")
				}
			}
		})
	}
}

// only returns the option for a context of this process that has one transport.
func only() lib.Option {
	if os.Getenv("ROCL_TEST_SHM") != "" {
		return lib.WithTransports(shm.New())
	}
	return lib.WithTransports(tcp.New())
}

var requestSizes = []int{100, 20_000, 600_000} // in a batch, in a frame alone, in pieces or lent

// The process of a server is killed at every frame of a call, from the first of the handshake to
// the last of the reply. The call returns its whole reply, or ErrGone, a monitor reports the end,
// and nothing is reported as undelivered.
func TestCallServerKilledAtEveryFrame(t *testing.T) {
	var c *lib.Context
	var r *lib.Resource
	var sock, of string
	atEveryFrame(t, func(t *testing.T, name string) (lived bool) {
		if of != t.Name() {
			of, sock = t.Name(), socket(t)
			c = open(t, sock, only(), lib.WithUndelivered(func(u lib.Undelivered) { t.Errorf("reported: %+v", u) }))
			r = register(t, c, nil)
		}
		s := peer(t, "replier", sock, name)
		ctx := eventually.Context(t)
		to, err := c.Find(ctx, lib.Match{"peer": name})
		if err != nil {
			t.Fatal(err)
		}
		lived = true
		for i, size := range requestSizes {
			p := bytes.Repeat([]byte{byte(1 + i)}, size)
			m, err := r.CallBytes(ctx, to.ID, replies, p)
			if err != nil {
				if !errors.Is(err, lib.ErrGone) {
					t.Fatalf("%s, call of %d bytes: %v", name, size, err)
				}
				lived = false
				break
			}
			if !bytes.Equal(m.Bytes(), p) {
				t.Fatalf("%s, call of %d bytes: another reply", name, size)
			}
			m.Release()
		}
		const ended = 7
		if _, err := r.Monitor(ctx, to.ID, ended); err != nil {
			t.Fatal(err)
		}
		if lived {
			s.kill(t)
		}
		m, err := r.Recv(ctx)
		if err != nil || !m.IsGone() || m.Tag() != ended || m.From() != to.ID {
			t.Fatalf("%s: not the end: %v", name, err)
		}
		m.Release()
		if n := c.Stats().Calls; n != 0 {
			t.Errorf("%s: %d calls are left", name, n)
		}
		return lived
	})
}

// asker calls {server=yes} with requests of all sizes at the same time, and ends.
func asker(c *lib.Context, who lib.Attrs) error {
	ctx := context.Background()
	r, err := c.Register(ctx, who)
	if err != nil {
		return err
	}
	server, err := c.Find(ctx, lib.Match{"server": "yes"})
	if err != nil {
		return err
	}
	fmt.Println("registered")
	var all sync.WaitGroup
	for _, size := range requestSizes {
		all.Go(func() {
			m, err := r.CallBytes(ctx, server.ID, 0, make([]byte, size))
			if err != nil || m.Len() != size {
				fmt.Println("call:", err)
				return
			}
			m.Release()
		})
	}
	all.Wait()
	fmt.Println("lived")
	select {}
}

// The process of a caller is killed at every frame. Each reply to it succeeds or fails with
// ErrGone, and nothing is reported as undelivered. The memory of requests and replies comes back,
// and the server goes on.
func TestReplyToCallerKilledAtEveryFrame(t *testing.T) {
	var c *lib.Context
	var server, client *lib.Resource
	var sock, of string
	atEveryFrame(t, func(t *testing.T, name string) (lived bool) {
		if of != t.Name() {
			of, sock = t.Name(), socket(t)
			c = open(t, sock, only(), lib.WithUndelivered(func(u lib.Undelivered) { t.Errorf("reported: %+v", u) }))
			server, client = register(t, c, lib.Attrs{"server": "yes"}), register(t, c, nil)
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() {
				ended <- server.Handle(ctx, func(m *lib.Message) {
					var err error
					if b := m.Buffer(); m.Len()%200 != 0 {
						b.Release()
						err = server.ReplyBytes(ctx, m, m.Bytes())
					} else if err = server.Reply(ctx, m, b); err != nil {
						b.Release()
					}
					if err != nil && !errors.Is(err, lib.ErrGone) {
						t.Errorf("reply of %d bytes: %v", m.Len(), err)
					}
				}, lib.EachInOwn())
			}()
			t.Cleanup(func() {
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		}
		p := peer(t, "asker", sock, name)
		for line := range p.lines { // until the process has been killed, or has lived
			if line == "lived" {
				lived = true
				break
			}
			t.Errorf("%s: %s", name, line)
		}
		p.kill(t)
		eventually.True(t, "the link to the dead caller is gone", func() bool { return c.Stats().Links == 0 })
		eventually.True(t, "the memory of its calls has come back", func() bool { return c.Stats().Buffers.InUse == 0 })
		m, err := client.CallBytes(eventually.Context(t), server.ID(), 1, []byte("still there?"))
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
		return lived
	})
}
