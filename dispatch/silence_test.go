// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A cuttable transport is TCP over a network that can be cut. While the network is cut, the
// connections that exist neither receive nor send, and do not end. Dialling gets no answer.
type cuttable struct {
	subsys.Transport
	mu     sync.Mutex
	isCut  bool
	conns  []*cuttableConn
	dials  int
	probes atomic.Int32 // bare acknowledgements sent over dialled connections that are stopped
}

type (
	cuttablePort struct {
		subsys.Port
		n *cuttable
	}
	cuttableConn struct {
		subsys.Conn
		n         *cuttable
		isDialled bool
		isMute    atomic.Bool // the network is cut
		stopped   atomic.Bool // the peer's kernel answers, its process does not
		owes      atomic.Bool
	}
	cuttableSink struct {
		subsys.Sink
		c *cuttableConn
	}
)

func (n *cuttable) adopt(c *cuttableConn) {
	n.mu.Lock()
	n.conns = append(n.conns, c)
	n.mu.Unlock()
}

func (n *cuttable) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	accept := cfg.Accept
	cfg.Accept = func(c subsys.Conn) subsys.Sink {
		w := &cuttableConn{Conn: c, n: n}
		s := accept(w)
		if s == nil {
			return nil
		}
		n.adopt(w)
		return &cuttableSink{s, w}
	}
	p, err := n.Transport.Listen(addr, cfg)
	return &cuttablePort{p, n}, err
}

func (p *cuttablePort) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	p.n.mu.Lock()
	isCut := p.n.isCut
	p.n.dials++
	p.n.mu.Unlock()
	if isCut {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	w := &cuttableConn{n: p.n, isDialled: true}
	c, err := p.Port.Dial(ctx, addr, &cuttableSink{s, w})
	if err != nil {
		return nil, err
	}
	w.Conn = c
	p.n.adopt(w)
	return w, nil
}

func (n *cuttable) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isCut = true
	for _, c := range n.conns {
		c.isMute.Store(true)
	}
}

func (n *cuttable) heal() {
	n.mu.Lock()
	n.isCut = false
	n.mu.Unlock()
}

func (n *cuttable) dialled() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

func (c *cuttableConn) Send(fs []subsys.Frame) (int, error) {
	switch {
	case c.isMute.Load():
		c.owes.Store(true)
		return len(fs), nil
	case c.stopped.Load():
		if c.isDialled && fs[0].Type == wire.TypeAck {
			c.n.probes.Add(1)
		}
		return len(fs), nil
	}
	return c.Conn.Send(fs)
}

func (c *cuttableConn) Unanswered() (owes bool, heard time.Duration) {
	return c.owes.Load(), time.Hour
}

func (s *cuttableSink) Frames(_ subsys.Conn, fs []subsys.Frame) error {
	if s.c.isMute.Load() || s.c.stopped.Load() {
		return nil
	}
	return s.Sink.Frames(s.c, fs)
}

func (s *cuttableSink) Room(_ subsys.Conn, h *subsys.Header) (*buffers.Buffer, error) {
	return s.Sink.Room(s.c, h)
}
func (s *cuttableSink) Writable(subsys.Conn)          { s.Sink.Writable(s.c) }
func (s *cuttableSink) Down(_ subsys.Conn, err error) { s.Sink.Down(s.c, err) }

// After a cut of the network that ends no connection, messages move again over a new connection.
// Each comes once and in order, in both directions.
//
// Promise (Ends): A link that expects something notices when the peer's machine falls silent, and
// resumes when a cut ends. A stopped process is not silent. See also TestFullPeerAnswers.
func TestSilentLinkResumes(t *testing.T) {
	w := newWorld()
	n := &cuttable{Transport: tcp.New()}
	patient := func(c *Config) { c.GiveUp = 30 * time.Second }
	a, b := w.node(t, 1, n, patient), w.node(t, 2, n, patient)
	ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
	talk(t, a, b, mb, 1000)
	talk(t, b, a, ma, 1000)
	const messages = 200
	var both sync.WaitGroup
	for _, direction := range []struct {
		from *Dispatcher
		to   *Mailbox
	}{{a, mb}, {b, ma}} {
		both.Go(func() {
			for i := range uint64(messages) {
				if i == messages/2 && direction.from == a {
					n.cut()
				}
				if err := flow(t, direction.from, direction.to).try(soon(t), i, 100); err != nil {
					t.Error(err)
					return
				}
			}
			n.heal()
			for i := range uint64(messages) {
				m, err := direction.to.Recv(soon(t))
				if err != nil || m.Tag() != i {
					t.Errorf("message %d: %v %v", i, m, err)
					return
				}
				m.Release()
			}
		})
	}
	both.Wait()
	if k, _ := ma.Len(); k > 0 {
		t.Errorf("%d messages too many", k)
	}
	if a.Stats().Resumed == 0 {
		t.Error("nothing was cut")
	}
}

