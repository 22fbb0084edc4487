// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// fill returns a buffer that holds a text.
func fill(t testing.TB, c *rocl.Context, text string) *buffers.Buffer {
	t.Helper()
	b, err := c.Buffer(len(text))
	try.OK(t, err)
	copy(b.Bytes(), text)
	return b
}

// everywhere opens a sender, and three contexts that it reaches over one transport each.
func everywhere(t *testing.T) (sender *rocl.Context, targets map[string]*rocl.Context) {
	near := inproc.NewNetwork()
	cl := rocltest.Cluster(t, 1)
	sender = cl.Open(0, rocl.WithTransports(near.Transport(), shm.New(), tcp.New()))
	return sender, map[string]*rocl.Context{
		"inproc": cl.Open(0, rocl.WithTransports(near.Transport())),
		"shm":    cl.Open(0, rocl.WithTransports(shm.New())),
		"tcp":    cl.Open(0, rocl.WithTransports(tcp.New())),
	}
}

// One buffer, small or large, goes to targets over all transports at once, and to the sender
// itself. Within the process it is not copied.
//
// Promise (Sending): `SendAll` sends one buffer to all targets at once. A full, slow or dead target
// delays no other, and the error names it. See also TestSendAllToFull.
func TestSendAll(t *testing.T) {
	sender, targets := everywhere(t)
	from := newResource(t, sender, nil)
	all := []*rocl.Resource{from, newResource(t, sender, nil)}
	for _, name := range []string{"inproc", "shm", "tcp"} {
		all = append(all, newResource(t, targets[name], nil), newResource(t, targets[name], nil))
	}
	var ids []resource.GID
	for _, r := range all {
		ids = append(ids, r.ID())
	}
	for range 2 { // the second time the flows are cached
		for _, size := range []int{0, 10, 3000, 700_000} {
			text := strings.Repeat("0123456789", size/10)
			b := fill(t, sender, text)
			kept := b.Retain()
			try.OK(t, from.SendAll(bg, ids, 5, b))
			for _, r := range all {
				m := recv(t, r)
				if string(m.Bytes()) != text || m.Tag() != 5 || m.From() != from.ID() {
					t.Errorf("%d bytes with tag %d from %v, want %d", m.Len(), m.Tag(), m.From(), size)
				}
				m.Release()
			}
			if err := kept.Wait(bg); err != nil || kept.Refs() > 1 && size > 2048 && !kept.Done() {
				t.Errorf("%d bytes: %v, %d references", size, err, kept.Refs())
			}
			kept.Release()
		}
	}
	for name := range targets {
		if n := sender.Stats().Sent[name]; n == 0 {
			t.Errorf("nothing went over %s: %v", name, sender.Stats().Sent)
		}
	}
}

// Without a target the buffer is taken over. A target that is named twice gets two messages.
func TestSendAllToNoneAndTwice(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	r := newResource(t, c, nil)
	try.Check(t, r.SendAll(bg, nil, 0, fill(t, c, "none")))
	try.Check(t, r.SendAll(bg, []resource.GID{r.ID(), r.ID()}, 0, fill(t, c, "twice")))
	expect(t, r, "twice")
	expect(t, r, "twice")
	if n := c.Stats().Buffers.InUse; n != 0 {
		t.Errorf("%d buffers are held", n)
	}
}

// The error names the failed targets, and the other targets get the message. The buffer stays the
// sender's, which sends it again.
func TestSendAllFails(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		from, one, two, gone := newResource(t, a, nil), newResource(t, b, nil), newResource(t, b, nil), newResource(t, a, nil)
		try.OK(t, gone.Close())
		nobody := resource.MakeGID(1, 2, 3)
		buf := fill(t, a, strings.Repeat("x", 5000))
		for range 2 {
			err := from.SendAll(bg, []resource.GID{gone.ID(), one.ID(), nobody, two.ID(), {}}, 0, buf)
			var failed rocl.SendErrors
			if !errors.Is(err, dispatch.ErrGone) || !errors.As(err, &failed) || len(failed) != 3 {
				t.Fatal(err)
			}
			var who []resource.GID
			for _, f := range failed {
				who = append(who, f.To)
				if !errors.Is(f, dispatch.ErrGone) {
					t.Error(f)
				}
			}
			if !slices.Equal(who, []resource.GID{gone.ID(), nobody, {}}) {
				t.Errorf("failed: %v", who)
			}
			for _, r := range []*rocl.Resource{one, two} {
				m, err := r.Recv(bg)
				if err != nil || m.Len() != 5000 {
					t.Fatal(m, err)
				}
				m.Release()
			}
		}
		var one1 *rocl.SendError
		if err := from.SendAll(bg, []resource.GID{nobody, nobody, nobody, nobody, nobody}, 0, buf); !errors.As(err, &one1) || one1.To != nobody || !strings.Contains(err.Error(), "and 2 more") {
			t.Error(err)
		}
		try.OK(t, from.Send(bg, one.ID(), 0, buf))
		m, err := one.Recv(bg)
		if err != nil || m.Len() != 5000 {
			t.Fatal(m, err)
		}
		m.Release()
		try.OK(t, from.Close())
		last := fill(t, a, "too late")
		try.Fails(from.SendAll(bg, []resource.GID{one.ID(), two.ID()}, 0, last))(t, dispatch.ErrClosed, "from a closed resource")
		last.Release()
	})
}

