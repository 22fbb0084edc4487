// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// An acknowledgement that comes due while another goroutine writes is still owed: the frames in the
// writer's hands may be the last ones, and the peer's window full.
func TestAckWhileWriting(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	l := newLink(d, linkKey{peer: resource.MakeGID(1, 2, 0)})
	l.mu.Lock()
	expectFrom(t, l, 5)
	l.pen.Store(penWriting)
	l.sendAckLocked(nil)
	l.mu.Unlock()
	if !d.progress.OwesAck() {
		t.Error("the acknowledgement is forgotten")
	}
}

// expectFrom makes l count the frames before n as received, of which the peer has not been told.
func expectFrom(t *testing.T, l *link, n uint32) {
	t.Helper()
	for i := range n {
		f := [1]subsys.Frame{{Header: subsys.Header{Type: wire.TypeCredit, Seq: i}}}
		if _, _, err := l.s.Accept(f[:]); err != nil {
			t.Fatal(err)
		}
	}
	l.s.Worked()
}

// lateConn takes nothing, and is writable again before its caller checks.
type lateConn struct {
	fakeConn
	l    *link
	full bool
}

func (c *lateConn) Send(fs []subsys.Frame) (int, error) {
	if c.full {
		c.full = false
		c.l.onWritable(c)
		return 0, nil
	}
	return c.fakeConn.Send(fs)
}

// An acknowledgement that the connection did not take is still owed.
func TestAckNotTaken(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	l := newLink(d, linkKey{peer: resource.MakeGID(1, 2, 0)})
	c := &lateConn{l: l, full: true}
	l.mu.Lock()
	try.OK(t, l.bindLocked(&endpoint{d: d}, c, &wire.Attach{Session: 7, Gen: 1}))
	expectFrom(t, l, 5)
	l.mu.Unlock()
	l.flushAck()
	l.flushAck()
	if len(c.sent) != 1 || c.sent[0].Ack != 5 {
		t.Errorf("sent %v", c.sent)
	}
}
