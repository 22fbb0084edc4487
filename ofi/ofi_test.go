// SPDX-License-Identifier: Apache-2.0

package ofi_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/ofi"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/subsystest"
	"go.uber.org/goleak"
)

// providers are those that need no hardware.
var providers = []string{"tcp;ofi_rxm", "sockets", "udp;ofi_rxd", "shm"}

var long = flag.Bool("long", false, "run the tests over each provider")

func TestMain(m *testing.M) {
	if to := os.Getenv("ROCL_OFI_TO"); to != "" {
		send(os.Getenv("ROCL_OFI_PROVIDER"), to)
	}
	if socket := os.Getenv("ROCL_OFI_ORIGIN"); socket != "" {
		expose(os.Getenv("ROCL_OFI_PROVIDER"), socket)
	}
	if os.Getenv("ROCL_OFI_ACTOR") != "" {
		act(os.Getenv("ROCL_OFI_PROVIDER"))
	}
	if provider := os.Getenv("ROCL_OFI_LISTEN"); provider != "" {
		_, err := ofi.New(provider).Listen("", subsys.Config{})
		if errors.Is(err, subsys.ErrUnavailable) {
			fmt.Println("unavailable:", err)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// overEach runs a test over each provider that the machine has. Without -long the first stands for
// all: sockets keeps a processor busy, and beside other tests may lose its connections.
func overEach(t *testing.T, f func(t *testing.T, provider string)) {
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			if !*long && provider != providers[0] {
				t.Skip("make long tests it")
			}
			pool := buffers.New()
			defer pool.Close()
			p, err := ofi.New(provider, ofi.WithShm()).Listen("", subsys.Config{Pool: pool, Logger: slog.New(slog.DiscardHandler)})
			if errors.Is(err, subsys.ErrUnavailable) {
				t.Skip(err)
			}
			try.OK(t, err)
			try.OK(t, p.Close())
			f(t, provider)
		})
	}
}

// One provider has the payload of 64 MiB, which over UDP may take longer than the suite waits.
//
// Promise (Transports): Package `ofi`, over libfabric, passes the conformance suite with the
// providers `tcp;ofi_rxm`, `sockets`, `udp;ofi_rxd` and `shm`.
func TestConformance(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		o := subsystest.Options{
			New: func() subsys.Transport { return ofi.New(provider, ofi.WithShm()) },
			Own: func() (string, error) {
				at, err := freeaddr.Loopback()
				return ofi.New(provider, ofi.WithShm()).Name() + "://" + at, err
			},
		}
		if provider != providers[0] {
			o.Largest = 4 << 20
		}
		subsystest.Test(t, o)
	})
}

// Two contexts that have no other transport exchange messages in messages of the provider, and
// large ones by reads.
func TestContexts(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		ctx := eventually.Context(t)
		tr := ofi.New(provider, ofi.WithShm())
		opts := []rocl.Option{rocl.WithSocket(filepath.Join(t.TempDir(), "s")), rocl.WithTransports(tr)}
		a, b := try.Get(rocl.Open(ctx, opts...))(t), try.Get(rocl.Open(ctx, opts...))(t)
		defer func() { try.Check(t, errors.Join(a.Close(), b.Close())) }()
		from, to := try.Get(a.Register(ctx, nil))(t), try.Get(b.Register(ctx, nil))(t)
		for i, size := range []int{0, 1, 5000, 100_000, 1 << 20, 7} {
			want := bytes.Repeat([]byte{byte(i + 1)}, size)
			try.OK(t, from.SendBytes(ctx, to.ID(), uint64(i), want))
			m := try.Get(to.Recv(ctx))(t)
			if m.Tag() != uint64(i) || !bytes.Equal(m.Bytes(), want) {
				t.Errorf("%d bytes came as %d with tag %d", size, len(m.Bytes()), m.Tag())
			}
			m.Release()
		}
		for _, r := range a.Routes() {
			if r.Transport != tr.Name() {
				t.Errorf("a message went over %q", r.Transport)
			}
		}
	})
}