// When the directory says that a silent peer's node is dead, senders are told: those that wait for
// credit, and those of accepted messages.
func TestSilentNodeIsDead(t *testing.T) {
	w := newWorld()
	n := &cuttable{Transport: tcp.New()}
	reported := make(chan Undelivered, 10)
	a := w.node(t, 1, n, func(c *Config) {
		c.GiveUp = time.Minute
		c.Undelivered = func(u Undelivered) { reported <- u }
	})
	b := w.node(t, 2, n, func(c *Config) { c.GiveUp = time.Millisecond })
	small, mb := box(t, b, 1, FirstCredit), box(t, b, 2, 0)
	f := flow(t, a, small)
	for range 2 {
		if err := f.try(soon(t), 0, FirstCredit/3); err != nil {
			t.Fatal(err)
		}
	}
	talk(t, a, b, mb, 1)
	waiting := make(chan error, 1)
	go func() { waiting <- f.try(soon(t), 1, FirstCredit) }()
	needed(t, small)
	eventually.True(t, "all is acknowledged", f.idle)
	w.mu.Lock()
	w.gone[b.self] = true
	w.mu.Unlock()
	n.cut()
	eventually.Returns(t, "a sender that waits for credit", func() {
		if err := <-waiting; !errors.Is(err, ErrGone) {
			t.Errorf("it got %v", err)
		}
	})
	eventually.True(t, "the link that has ended is forgotten", func() bool { return a.Stats().Links == 0 })

	w.mu.Lock()
	delete(w.gone, b.self)
	w.mu.Unlock()
	n.heal()
	talk(t, a, b, mb, 2)
	eventually.True(t, "the message is acknowledged", flow(t, a, mb).idle)
	w.mu.Lock()
	w.gone[b.self] = true
	w.mu.Unlock()
	n.cut()
	if err := flow(t, a, mb).try(soon(t), 3, 10); err != nil {
		t.Fatal(err)
	}
	eventually.Returns(t, "the report", func() {
		if u := <-reported; u.Tag != 3 || !errors.Is(u.Err, ErrGone) {
			t.Errorf("reported %+v", u)
		}
	})
	n.heal()
}

// A process that is stopped keeps its connection, because its kernel answers. It is asked for
// answers while the link expects something of it.
func TestStoppedProcessIsNotSilent(t *testing.T) {
	w := newWorld()
	n := &cuttable{Transport: tcp.New()}
	a, b := w.node(t, 1, n), w.node(t, 2, n, func(c *Config) { c.GiveUp = time.Millisecond })
	mb := box(t, b, 1, 0)
	talk(t, a, b, mb, 1)
	for _, c := range n.conns {
		c.stopped.Store(true)
	}
	if err := flow(t, a, mb).try(soon(t), 2, 10); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "two probes", func() bool { return n.probes.Load() >= 2 })
	if k := n.dialled(); k != 1 {
		t.Errorf("dialled %d times", k)
	}
	l, _ := onlyLink(a, b)
	l.endLink(ErrUnreachable)
}

// A link that expects nothing is not watched.
func TestIdleLinkIsNotWatched(t *testing.T) {
	w := newWorld()
	n := &cuttable{Transport: tcp.New()}
	a := w.node(t, 1, n)
	for i := range uint64(5) {
		b := w.node(t, 2+i, n)
		mb := box(t, b, 1, 0)
		talk(t, a, b, mb, 1)
	}
	none := func() bool {
		a.watched.mu.Lock()
		defer a.watched.mu.Unlock()
		return len(a.watched.links) == 0
	}
	eventually.True(t, "nothing is watched", none)
	b := w.node(t, 9, n)
	mb := box(t, b, 1, 0)
	talk(t, a, b, mb, 1)
	eventually.True(t, "nothing is watched", none)
	l, _ := onlyLink(a, b)
	f := flow(t, a, mb)
	b.takeToken() // b acknowledges nothing
	if err := f.try(soon(t), 2, 10); err != nil {
		t.Error(err)
	}
	a.watched.mu.Lock()
	if got := a.watched.links; len(got) != 1 || got[0] != l {
		t.Errorf("after a message, %d links are watched", len(got))
	}
	a.watched.mu.Unlock()
	b.giveToken()
	take(t, mb)
}
