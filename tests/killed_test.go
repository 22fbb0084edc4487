// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	lib "github.com/rocl-go/rocl" // the name rocl is that of the command
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
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

// mortally returns the transport of a peer that is killed after as many frames as the environment
// says.
func mortally(t testing.TB) subsys.Transport {
	m := mortal{tcp.New(), new(atomic.Int64)}
	if os.Getenv("ROCL_TEST_SHM") != "" {
		m.Transport = shm.New()
	}
	m.left.Store(int64(try.Get(strconv.Atoi(os.Getenv("ROCL_TEST_MORTAL")))(t)))
	return m
}

// passes counts one frame that has been handed on.
func (m mortal) passes() {
	if m.left.Add(-1) == 0 {
		_ = posix.Kill(syscall.Getpid(), syscall.SIGKILL)
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
	return &mortalPort{p, m}, err
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

// atEveryFrame runs f, over TCP and over shared memory, and what f returns, with the names of
// processes that are killed after their first frame, after their second one, and so on. It ends
// when a process has lived through all frames.
func atEveryFrame(t *testing.T, f func(t *testing.T, sock string, c *lib.Context) (lives func(name string) bool)) {
	step := 1
	if short.Form(t) {
		step = 5
	}
	overBoth(t, func(t *testing.T, opts ...lib.Option) {
		sock := socket(t)
		c := open(t, sock, append(opts, lib.WithUndelivered(func(u lib.Undelivered) { t.Errorf("reported: %+v", u) }))...)
		lives := f(t, sock, c)
		for n := 1; ; n += step {
			t.Setenv("ROCL_TEST_MORTAL", strconv.Itoa(n))
			if lives(fmt.Sprint("mortal", n)) {
				t.Logf("killed at %d places", (n-1)/step)
				return
			}
			if n > 1000 {
				t.Fatal("a process is killed after a thousand frames: the calls have no end")
			}
		}
	})
}

var requestSizes = []int{100, 20_000, 600_000} // in a batch, in a frame alone, in pieces or lent

// The process of a server is killed at every frame of a call, from the first of the handshake to
// the last of the reply. The call returns its whole reply, or ErrGone, a monitor reports the end,
// and nothing is reported as undelivered.
func TestCallServerKilledAtEveryFrame(t *testing.T) {
	atEveryFrame(t, func(t *testing.T, sock string, c *lib.Context) func(name string) bool {
		r := register(t, c, nil)
		return func(name string) bool {
			s := peer(t, "replier", sock, name)
			ctx := eventually.Context(t)
			to := try.Get(c.Find(ctx, lib.Match{"peer": name}))(t)
			lives := true
			for i := 0; lives && i < len(requestSizes); i++ {
				p := bytes.Repeat([]byte{byte(1 + i)}, requestSizes[i])
				m, err := r.CallBytes(ctx, to.ID, 0, p)
				if lives = err == nil; lives {
					if !bytes.Equal(m.Bytes(), p) {
						t.Fatalf("%s, call of %d bytes: another reply", name, len(p))
					}
					m.Release()
				} else if !errors.Is(err, lib.ErrGone) {
					t.Fatalf("%s, call of %d bytes: %v", name, len(p), err)
				}
			}
			const ended = 7
			try.Get(r.Monitor(ctx, to.ID, ended))(t)
			if lives {
				s.Kill()
			}
			m := try.Get(r.Recv(ctx))(t)
			if !m.IsGone() || m.Tag() != ended || m.From() != to.ID {
				t.Fatalf("%s: not the end, but tag %d from %v", name, m.Tag(), m.From())
			}
			m.Release()
			if n := c.Stats().Calls; n != 0 {
				t.Errorf("%s: %d calls are left", name, n)
			}
			return lives
		}
	})
}

// The process of a caller is killed at every frame. Each reply to it succeeds or fails with
// ErrGone, and nothing is reported as undelivered. The memory of requests and replies comes back,
// and the server goes on.
func TestReplyToCallerKilledAtEveryFrame(t *testing.T) {
	atEveryFrame(t, func(t *testing.T, sock string, c *lib.Context) func(name string) bool {
		server, client := register(t, c, lib.Attrs{"server": "yes"}), register(t, c, nil)
		ctx, stop := context.WithCancel(bg)
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
		t.Cleanup(func() { stop(); try.OK(t, <-ended) })
		return func(name string) (lives bool) {
			p := peer(t, "asker", sock, name)
			for line := range p.Lines { // until the process has been killed, or has lived
				if line == "lived" {
					lives = true
					break
				}
				t.Errorf("%s: %s", name, line)
			}
			p.Kill()
			eventually.True(t, "the link to the dead caller is gone", func() bool { return c.Stats().Links == 0 })
			eventually.True(t, "the memory of its calls has come back", func() bool { return c.Stats().Buffers.InUse == 0 })
			try.Get(client.CallBytes(eventually.Context(t), server.ID(), 1, []byte("still there?")))(t).Release()
			return lives
		}
	})
}
