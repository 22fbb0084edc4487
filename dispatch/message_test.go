// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
)

// Writable copies a payload in another process's memory, and gives that memory back. Any other
// payload stays where it is. The same holds if one buffer came many times.
//
// Promise (Buffers): `Message.Writable` gives a payload that may be changed, and copies it only if
// another process, sender or receiver holds it too. See also TestSharedIsCopiedToWrite.
func TestWritable(t *testing.T) {
	ctx := soon(t)
	w := newWorld()
	near := inproc.NewNetwork().Transport()
	a, b, c := w.node(t, 1, shm.New()), w.node(t, 2, shm.New()), w.node(t, 3, near)
	try.OK(t, b.Listen(near, ""))
	mb, mc := box(t, b, 1, 0), box(t, c, 1, 0)
	text := bytes.Repeat([]byte("hello"), 500)
	send := func(p []byte) *Message {
		t.Helper()
		try.OK(t, flow(t, a, mb).SendBytes(ctx, 1, 0, p))
		m := try.Get(mb.Recv(ctx))(t)
		return m
	}
	change := func(m *Message, copied bool) {
		t.Helper()
		if m.ReadOnly() != copied {
			t.Errorf("a message of %d bytes: read-only %v", m.Len(), m.ReadOnly())
		}
		was := &m.Bytes()[0]
		p := try.Get(m.Writable())(t)
		if m.ReadOnly() || (&p[0] == was) == copied || &p[0] != &m.Bytes()[0] || !bytes.Equal(p, text[:len(p)]) {
			t.Errorf("a message of %d bytes: %.20q, moved %v", m.Len(), p, &p[0] != was)
		}
		p[0] = 'J'
		if again, err := m.Writable(); err != nil || &again[0] != &p[0] {
			t.Errorf("it moves again: %v", err)
		}
		d := m.Buffer()
		if d.Bytes()[0] != 'J' || d.Len() != m.Len() {
			t.Errorf("its buffer is another one: %.20q", d.Bytes())
		}
		d.Release()
		m.Release()
	}
	change(send(text[:100]), false)
	change(send(text), true)

	m := send(text)
	const many = 5
	f := flow(t, b, mc)
	for range many {
		try.OK(t, f.Send(ctx, 1, 0, m.Buffer()))
	}
	m.Release()
	var got []*Message
	for range many {
		m := try.Get(mc.Recv(ctx))(t)
		got = append(got, m)
	}
	for _, m := range got {
		change(m, true)
	}

	last := send(text)
	_ = b.cfg.Pool.Close()
	if _, err := last.Writable(); !errors.Is(err, ErrClosed) || !last.ReadOnly() || !bytes.Equal(last.Bytes(), text) {
		t.Errorf("when there is no memory: %v", err)
	}
	last.Release()
}
