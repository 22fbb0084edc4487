// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// However often messages are put back, their senders are given no more credit than the mailbox has,
// plus the messages that are held at once.
func TestPutBackIsBounded(t *testing.T) {
	const size, limit, together, messages = 1000, 4 * FirstCredit, 10, 2000
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		m := box(t, b, 1, limit)
		f := flow(t, a, m)
		sent := make(chan error, 1)
		go func() {
			var p [size]byte
			for i := range uint64(messages) {
				binary.LittleEndian.PutUint64(p[:], i)
				if err := f.SendBytes(soon(t), 1, i%2, p[:]); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		eventually.True(t, "a full mailbox", func() bool { _, stored := m.Len(); return stored > limit-FirstCredit })
		for i := range 300 {
			var held []*Message
			for range together {
				msg := try.Get(m.TryRecv(Tag(uint64(i % 2))))(t)
				held = append(held, msg)
			}
			for i := range held {
				try.OK(t, m.PutBack(held[len(held)-1-i]))
			}
			// At most the limit, FirstCredit, and the messages that were held at once.
			if _, stored := m.Len(); stored > limit+FirstCredit+together*credit.Charge(size) {
				t.Fatalf("%d bytes are stored after %d rounds, the limit is %d", stored, i, limit)
			}
		}
		var next [2]uint64
		next[1] = 1
		for range messages {
			msg := try.Get(m.Recv(soon(t)))(t)
			if n := binary.LittleEndian.Uint64(msg.Bytes()); n != next[n%2] || n%2 != msg.Tag() {
				t.Fatalf("message %d, want %d", n, next[n%2])
			}
			next[msg.Tag()] += 2
			msg.Release()
		}
		try.OK(t, <-sent)
		if n, stored := m.Len(); n != 0 || stored != 0 {
			t.Errorf("%d messages, %d bytes are left", n, stored)
		}
	})
}

// A message that was put back is reported when its resource is closed. A message that comes back
// later stays the caller's. Messages of other resources, and of none, are refused.
func TestPutBackWhileClosed(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		reports := make(chan Undelivered, 3)
		a := w.node(t, 1, tr, func(c *Config) { c.Undelivered = func(u Undelivered) { reports <- u } })
		b := w.node(t, 2, tr)
		m, other := box(t, b, 1, 0), box(t, b, 2, 0)
		f := flow(t, a, m)
		for tag := range uint64(3) {
			try.OK(t, f.SendBytes(t.Context(), 1, tag, []byte("hello")))
		}
		var msgs []*Message
		for range 3 {
			msg := try.Get(m.Recv(soon(t)))(t)
			msgs = append(msgs, msg)
		}
		try.Fails(other.PutBack(msgs[0]))(t, ErrNotReceived, "to another mailbox")
		try.Fails(m.PutBack(nil))(t, ErrNotReceived, "nil")
		try.OK(t, m.PutBack(msgs[1]))
		try.Fails(m.PutBack(msgs[1]))(t, ErrNotReceived, "twice")
		m.Close()
		u := <-reports
		if u.Tag != 1 || u.Bytes != 5 || !errors.Is(u.Err, ErrGone) {
			t.Errorf("reported: %+v", u)
		}
		if err := m.PutBack(msgs[0]); !errors.Is(err, ErrClosed) || string(msgs[0].Bytes()) != "hello" {
			t.Errorf("to a closed mailbox: %v", err)
		}
		msgs[0].Release()
		try.Fails(m.PutBack(msgs[0]))(t, ErrNotReceived, "after Release")
		msgs[2].Release()
		if len(reports) > 0 {
			t.Errorf("reported: %+v", <-reports)
		}
	})
}

// A receiver that waits for a message that is put back gets it, and reads it from the beginning.
func TestPutBackToWaiting(t *testing.T) {
	w := newWorld()
	d := w.node(t, 1, inproc.NewNetwork().Transport())
	m := box(t, d, 1, 0)
	f := flow(t, d, m)
	for range 300 {
		for tag := range uint64(2) {
			try.OK(t, f.SendBytes(t.Context(), 1, tag, []byte("hello")))
		}
		msg := try.Get(m.Recv(t.Context(), Tag(1)))(t)
		var p [2]byte
		try.OK(t, errOf(msg.Read(p[:])))
		got := make(chan *Message)
		go func() {
			msg, err := m.Recv(soon(t), Tag(1))
			try.Check(t, err)
			got <- msg
		}()
		eventually.True(t, "a receiver", func() bool { return waiting(m) })
		try.OK(t, m.PutBack(msg))
		msg = <-got
		var payload [8]byte
		if n, _ := msg.Read(payload[:]); string(payload[:n]) != "hello" || msg.Tag() != 1 {
			t.Fatalf("%q", payload[:n])
		}
		msg.Release()
		take(t, m)
	}
	if f.in.Stored() != 0 || m.credit.Stored() != 0 {
		t.Errorf("%d of %d bytes are consumed", f.in.Received()-f.in.Stored(), f.in.Received())
	}
}
