// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/os/clock"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// Protocol: Traces
//
// Both frames go only to a context with bit 0 of features. Trace comes directly before Data, Begin,
// or the Call of a request with the same dst and src; before anything else it says nothing. Its
// payload: the identity of a clock u64, by which the message was given to the library at i64
// nanoseconds and was numbered at i64, zeros if it is not followed; trace-id 16 bytes, parent-id 8
// and flags u8 as in the W3C's traceparent, or zeros. A payload of another length, or with other
// zeros, says nothing. The receiver of messages to dst sends Follow to a sender: its times are
// wanted of each n-th message (payload u32; 0: of none) for tag nanoseconds, at most 600 s.

// This file has what travels ahead of a message if its program traces, or if an operator follows
// the messages of a resource:
//
//	the receiver's context                      a sender's context
//	----------------------                      ------------------
//	Dispatcher.Follow
//	  Mailbox.follower is set ── Follow ──────► Flow.tracing is set
//	                                            Flow.Send: each n-th message
//	Mailbox.arriveLocked ◄──── Trace, Data ────   has a trace
//	Message.Release: times, in the follower
//
// A flow without tracing and a message without trace cost a comparison with nil each. A flow stops
// by itself when the time is over, with the next message that would be followed.

const (
	followMost   = 10 * time.Minute // limit of the time for which messages are followed
	followKept   = 10 * time.Second // how long followed messages are kept after that
	followedMost = 256              // messages that a follower keeps
	traceLen     = 49               // of the payload of a Trace frame
)

// A Trace is the context of a distributed trace, as in the header traceparent of the W3C: the span
// in which a message was sent. The zero value is none.
type Trace struct {
	ID    [16]byte // of the trace
	Span  [8]byte
	Flags byte // bit 0: the span is recorded
}

// IsValid reports whether the trace and the span are both named.
func (t Trace) IsValid() bool { return t.ID != [16]byte{} && t.Span != [8]byte{} }

// String returns the trace in the form of the header traceparent.
func (t Trace) String() string {
	return fmt.Sprintf("00-%s-%s-%02x", hex.EncodeToString(t.ID[:]), hex.EncodeToString(t.Span[:]), t.Flags)
}

// A trace is what travels ahead of a message, and where the receiver notes its times.
type trace struct {
	Trace
	clock        uint64 // identity of the clock of sent and queued
	sent, queued int64  // zeros: the message is not followed

	by     *follower // nil: the receiver does not follow the message
	number uint64    // of the message in by
}

// encode returns the payload of the Trace frame.
func (t *trace) encode() *[traceLen]byte {
	p := new([traceLen]byte)
	binary.LittleEndian.PutUint64(p[:], t.clock)
	binary.LittleEndian.PutUint64(p[8:], uint64(t.sent))
	copy(p[24:], t.ID[:])
	copy(p[40:], t.Span[:])
	p[48] = t.Flags
	return p
}

// parseTrace returns the trace in the payload of a Trace frame, or nil if it says nothing.
func parseTrace(p []byte) *trace {
	if len(p) != traceLen {
		return nil
	}
	t := &trace{clock: binary.LittleEndian.Uint64(p), sent: int64(binary.LittleEndian.Uint64(p[8:])), queued: int64(binary.LittleEndian.Uint64(p[16:]))}
	t.ID, t.Span, t.Flags = [16]byte(p[24:]), [8]byte(p[40:]), p[48]
	if !t.IsValid() {
		t.Trace = Trace{}
	}
	if t.sent == 0 && t.Trace == (Trace{}) {
		return nil
	}
	return t
}

// A tracing says of which messages of a flow a trace travels ahead. Config.Trace gives traces in
// addition.
type tracing struct {
	every  uint32 // one of so many messages is followed; 0: none
	until  int64  // by Dispatcher.clock
	passed atomic.Uint32
}

// unfollowed returns the tracing of flows whose messages are not followed. It returns nil if the
// program does not trace.
func (d *Dispatcher) unfollowed(dst uint32) *tracing {
	if d.cfg.Trace == nil || dst == wire.Replies {
		return nil
	}
	return &tracing{}
}

// follow makes one of every messages over the flow be followed for limit.
func (f *Flow) follow(every uint32, limit time.Duration) {
	d := f.dispatcher()
	if every == 0 || limit <= 0 {
		f.tracing.Store(d.unfollowed(f.dst))
		return
	}
	f.tracing.Store(&tracing{every: every, until: d.clock() + int64(min(limit, followMost))})
}

// traced adds the trace of the message that is sent next to why, if it has one. No lock may be
// held.
func (f *Flow) traced(ctx context.Context, why purpose) purpose {
	if t := f.tracing.Load(); t != nil {
		why.trace = f.newTrace(ctx, t)
	}
	return why
}

