// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/subsystest"
)

// linked returns a link of d with the connection c, and the sink that c would call.
func linked(t testing.TB, d *Dispatcher, c subsys.Conn) (*link, *endpoint) {
	t.Helper()
	ep := d.welcome(c).(*endpoint)
	ep.endHandshake()
	l, err := d.link(resource.MakeGID(1, 2, 0))
	try.OK(t, err)
	l.mu.Lock()
	err = l.bindLocked(ep, c, &wire.Attach{Session: 7, Gen: 1})
	l.mu.Unlock()
	try.OK(t, err)
	ep.link.Store(l)
	t.Cleanup(func() { l.endLink(ErrUnreachable) }) // no peer acknowledges anything
	return l, ep
}

// A frame that the peer may not send cuts the connection. The frames behind it came with it, and
// are acknowledged. So their messages are delivered.
func TestFramesBehindBadFrame(t *testing.T) {
	d := newWorld().node(t, 3, inproc.NewNetwork().Transport())
	c := &fakeConn{}
	l, ep := linked(t, d, c)
	m := box(t, d, 1, 0)
	head := func(seq uint32, typ uint8) subsys.Frame {
		return subsys.Frame{Header: subsys.Header{Type: typ, Seq: seq, Dst: 1, Src: 5}}
	}
	fs := []subsys.Frame{head(0, wire.TypeData), head(1, wire.TypeCall), head(2, wire.TypeData), head(3, wire.TypePiece), head(4, wire.TypeData)}
	try.Fails(ep.comes(c, fs))(t, ErrProtocol)
	if n, _ := m.Len(); n != 3 || l.s.Expected() != 5 {
		t.Errorf("%d messages of 3 are delivered, and frame %d is expected", n, l.s.Expected())
	}
}

// comes delivers frames of c, as the goroutine that makes progress does.
func (ep *endpoint) comes(c subsys.Conn, fs []subsys.Frame) error {
	ep.d.progress.Lock()
	defer ep.d.progress.Unlock()
	return ep.Frames(c, fs)
}

// asks calls Room, as the goroutine that makes progress does.
func (ep *endpoint) asks(c subsys.Conn, h *subsys.Header) (*buffers.Buffer, error) {
	ep.d.progress.Lock()
	defer ep.d.progress.Unlock()
	return ep.Room(c, h)
}