// A peer that is killed at any moment, also while its memory is read, ends the connection, after
// what came from it is delivered. A peer that is stopped takes no more, and goes on later.
func TestKilledPeer(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		if provider == "shm" {
			t.Skip("libfabric's locks are in memory that both processes share, and a killed process may hold one")
		}
		e := try.Get(listen(provider, false))(t)
		defer func() { try.OK(t, e.close()) }()
		for i := range 3 {
			cmd := subprocess.Self()
			cmd.Env = append(os.Environ(), "ROCL_OFI_TO="+e.port.Addr(), "ROCL_OFI_PROVIDER="+provider)
			p := try.Get(subprocess.Start(cmd))(t)
			s := eventually.Value(t, "a connection", e.accepted)
			eventually.True(t, "frames", func() bool { return s.frames.Load() > 50 })
			if i == 0 {
				p.Signal(posix.SIGSTOP)
				fs := []subsys.Frame{{Header: subsys.Header{Type: 16, Len: 1000}, Data: make([]byte, 1000)}}
				eventually.True(t, "the connection is full", func() bool { return try.Get(s.conn.Send(fs))(t) == 0 })
				p.Signal(posix.SIGCONT)
				eventually.Value(t, "Writable of a peer that goes on", s.writable)
			}
			p.Kill()
			try.Fails(eventually.Value(t, "the end", s.down))(t, subsys.ErrPeerClosed)
		}
	})
}

// What is no greeting of the transport, or that of another provider, is refused, and does not
// affect other connections.
func TestStrangers(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		e := try.Get(listen(provider, false))(t)
		defer func() { try.OK(t, e.close()) }()
		near := newSink()
		c := try.Get(e.port.Dial(eventually.Context(t), e.port.Addr(), near))(t)
		far := eventually.Value(t, "a connection", e.accepted)
		c.Start()
		for _, bad := range []string{"GET / HTTP/1.1\r\n\r\n", strings.Repeat("\x00", 1000), "rocl-ofi\x01\xff\xff\xff" + strings.Repeat("x", 2000),
			"rocl-ofi\x01\x04\x10\x0012345678none" + strings.Repeat("\x02", 16), "rocl-ofi\x02\x00\x00\x0012345678"} {
			nc := try.Get(net.Dial("tcp", strings.TrimPrefix(e.port.Addr(), ofi.New(provider).Name()+"://")))(t)
			_, _ = nc.Write([]byte(bad))
			try.OK(t, nc.SetDeadline(time.Now().Add(20*time.Second)))
			if n, err := nc.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%.20q was answered: %v", bad, err)
			}
			nc.Close()
		}
		if n := try.Get(c.Send([]subsys.Frame{{Header: subsys.Header{Type: 16}}}))(t); n != 1 {
			t.Fatal("the connection is full")
		}
		eventually.True(t, "the frame", func() bool { return far.frames.Load() == 1 })
		try.OK(t, c.Close())
		eventually.Value(t, "the end", far.down)
		if len(e.accepted) > 0 {
			t.Error("a stranger was accepted")
		}
	})
}

// What the machine does not have is refused with ErrUnavailable, also a domain, and the provider
// shm of a program that has not asked for it.
func TestUnavailable(t *testing.T) {
	for _, tr := range []subsys.Transport{ofi.New("nonesuch"), ofi.New("tcp;ofi_rxm", ofi.WithDomain("nonesuch")), ofi.New("shm")} {
		try.Fails(tr.Listen("", subsys.Config{}))(t, subsys.ErrUnavailable)
	}
}

// Without a provider's name the transport takes the best provider that the machine has, and without
// a domain's name its first domain.
func TestRanks(t *testing.T) {
	a, err := listenOver(ofi.New("", ofi.WithDomain("")), false)
	if errors.Is(err, subsys.ErrUnavailable) {
		t.Skip(err)
	}
	try.OK(t, err)
	b := try.Get(listenOver(ofi.New("", ofi.WithDomain("lo")), false))(t)
	defer func() { try.OK(t, errors.Join(a.close(), b.close())) }()
	if want := "ofi://127.0.0.1:"; !strings.HasPrefix(b.port.Addr(), want) {
		t.Errorf("address %s, want %s…", b.port.Addr(), want)
	}
	c := try.Get(a.port.Dial(eventually.Context(t), b.port.Addr(), newSink()))(t)
	if c.Transport() != "ofi" {
		t.Errorf("transport %q", c.Transport())
	}
	try.OK(t, c.Close())
}