// SendAll waits for a full target until ctx ends, without delaying the others. A target that is
// closed meanwhile fails, and a target that gets room gets the message.
func TestSendAllToFull(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open(rocl.WithMailbox(64<<10))
		from := newResource(t, a, nil)
		full, dies, free := newResource(t, b, nil), newResource(t, b, nil), newResource(t, b, nil)
		for _, r := range []*rocl.Resource{full, dies} {
			fillUp(t, from, r)
		}
		ids := []resource.GID{full.ID(), dies.ID(), free.ID()}
		buf := fill(t, a, strings.Repeat("x", 5000))
		text := buf.Bytes()

		ctx, end := context.WithCancelCause(bg)
		why := errors.New("why")
		result := make(chan error, 1)
		go func() { result <- from.SendAll(ctx, ids, 1, buf) }()
		m, err := free.Recv(bg)
		if err != nil || !bytes.Equal(m.Bytes(), text) {
			t.Fatal(err)
		}
		m.Release()
		select {
		case err := <-result:
			t.Fatalf("SendAll has not waited: %v", err)
		default:
		}
		end(why)
		err = <-result
		var failed rocl.SendErrors
		if !errors.Is(err, why) || !errors.As(err, &failed) || len(failed) != 2 {
			t.Fatalf("as ctx ended: %v", err)
		}

		go func() { result <- from.SendAll(bg, ids, 1, buf) }()
		if m, err = free.Recv(bg); err != nil {
			t.Fatal(err)
		}
		m.Release()
		try.OK(t, dies.Close())
		for {
			m := recv(t, full)
			tag := m.Tag()
			m.Release()
			if tag == 1 {
				break
			}
		}
		if err = <-result; !errors.As(err, &failed) || len(failed) != 1 || failed[0].To != dies.ID() || !errors.Is(err, dispatch.ErrGone) {
			t.Fatalf("after a target's end: %v", err)
		}
		buf.Release()
	})
}

// fillUp sends to r until r has no room.
func fillUp(t *testing.T, from, r *rocl.Resource) {
	t.Helper()
	ended, end := context.WithCancel(bg)
	end()
	p := make([]byte, 4000)
	for n := 0; ; n++ {
		err := from.SendBytes(ended, r.ID(), 0, p)
		if errors.Is(err, context.Canceled) && n > 0 {
			return
		}
		if err != nil {
			if err := from.SendBytes(bg, r.ID(), 0, p); err != nil { // the flow has to be found first
				t.Fatal(err)
			}
		}
	}
}

// A thousand targets in two contexts each get every message in order.
func TestSendAllToThousand(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		from := newResource(t, a, nil)
		var all []*rocl.Resource
		var ids []resource.GID
		for i := range 1000 {
			c := a
			if i%2 == 0 {
				c = b
			}
			r := newResource(t, c, nil)
			all, ids = append(all, r), append(ids, r.ID())
		}
		const rounds = 3
		for i := range rounds {
			buf := fill(t, a, strings.Repeat(string(rune('a'+i)), 3000))
			try.OK(t, from.SendAll(bg, ids, uint64(i), buf))
		}
		for _, r := range all {
			for i := range rounds {
				m, err := r.Recv(bg)
				if err != nil || m.Tag() != uint64(i) || m.Len() != 3000 || m.Bytes()[2999] != byte('a'+i) {
					t.Fatal(m, err)
				}
				m.Release()
			}
		}
	})
}

// Receivers in the process share the memory. A receiver that asks to write gets a copy, unless it
// is the last holder.
func TestSharedIsCopiedToWrite(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	one, two := newResource(t, c, nil), newResource(t, c, nil)
	try.OK(t, one.SendAll(bg, []resource.GID{one.ID(), two.ID()}, 0, fill(t, c, "hello")))
	m := recv(t, one)
	n := recv(t, two)
	if &m.Bytes()[0] != &n.Bytes()[0] {
		t.Error("there are two copies")
	}
	p, err := m.Writable()
	try.OK(t, err)
	p[0] = 'J'
	if string(n.Bytes()) != "hello" || string(m.Bytes()) != "Jello" {
		t.Errorf("%q and %q", m.Bytes(), n.Bytes())
	}
	was := &n.Bytes()[0]
	if p, err = n.Writable(); err != nil || &p[0] != was {
		t.Errorf("the last holder has it copied: %v", err)
	}
	m.Release()
	n.Release()

	// The same holds if the sender has kept the buffer, or has sent parts of one buffer.
	b := fill(t, c, "hello world")
	for _, part := range []*buffers.Buffer{b.Retain(), b.Slice(0, 5)} {
		try.OK(t, one.Send(bg, two.ID(), 0, part))
		if m, err = two.Recv(bg); err != nil {
			t.Fatal(err)
		}
		if p, err = m.Writable(); err != nil {
			t.Fatal(err)
		}
		p[0] = 'J'
		m.Release()
		if string(b.Bytes()) != "hello world" {
			t.Errorf("what the sender kept is %q", b.Bytes())
		}
	}
	b.Release()
	if n := c.Stats().Buffers.InUse; n != 0 {
		t.Errorf("%d buffers are held", n)
	}
}