// newTrace returns the trace of a message that is sent with ctx, or nil.
func (f *Flow) newTrace(ctx context.Context, g *tracing) *trace {
	d := f.dispatcher()
	var t trace
	if d.cfg.Trace != nil {
		if t.Trace = d.cfg.Trace(ctx); !t.IsValid() {
			t.Trace = Trace{}
		}
	}
	if g.every > 0 && (g.passed.Add(1)-1)%g.every == 0 {
		if d.clock() < g.until {
			c := clock.Own()
			t.clock, t.sent = c.ID, c.Now()
		} else {
			f.tracing.CompareAndSwap(g, d.unfollowed(f.dst))
		}
	}
	if t == (trace{}) {
		return nil
	}
	return &t
}

// putTraceLocked queues the Trace frame with payload p ahead of a message, unless the peer does not
// know such frames. Before the first handshake that is not known: see bindLocked. mu must be held.
func (l *link) putTraceLocked(dst, src uint32, p *[traceLen]byte) {
	if l.hasMet && !l.knowsTraces {
		return
	}
	if sent := binary.LittleEndian.Uint64(p[8:]); sent != 0 {
		binary.LittleEndian.PutUint64(p[16:], uint64(clock.Own().Now()))
	}
	h := subsys.Header{Type: wire.TypeTrace, Flags: wire.FlagForget, Dst: dst, Src: src, Len: traceLen}
	if !l.copyLocked(&h, p[:]) {
		l.s.Push(&subsys.Frame{Header: h, Data: p[:]})
	}
}

// A nextTrace is the trace of the next message, if that is of src to dst. A nil trace is none.
type nextTrace struct {
	dst, src uint32
	*trace
}

// takeTraceOf takes and returns the trace of the message f, or nil. The token must be held.
func (l *link) takeTraceOf(f *subsys.Frame) *trace {
	n := l.nextTrace
	if n.trace == nil {
		return nil
	}
	l.nextTrace = nextTrace{}
	if n.dst != f.Dst || n.src != f.Src {
		return nil
	}
	return n.trace
}

// onFollow notes for which of its messages to a resource the peer wants times. The token must be
// held.
func (l *link) onFollow(f *subsys.Frame) error {
	if len(f.Data) != 4 {
		return fmt.Errorf("%w: messages to be followed, in %d bytes", ErrProtocol, len(f.Data))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if fl := l.flows[f.Dst]; fl != nil {
		fl.follow(binary.LittleEndian.Uint32(f.Data), time.Duration(min(f.Tag, math.MaxInt64)))
	}
	return nil
}

// Trace returns the trace in which the message was sent. It is the zero Trace if the sender's
// program does not trace.
func (m *Message) Trace() Trace {
	if m.trace == nil {
		return Trace{}
	}
	return m.trace.Trace
}

// States of a followed message, in their order.
const (
	Stored   = "stored"   // the message waits in its mailbox
	Received = "received" // a receive or a handler has it
	Replied  = "replied"  // it has its reply, and is not released yet
	Released = "released" // its receiver has released it
	Dropped  = "dropped"  // it was never received: its resource ended, or its call was given up
)

// A Followed is a message whose times were noted on its way. Durations of what has not happened yet
// are 0, except that Stored and Handled grow.
type Followed struct {
	Number    uint64        `json:"number"` // tells it from other messages of the resource
	From      resource.GID  `json:"from"`
	To        resource.GID  `json:"to"`
	Tag       uint64        `json:"tag"`
	Bytes     int           `json:"bytes"`
	IsCall    bool          `json:"call,omitempty"`      // the message is a request
	Transport string        `json:"transport,omitempty"` // over which it came; "": from its own context
	State     string        `json:"state"`
	Waited    time.Duration `json:"waited"`            // at the sender, for room in the mailbox and in the session
	Travelled time.Duration `json:"travelled"`         // until it was in the mailbox; 0: the sender has another clock
	Stored    time.Duration `json:"stored"`            // in the mailbox
	Replied   time.Duration `json:"replied,omitempty"` // from receive to reply
	Handled   time.Duration `json:"handled"`           // from receive to release
}

// A follower keeps the messages of a mailbox that were followed last.
type follower struct {
	every uint32 // the mailbox's mu guards every, until and timer
	until int64  // by Dispatcher.clock
	timer *time.Timer

	mu     sync.Mutex // is held for a few instructions, in which no lock is taken
	number uint64     // of the latest message
	last   [followedMost]followed
}

type followed struct {
	Followed
	arrived, received int64 // by the clock of this process
}

// Follow makes the senders of the resource with a serial note the times of one of every of their
// messages, until limit is over, which is 10 minutes at most. Contexts that begin to send meanwhile
// do so too. With a limit of 0 it changes nothing. It returns the messages that were followed last,
// at most 256, in the order in which they came. It fails with ErrGone if there is no such resource.
func (d *Dispatcher) Follow(serial, every uint32, limit time.Duration) ([]Followed, error) {
	m := d.mailbox(serial)
	if m == nil {
		return nil, ErrGone
	}
	if limit > 0 {
		m.startFollowing(max(every, 1), min(limit, followMost))
	}
	m.mu.Lock()
	w := m.follower
	m.mu.Unlock()
	if w == nil {
		return nil, nil
	}
	return w.messages(), nil
}

func (m *Mailbox) startFollowing(every uint32, limit time.Duration) {
	var links []*link
	m.mu.Lock()
	if m.closed || m.calls != nil {
		m.mu.Unlock()
		return
	}
	w := m.follower
	if w == nil {
		w = &follower{}
		w.timer = time.AfterFunc(limit+followKept, func() { m.endFollowing(w) })
		m.follower = w
	} else {
		w.timer.Reset(limit + followKept)
	}
	w.every, w.until = every, m.d.clock()+int64(limit)
	for in := range m.inflows {
		if in.l != nil {
			links = append(links, in.l)
		}
		m.askTimesLocked(in)
	}
	m.mu.Unlock()
	for _, l := range links {
		l.lockAndPost()
	}
}

// askTimesLocked asks a sender for the times of its messages, while messages are followed. It
// queues the question without writing it. mu must be held.
func (m *Mailbox) askTimesLocked(in *inflow) {
	w := m.follower
	left := time.Duration(w.until - m.d.clock())
	switch {
	case left <= 0:
	case in.l == nil:
		in.queue.f.follow(w.every, left)
	default:
		in.l.mu.Lock()
		knows := in.l.knowsTraces
		in.l.mu.Unlock()
		if knows {
			in.l.lockAndPut(wire.TypeFollow, in.dst, 0, uint64(left), binary.LittleEndian.AppendUint32(nil, w.every)...)
		}
	}
}

// endFollowing drops the messages of w, unless they are followed again. It runs in the goroutine of
// the timer.
func (m *Mailbox) endFollowing(w *follower) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.follower == w && m.d.clock() >= w.until {
		m.follower = nil
	}
}