// An end is a port with what it needs of a context.
type end struct {
	port     subsys.Port
	pool     *buffers.Pool
	count    subsys.Counters
	accepted chan *sink
	onAccept func(subsys.Conn, *sink) // if not nil

	progress sync.Mutex
	poller   *subsys.Poller
	stops    atomic.Bool
	stopped  chan struct{}
}

// listen opens a port, whose progress goroutine polls or sleeps.
func listen(provider string, polls bool) (*end, error) {
	return listenOver(ofi.New(provider, ofi.WithShm()), polls)
}

func listenOver(tr subsys.Transport, polls bool, pool ...buffers.Option) (*end, error) {
	e := &end{pool: buffers.New(pool...), accepted: make(chan *sink, 16), stopped: make(chan struct{})}
	var err error
	if e.poller, err = subsys.NewPoller(&e.count); err != nil {
		return nil, err
	}
	go func() {
		defer close(e.stopped)
		var never atomic.Uint32
		for !e.stops.Load() {
			e.progress.Lock()
			if polls {
				e.poller.Poll()
			} else {
				e.poller.Sleep(time.Millisecond, &never)
			}
			e.progress.Unlock()
			if polls {
				runtime.Gosched()
			}
		}
	}()
	e.port, err = tr.Listen("", subsys.Config{
		Pool: e.pool, Poller: func() *subsys.Poller { return e.poller }, Logger: slog.New(slog.DiscardHandler), Count: &e.count, Progress: &e.progress,
		Accept: func(c subsys.Conn) subsys.Sink {
			s := newSink()
			s.conn = c
			if e.onAccept != nil {
				e.onAccept(c, s)
			}
			e.accepted <- s
			return s
		},
	})
	if err != nil {
		e.stop()
		return nil, errors.Join(err, e.pool.Close())
	}
	return e, nil
}

// close reports what is left in the poller or in the pool.
func (e *end) close() error {
	err := e.port.Close()
	if n := e.poller.Len(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d sources are left", n))
	}
	e.stop()
	return errors.Join(err, e.pool.Close())
}

// stop ends the progress goroutine.
func (e *end) stop() {
	e.stops.Store(true)
	<-e.stopped
	e.poller.EndPark()
	e.poller.Close()
}

// A sink counts frames.
type sink struct {
	conn     subsys.Conn // of an accepted connection
	frames   atomic.Int64
	rooms    atomic.Int64
	refuses  func([]subsys.Frame) error // if not nil
	onFrames func([]subsys.Frame)       // if not nil
	onRoom   func()                     // if not nil
	down     chan error
	writable chan struct{}
}

func newSink() *sink { return &sink{down: make(chan error, 1), writable: make(chan struct{}, 1)} }

func (s *sink) Frames(_ subsys.Conn, fs []subsys.Frame) error {
	if s.refuses != nil {
		if err := s.refuses(fs); err != nil {
			return err
		}
	}
	s.frames.Add(int64(len(fs)))
	if s.onFrames != nil {
		s.onFrames(fs)
	}
	return nil
}

func (s *sink) Room(_ subsys.Conn, h *subsys.Header) (*buffers.Buffer, error) {
	s.rooms.Add(1)
	if s.onRoom != nil {
		s.onRoom()
	}
	return room.Get(int(h.Len))
}

var room = buffers.New()

func (s *sink) Writable(subsys.Conn) {
	select {
	case s.writable <- struct{}{}:
	default:
	}
}

func (s *sink) Down(_ subsys.Conn, err error) { s.down <- err }

// send sends frames, small and large, until the process is killed.
func send(provider, to string) {
	e := must(listen(provider, false))
	s := newSink()
	c := must(e.port.Dial(context.Background(), to, s))
	c.Start()
	small, large := must(e.pool.Get(100)), must(e.pool.Get(300_000))
	for i := 0; ; i++ {
		b := small
		if i%3 == 0 {
			b = large
		}
		if must(c.Send([]subsys.Frame{{Header: subsys.Header{Type: 16, Len: uint32(b.Len())}, Data: b.Bytes(), Buf: b}})) == 0 {
			<-s.writable
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return v
}