// Memory is given only to a large frame with the next number. A frame with a number that leaves a
// gap is refused before its payload is read. No memory is given to a repeated frame, to a frame for
// a resource that does not exist, and to a frame over a connection that was replaced.
//
// Promise (Hostile peers): A frame or piece beyond its sender's credit cuts the connection and
// takes no memory. See also TestHostilePieces.
func TestRoomByNumber(t *testing.T) {
	d := newWorld().node(t, 3, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 0)
	c := &fakeConn{}
	l, ep := linked(t, d, c)
	l.mu.Lock()
	expectFrom(t, l, 10)
	l.s.TakeAck()
	l.mu.Unlock()
	before := d.cfg.Pool.Stats()
	for name, o := range map[string]struct {
		h    subsys.Header
		want error
	}{
		"a gap":               {subsys.Header{Type: wire.TypeData, Seq: 11, Dst: 1, Len: MaxMessage}, ErrProtocol},
		"a far gap":           {subsys.Header{Type: wire.TypeData, Seq: 10 + 1<<30, Dst: 1, Len: MaxMessage}, ErrProtocol},
		"a repeat":            {subsys.Header{Type: wire.TypeData, Seq: 9, Dst: 1, Len: MaxMessage}, nil},
		"an old repeat":       {subsys.Header{Type: wire.TypeData, Seq: 1<<32 - 100, Dst: 1, Len: MaxMessage}, nil},
		"an unknown resource": {subsys.Header{Type: wire.TypeData, Seq: 10, Dst: 9, Len: 60_000}, nil},
		"above the credit":    {subsys.Header{Type: wire.TypeData, Seq: 10, Dst: 1, Len: FirstCredit}, ErrProtocol},
	} {
		b, err := ep.asks(c, &o.h)
		if b != nil || !errors.Is(err, o.want) {
			t.Errorf("%s: memory %v, %v", name, b != nil, err)
		}
		if b != nil {
			b.Release()
		}
	}
	former := &endpoint{d: d}
	former.link.Store(l)
	if b, err := former.asks(&fakeConn{}, &subsys.Header{Type: wire.TypeData, Seq: 10, Dst: 1, Len: 50_000}); b != nil || !errors.Is(err, subsys.ErrClosed) {
		t.Errorf("over another connection: memory %v, %v", b != nil, err)
	}
	if after := d.cfg.Pool.Stats(); after.Mapped != before.Mapped {
		t.Errorf("%d bytes were mapped", after.Mapped-before.Mapped)
	}

	// A frame with a skipped payload does its work without the payload: a repeated frame does
	// nothing. The sender of a message to a missing resource is told the message's size.
	skipped := func(h subsys.Header) {
		t.Helper()
		try.OK(t, ep.comes(c, []subsys.Frame{{Header: h}}))
	}
	skipped(subsys.Header{Type: wire.TypeData, Seq: 9, Dst: 1, Src: 5, Len: 50_000})
	if n, _ := mb.Len(); n != 0 {
		t.Error("a repeat was delivered")
	}
	skipped(subsys.Header{Type: wire.TypeData, Seq: 10, Dst: 9, Src: 5, Tag: 3, Len: 60_000})
	reported := 0
	for _, f := range sentFrames(c) {
		if f.Type == wire.TypeGone && f.Src == 5 && f.Tag == 3 && string(f.Data) == string(gonePayload(5, 60_000)) {
			reported++
		}
	}
	if reported != 1 {
		t.Errorf("the message is reported %d times", reported)
	}

	// A resource that is registered after the frame was judged gets no empty message.
	mb2 := box(t, d, 9, 0)
	skipped(subsys.Header{Type: wire.TypeData, Seq: 11, Dst: 9, Src: 5, Tag: 3, Len: 60_000})
	if n, _ := mb2.Len(); n != 0 {
		t.Error("a message whose payload was skipped was delivered")
	}
	f := subsys.Frame{Header: subsys.Header{Type: wire.TypeData, Seq: 12, Dst: 9, Src: 5, Tag: 3, Len: 5}, Data: []byte("hello")}
	try.OK(t, ep.comes(c, []subsys.Frame{f}))
	if n, _ := mb2.Len(); n != 1 {
		t.Error("the message behind it was not delivered")
	}
}

// sentFrames returns the frames that were handed to c, those of batches one by one.
func sentFrames(c *fakeConn) (fs []subsys.Frame) {
	for i := range c.sent {
		if c.sent[i].Type == subsys.TypeBatch {
			fs = subsystest.Split(&c.sent[i], fs)
		} else {
			fs = append(fs, c.sent[i])
		}
	}
	return fs
}

// A connection that outlives its link for a moment leaves nothing in the mailboxes.
func TestRoomAfterTheEnd(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 0)
	l := try.Get(d.link(resource.MakeGID(1, 2, 0)))(t)
	l.endLink(ErrUnreachable)
	l.closeAccounts()
	d.progress.Lock()
	b, err := l.payloadBuffer(new(endpoint), &subsys.Header{Type: wire.TypeData, Len: 20_000, Dst: 1})
	d.progress.Unlock()
	if err == nil {
		b.Release()
	}
	mb.mu.Lock()
	defer mb.mu.Unlock()
	if flows, _ := mb.credit.Share(); flows != 0 || mb.credit.Promised() != 0 {
		t.Errorf("%d flows, %d bytes promised to no sender", flows, mb.credit.Promised())
	}
}
