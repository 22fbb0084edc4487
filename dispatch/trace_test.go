// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/subsystest"
)

type traceKey struct{}

// in returns a context in which the program sends in the trace number n.
func in(ctx context.Context, n byte) context.Context { return context.WithValue(ctx, traceKey{}, n) }

// traces makes a context trace: a context of in has the trace with its number.
func traces(c *Config) {
	c.Trace = func(ctx context.Context) Trace {
		n, _ := ctx.Value(traceKey{}).(byte)
		return Trace{ID: [16]byte{15: n}, Span: [8]byte{7: n}, Flags: 1}
	}
}

// Each way to send carries the trace of its ctx, whatever the size, in order, and a message
// without trace has none. The first messages are sent before there is a connection.
//
// Promise (Observing): A message carries the trace of its sender, if the program traces.
func TestTraceTravels(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr, traces), w.node(t, 2, tr)
		for _, to := range []*Dispatcher{a, b} {
			mb, own := box(t, to, 7, 64<<20), box(t, a, uint32(8+len(a.boxes)), 0)
			f := flow(t, a, mb)
			sizes := []int{0, 10, session.Inline + 1, session.WholeLen + 1, 3 << 20}
			calls := make(chan error, len(sizes))
			for i, n := range sizes {
				ctx, p := in(soon(t), byte(i+1)), make([]byte, n)
				try.OK(t, f.SendBytes(ctx, 1, 0, p))
				try.OK(t, f.SendBytes(soon(t), 2, 0, p))
				try.OK(t, f.Send(ctx, 1, 0, buf(t, a, string(p))))
				try.OK(t, f.SendAndForget(ctx, 3, 0, p))
				pending := try.Get(own.RequestBytes(ctx, f, 0, p))(t)
				go func() {
					m, err := pending.Wait(soon(t))
					if err == nil {
						if m.Trace().IsValid() {
							err = errors.New("the reply has a trace")
						}
						m.Release()
					}
					calls <- err
				}()
			}
			for i, n := range sizes {
				for k := range 5 {
					m := receive(t, mb, nil)
					want := Trace{ID: [16]byte{15: byte(i + 1)}, Span: [8]byte{7: byte(i + 1)}, Flags: 1}
					if k == 1 {
						want = Trace{}
					}
					if m.Trace() != want || m.Len() != n {
						t.Errorf("message %d of %d bytes: %v, want %v", k, m.Len(), m.Trace(), want)
					}
					if m.IsCall() {
						try.OK(t, mb.ReplyBytes(soon(t), m, nil))
					}
					m.Release()
				}
			}
			for range sizes {
				try.OK(t, <-calls)
			}
		}
	})
}

// The senders of a followed resource tell their times, also those that begin to send later, one of
// so many, and stop by themselves.
func TestFollow(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mb := box(t, b, 7, 0)
		fs := []*Flow{flow(t, a, mb)}
		try.OK(t, fs[0].SendBytes(soon(t), 1, 0, nil))
		take(t, mb)
		if all, err := b.Follow(7, 2, 0); err != nil || all != nil {
			t.Fatal(all, err)
		}
		try.Works(b.Follow(7, 2, time.Minute))(t)
		later := w.node(t, 3, tr)
		fs = append(fs, flow(t, later, mb))
		try.OK(t, fs[1].SendBytes(soon(t), 1, 0, nil)) // the question may come later
		take(t, mb)
		eventually.True(t, "the senders know", func() bool { return fs[0].tracing.Load() != nil && fs[1].tracing.Load() != nil })
		for i, f := range fs {
			for range 4 {
				try.OK(t, f.SendBytes(soon(t), uint32(i+2), 5, []byte("four")))
			}
		}
		var states []string
		for range 8 {
			m := receive(t, mb, nil)
			all := try.Get(b.Follow(7, 0, 0))(t)
			states = append(states, all[len(all)-1].State)
			m.Release()
		}
		all := try.Get(b.Follow(7, 0, 0))(t)
		own := map[uint32]int{}
		for _, x := range all {
			own[x.From.Serial()]++
			if x.State != Released || x.To != b.self.WithSerial(7) || x.Bytes != 4 || x.Tag != 5 || x.Transport == "" || x.Travelled <= 0 || x.Stored <= 0 || x.Handled <= 0 {
				t.Errorf("%+v", x)
			}
		}
		try.Equal(t, fmt.Sprint(own), "map[2:2 3:2]")
		if !bytes.Contains([]byte(fmt.Sprint(states)), []byte(Received)) {
			t.Error(states)
		}
	})
}

// Following ends by itself, at the sender and at the receiver, also if nothing is sent meanwhile.
//
// Promise (Observing): Following the messages of a resource ends by itself, and costs nothing
// afterwards.
func TestFollowEnds(t *testing.T) {
	inSimulation(t, func(t *testing.T, n *simulated) {
		w := newWorld()
		a, b := w.node(t, 1, n.transport()), w.node(t, 2, n.transport())
		mb := box(t, b, 7, 0)
		fs := []*Flow{flow(t, a, mb), flow(t, b, mb)}
		send := func() {
			for _, f := range fs {
				try.OK(t, f.SendBytes(t.Context(), 1, 0, nil))
				take(t, mb)
			}
		}
		send()
		try.Works(b.Follow(7, 1, followMost+time.Hour))(t)
		time.Sleep(time.Second) // virtual: the sender learns of it
		send()
		try.Equal(t, len(try.Get(b.Follow(7, 0, 0))(t)), 2)
		time.Sleep(followMost) // virtual: the time is over
		send()
		try.Equal(t, len(try.Get(b.Follow(7, 0, 0))(t)), 2, "followed after the end")
		for _, f := range fs {
			if f.tracing.Load() != nil {
				t.Error("a flow is still followed")
			}
		}
		time.Sleep(followKept) // virtual: the messages are dropped
		if locked(&mb.mu, func() bool { return mb.follower != nil })() {
			t.Error("the messages are kept")
		}
		try.Fails(b.Follow(8, 1, time.Second))(t, ErrGone)
	})
}