// arriveLocked notes that a message with a trace has come. mu must be held.
func (m *Mailbox) arriveLocked(msg *Message) {
	t, w := msg.trace, m.follower
	if w == nil || t.sent == 0 || m.d.clock() >= w.until {
		return
	}
	c := clock.Own()
	f := followed{arrived: c.Now(), Followed: Followed{
		From: msg.from, To: m.d.self.WithSerial(m.serial), Tag: msg.tag, Bytes: len(msg.data), IsCall: msg.call != 0,
		State: Stored, Waited: time.Duration(max(t.queued-t.sent, 0)),
	}}
	switch in := msg.in; {
	case in.l != nil:
		in.l.mu.Lock()
		f.Transport = in.l.transport
		in.l.mu.Unlock()
	case in.queue.f.passage != nil:
		f.Transport = transportOf(in.queue.f.passage.other.addr)
	}
	if t.clock == c.ID && (c.ID != 0 || msg.in.l == nil) {
		f.Travelled = time.Duration(max(f.arrived-t.queued, 1))
	}
	w.mu.Lock()
	w.number++
	f.Number = w.number
	w.last[w.number%followedMost] = f
	w.mu.Unlock()
	t.by, t.number = w, f.Number
}

// reach notes that a followed message has come to a state.
func (t *trace) reach(state string) {
	w := t.by
	if w == nil {
		return
	}
	now := clock.Own().Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	f := &w.last[t.number%followedMost]
	if f.Number != t.number {
		return
	}
	switch state {
	case Received: // perhaps once more, after PutBack
		f.received, f.Stored = now, time.Duration(now-f.arrived)
	case Replied:
		f.Followed.Replied = time.Duration(now - f.received)
	case Released:
		if f.received == 0 {
			state, f.Stored = Dropped, time.Duration(now-f.arrived)
		} else {
			f.Handled = time.Duration(now - f.received)
		}
	}
	f.State = state
}

// messages returns the messages that are kept, oldest first.
func (w *follower) messages() (all []Followed) {
	now := clock.Own().Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := w.number - min(w.number, followedMost); n < w.number; n++ {
		f := w.last[(n+1)%followedMost]
		switch f.State {
		case Stored:
			f.Stored = time.Duration(now - f.arrived)
		case Received, Replied:
			f.Handled = time.Duration(now - f.received)
		}
		all = append(all, f.Followed)
	}
	return all
}
