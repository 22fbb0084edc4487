// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/subsystest"
)

// slowConn holds the first Send until the test lets it continue.
type slowConn struct {
	fakeConn
	entered, leave chan struct{}
}

func (c *slowConn) Send(fs []subsys.Frame) (int, error) {
	if c.entered != nil {
		close(c.entered)
		c.entered = nil
		<-c.leave
	}
	return c.fakeConn.Send(fs)
}

// slowLink returns a link with a slowConn, which closes entered at its first Send.
func slowLink(t *testing.T) (l *link, c *slowConn, entered chan struct{}) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	l, entered = newLink(d, linkKey{peer: resource.MakeGID(1, 2, 0)}), make(chan struct{})
	c = &slowConn{entered: entered, leave: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	try.OK(t, l.bindLocked(&endpoint{d: d}, c, &wire.Attach{Session: 7, Gen: 1}))
	return l, c, entered
}

// The goodbye is written, although another goroutine writes when it is queued.
func TestByeBehindAWriter(t *testing.T) {
	l, c, entered := slowLink(t)
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.flow(9).SendBytes(context.Background(), 1, 0, []byte("x")) })
	<-entered
	wg.Go(l.sayGoodbye)
	eventually.True(t, "the goodbye waits for the writer", locked(&l.mu, func() bool { return l.s.Next() == 2 && l.awaited == 1 }))
	close(c.leave)
	wg.Wait()
	var types []uint8
	for _, f := range c.sent {
		for _, g := range subsystest.Split(&subsys.Frame{Data: f.Data}, nil) {
			types = append(types, g.Type)
		}
	}
	if len(types) != 2 || types[1] != wire.TypeBye {
		t.Errorf("sent %v", types)
	}
}

// The goodbye acknowledges a message that was received before Close, though the goroutine that
// delivered it still works on what came with it.
//
// Promise (Delivery): A message that was received is not reported when its receiver then closes its
// context. See also TestStaleOwner.
func TestByeAcknowledges(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 0)
	c := &fakeConn{}
	l, _ := linked(t, d, c)
	d.progress.Lock()
	fs := []subsys.Frame{{Header: subsys.Header{Type: wire.TypeData, Seq: l.s.Expected(), Dst: 1, Src: 9}}}
	if _, _, err := l.s.Accept(fs); err != nil {
		t.Fatal(err)
	}
	try.OK(t, errOf(l.work(fs)))
	take(t, mb)
	ctx := ended() // no peer acknowledges the credit that this context grants for the message
	var closing sync.WaitGroup
	closing.Go(func() { d.Close(ctx) })
	eventually.True(t, "Close says goodbye, or waits for the goroutine that delivers", locked(&l.mu, func() bool { return l.life.HasEnded() || d.progress.IsWanted() }))
	l.s.Worked()
	d.progress.Unlock()
	closing.Wait()
	sent := subsystest.Split(&c.sent[len(c.sent)-1], nil)
	if bye := sent[len(sent)-1]; bye.Type != wire.TypeBye || bye.Ack != l.s.Expected() {
		t.Errorf("sent %+v, though frame %d is to come next", bye.Header, l.s.Expected())
	}
}

// A context that says goodbye has closed, though the peer ends the link while the goodbye is
// written.
func TestByeAndRefused(t *testing.T) {
	l, c, entered := slowLink(t)
	var wg sync.WaitGroup
	wg.Go(l.sayGoodbye)
	<-entered
	l.endLink(ErrUnreachable)
	close(c.leave)
	wg.Wait()
	try.Fails(l.flow(9).SendBytes(context.Background(), 1, 0, []byte("x")))(t, ErrClosed)
}