// What a Trace frame says wrongly is dropped, and the message comes all the same.
func TestHostileTrace(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 0)
	try.Works(d.Follow(1, 1, time.Minute))(t)
	l, _ := linked(t, d, &fakeConn{})
	good := (&trace{clock: 1, sent: 1, Trace: Trace{ID: [16]byte{1}, Span: [8]byte{1}}}).encode()[:]
	with := func(at int, with ...byte) []byte {
		return slices.Replace(slices.Clone(good), at, at+len(with), with...)
	}
	far := bytes.Repeat([]byte{255}, 7)
	for name, c := range map[string]struct {
		payload  []byte
		src      uint32
		isTraced bool
		follows  int
	}{
		"good":                {good, 9, true, 1},
		"empty":               {nil, 9, false, 0},
		"short":               {good[1:], 9, false, 0},
		"long":                {append(slices.Clone(good), 0), 9, false, 0},
		"garbage":             {bytes.Repeat([]byte{255}, 25), 9, false, 0},
		"zeros":               {make([]byte, traceLen), 9, false, 0},
		"no trace":            {with(24, make([]byte, 16)...), 9, false, 1},
		"no span":             {with(40, make([]byte, 8)...), 9, false, 1},
		"not followed":        {with(8, make([]byte, 8)...), 9, true, 0},
		"of another message":  {good, 8, false, 0},
		"sent in the future":  {with(8, append(far, 127)...), 9, true, 1},
		"sent before time":    {with(8, append(far, 255)...), 9, true, 1},
		"numbered in no time": {with(16, 0, 0, 0, 0, 0, 0, 0, 128), 9, true, 1},
	} {
		before := len(try.Get(d.Follow(1, 0, 0))(t))
		d.progress.Lock()
		fs := []subsys.Frame{
			{Header: subsys.Header{Type: wire.TypeTrace, Dst: 1, Src: 9, Len: 3}, Data: []byte("one")}, // the next one counts
			{Header: subsys.Header{Type: wire.TypeTrace, Dst: 1, Src: c.src, Len: uint32(len(c.payload))}, Data: c.payload},
			{Header: subsys.Header{Type: wire.TypeData, Dst: 1, Src: 9}},
			{Header: subsys.Header{Type: wire.TypeData, Dst: 1, Src: 9}},
		}
		try.OK(t, errOf(l.work(fs)), name)
		for _, size := range []int{0, 3, 5} {
			try.Fails(errOf(l.work([]subsys.Frame{{Header: subsys.Header{Type: wire.TypeFollow, Dst: 1}, Data: make([]byte, size)}})))(t, ErrProtocol)
		}
		try.OK(t, errOf(l.work([]subsys.Frame{{Header: subsys.Header{Type: wire.TypeFollow, Dst: 77, Tag: 1<<64 - 1}, Data: make([]byte, 4)}})))
		d.progress.Unlock()
		for i := range 2 {
			m := receive(t, mb, nil)
			try.Equal(t, m.Trace().IsValid(), i == 0 && c.isTraced, name)
			m.Release()
		}
		all := try.Get(d.Follow(1, 0, 0))(t)
		try.Equal(t, len(all)-before, c.follows, name)
		for _, x := range all {
			if x.Waited < 0 || x.Travelled != 0 || x.Stored < 0 || x.Handled < 0 {
				t.Errorf("%s: %+v", name, x)
			}
		}
	}
}

// A message that waits for the first connection is traced. If the peer then turns out not to know
// traces, it gets a frame that says nothing in place of the trace, and no traces later.
func TestPeerWithoutTraces(t *testing.T) {
	w := newWorld()
	a := w.node(t, 1, inproc.NewNetwork().Transport(), traces, givesUp)
	b := w.node(t, 2, inproc.NewNetwork().Transport())
	mb := box(t, b, 1, 0)
	l := newLink(a, linkKey{peer: b.self})
	f := l.flow(1)
	for _, size := range []int{10, session.Inline + 1} { // copied, and in a buffer of its own
		try.OK(t, f.SendBytes(in(soon(t), 1), 9, 0, make([]byte, size)))
	}
	l.mu.Lock()
	l.s.HideTraces()
	l.hasMet = true
	var fs []subsys.Frame
	take := func() {
		for _, e := range l.s.Take() {
			if e.Type == subsys.TypeBatch {
				fs = subsystest.Split(&e, fs)
			} else {
				fs = append(fs, e)
			}
		}
		l.mu.Unlock()
	}
	take()
	try.OK(t, f.SendBytes(in(soon(t), 1), 9, 0, nil))
	l.mu.Lock()
	take()
	var types []uint8
	for i := range fs {
		types = append(types, fs[i].Type)
	}
	try.Equal(t, fmt.Sprint(types), fmt.Sprint([]uint8{wire.TypeGone, wire.TypeData, wire.TypeGone, wire.TypeData, wire.TypeData}))
	lb, _ := linked(t, b, &fakeConn{})
	b.progress.Lock()
	try.OK(t, errOf(lb.work(fs)))
	b.progress.Unlock()
	for range 3 {
		receive(t, mb, nil).Release()
	}
	l.endLink(ErrClosed)
}
