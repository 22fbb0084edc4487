// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
)

// everything returns the number of resources that the context finds.
func everything(t *testing.T, c *rocl.Context) int {
	t.Helper()
	ids := idsOf(all(t, c.FindAll(bg, resource.Match{})))
	if slices.Contains(ids, resource.GID{}) {
		t.Error("a resource without an identifier is found")
	}
	return len(ids)
}

// Invalid names are refused wherever they are given, and nothing is registered. The longest valid
// name works everywhere.
//
// Promise (Resources): Names that are empty, too long or not UTF-8 are refused.
func TestNames(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	r := newResource(t, c, resource.Attrs{"n": "r"})
	for _, bad := range []struct {
		name string
		want error
	}{
		{"", resource.ErrEmptyName},
		{strings.Repeat("x", resource.MaxName+1), resource.ErrTooLarge},
		{strings.Repeat("x", 1<<20), resource.ErrTooLarge},
		{"a\xff", resource.ErrBadName},
		{"\xed\xa0\x80", resource.ErrBadName}, // a surrogate
		{"rocl.kind", resource.ErrReservedName},
		{"rocl.", resource.ErrReservedName},
		{"rocl.of-the-future", resource.ErrReservedName},
	} {
		a := resource.Attrs{bad.name: "x", "good": "y"}
		calls := map[string]func() error{
			"Register":      func() error { _, err := c.Register(bg, a); return err },
			"Update":        func() error { return r.Update(bg, a) },
			"CompareAndSet": func() error { _, err := r.CompareAndSet(bg, r.Revision(), a); return err },
		}
		if bad.want != resource.ErrReservedName { // reserved names may be asked for
			calls["Find"] = func() error { _, err := c.Find(bg, resource.Match(a)); return err }
			calls["Want"] = func() error { _, err := c.Find(bg, resource.Match{}, rocl.Want(bad.name)); return err }
			calls["FindAll"] = func() error {
				for _, err := range c.FindAll(bg, resource.Match(a)) {
					return err
				}
				return nil
			}
			calls["Watch"] = func() error {
				for _, err := range c.Watch(bg, resource.Match(a)) {
					return err
				}
				return nil
			}
			calls["Lookup"] = func() error { _, err := c.Lookup(bg, r.ID(), bad.name); return err }
		}
		for what, f := range calls {
			if err := f(); !errors.Is(err, bad.want) {
				t.Errorf("%s of %.20q: %v, want %v", what, bad.name, err, bad.want)
			}
		}
	}
	if n := everything(t, c); n != 1 {
		t.Errorf("%d resources, want 1", n)
	}
	if f, err := c.Lookup(bg, r.ID()); err != nil || f.Attrs.String() != "{n=r}" || f.Revision != r.Revision() {
		t.Errorf("what was not updated is %v, %v", &f.Attrs, err)
	}

	for _, good := range []string{
		strings.Repeat("x", resource.MaxName), "rocl", "ROCL.kind", "rocl-x", " ", "\x00", "ä=b", "{}",
	} {
		r, err := c.Register(bg, resource.Attrs{good: "value"})
		if err != nil {
			t.Errorf("%.20q: %v", good, err)
			continue
		}
		f, err := c.Find(bg, resource.Match{good: "value"}, rocl.Want(good))
		if err != nil || f.ID != r.ID() || f.Attrs.GetString(good) != "value" {
			t.Errorf("%.20q: found %v %v, %v", good, f.ID, &f.Attrs, err)
		}
	}
}

// Values may be any bytes, empty, and many.
func TestValues(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	for _, v := range []string{"", "\x00", "\xff\xfe", strings.Repeat("v", 1<<20)} {
		r := newResource(t, c, resource.Attrs{"v": v})
		f, err := c.Find(bg, resource.Match{"v": v})
		if got, ok := f.Attrs.Get("v"); err != nil || f.ID != r.ID() || !ok || string(got) != v {
			t.Errorf("%.10q: %v, %v", v, f.ID, err)
		}
	}
	try.Fails(c.Register(bg, resource.Attrs{"v": strings.Repeat("v", resource.MaxValue+1)}))(t, resource.ErrTooLarge, "a value too large")
	many := resource.Attrs{}
	for i := range resource.MaxAttrs {
		many[strconv.Itoa(i)] = ""
	}
	if _, err := c.Register(bg, many); err != nil {
		t.Errorf("as many as may be: %v", err)
	}
	many["one more"] = ""
	try.Fails(c.Register(bg, many))(t, resource.ErrTooLarge, "too many")
	// Every attribute of a resource must have a value.
	var l resource.List
	try.OK(t, l.Want("x"))
	try.Fails(c.Register(bg, &l))(t, directory.ErrIncomplete, "registering an unknown value")
	try.Fails(newResource(t, c, nil).Update(bg, &l))(t, directory.ErrIncomplete, "updating to an unknown value")
	if n := everything(t, c); n != 6 {
		t.Errorf("%d resources, want 6", n)
	}
}

// The library's own resources match only patterns that name their attributes. Only the owner of a
// resource changes it.
func TestReserved(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0), cl.Open(0)
	r := newResource(t, a, resource.Attrs{"n": "r"})
	if n := everything(t, b); n != 1 {
		t.Errorf("%d resources, want 1", n)
	}
	f, err := b.Find(bg, resource.Match{rocl.AttrKind: "context"}, rocl.Want(rocl.AttrAddr, rocl.AttrContext))
	if err != nil || f.ID != f.Context || f.Attrs.GetString(rocl.AttrContext) != f.Context.String() {
		t.Errorf("a context: %v %v, %v", f.ID, &f.Attrs, err)
	}
	if f, err = b.Lookup(bg, r.ID(), rocl.AttrContext); err != nil || f.Attrs.GetString(rocl.AttrContext) != a.ID().String() {
		t.Errorf("the owner of a resource: %v, %v", &f.Attrs, err)
	}
	// A context is not a target of messages.
	me := newResource(t, b, nil)
	if err := me.SendBytes(bg, b.ID(), 0, nil); !errors.Is(err, dispatch.ErrGone) || strings.Count(err.Error(), b.ID().String()) != 1 {
		t.Errorf("sending to the own context: %v", err)
	}
	try.Fails(me.SendBytes(bg, resource.GID{}, 0, nil))(t, dispatch.ErrGone, "sending to the zero identifier")
	try.Fails(b.Lookup(bg, resource.GID{}))(t, directory.ErrNotFound, "looking up the zero identifier")
}

// Messages to a deleted resource are refused, or reported if they were accepted before. Messages
// that were received before are not reported.
//
// Promise (Sending): A `Send` that fails has delivered nothing and leaves the buffer to its caller,
// unchanged. See also TestSendAsContextEnds.
func TestDeleted(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		reported := make(reports, 100)
		a, b := open(reported.option()), open()
		me, you := newResource(t, a, nil), newResource(t, b, nil)
		send(t, me, you.ID(), "read")
		expect(t, you, "read")
		const unread = 20
		for i := range uint64(unread) {
			try.OK(t, me.SendBytes(bg, you.ID(), i, []byte("unread")))
		}
		// The message to mark comes after them in the same stream: when it has arrived, they have
		// too.
		mark := newResource(t, b, nil)
		send(t, me, mark.ID(), "mark")
		expect(t, mark, "mark")
		if n, _ := you.Waiting(); n != unread {
			t.Errorf("%d messages wait, want %d", n, unread)
		}
		try.OK(t, you.Delete(bg))
		for i := range uint64(unread) {
			if u := <-reported; u.From != me.ID() || u.To != you.ID() || u.Tag != i || !errors.Is(u.Err, dispatch.ErrGone) {
				t.Errorf("reported %+v", u)
			}
		}
		// The buffer stays the caller's when sending fails, and can be sent again.
		p := try.Get(a.Buffer(10))(t)
		copy(p.Bytes(), "0123456789")
		try.Fails(me.Send(bg, you.ID(), 0, p))(t, dispatch.ErrGone, "sending a buffer")
		if p.State() != buffers.Owned || p.Refs() != 1 {
			t.Errorf("after a send that failed the buffer is %v, with %d references", p.State(), p.Refs())
		}
		try.OK(t, me.Send(bg, mark.ID(), 0, p))
		expect(t, mark, "0123456789")
		if n := a.Stats().Undelivered; n != unread {
			t.Errorf("%d undelivered, want %d", n, unread)
		}
		refused(t, me, you.ID(), reported)
		// The deleted resource neither sends nor receives, and cannot be deleted again.
		for what, err := range map[string]error{
			"sending":  you.SendBytes(bg, me.ID(), 0, nil),
			"updating": you.Update(bg, resource.Attrs{}),
			"deleting": you.Delete(bg),
		} {
			if !errors.Is(err, dispatch.ErrClosed) {
				t.Errorf("%s: %v", what, err)
			}
		}
		try.Fails(you.Recv(bg))(t, dispatch.ErrClosed, "receiving")
		try.Check(t, you.Close(), "closing")
		// The other resource of the context still works.
		send(t, me, mark.ID(), "still")
		expect(t, mark, "still")
	})
}

// A resource that is deleted with messages unread leaves nothing to the other resources.
func TestDeletedUnread(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		for from, me := range map[string]*rocl.Resource{"here": newResource(t, b, nil), "there": newResource(t, a, nil)} {
			for range 100 {
				you, other := newResource(t, b, nil), newResource(t, b, nil)
				for range 3 {
					send(t, me, you.ID(), "unread")
				}
				send(t, me, other.ID(), "read") // comes after them
				expect(t, other, "read")
				try.OK(t, you.Delete(bg))
				send(t, me, other.ID(), "one")
				expect(t, other, "one")
				if m, err := other.TryRecv(); !errors.Is(err, dispatch.ErrEmpty) {
					t.Fatalf("from %s: one message was sent, and another received: %q from %v, tag %d", from, m.Bytes(), m.From(), m.Tag())
				}
			}
		}
	})
}

// Within one context a deleted resource is gone too, and its unread message is reported.
func TestDeletedHere(t *testing.T) {
	reported := make(reports, 1)
	c := rocltest.Cluster(t, 1).Open(0, reported.option())
	me, you := newResource(t, c, nil), newResource(t, c, nil)
	send(t, me, you.ID(), "12345")
	try.OK(t, you.Delete(bg))
	if u := <-reported; u.To != you.ID() || u.Bytes != 5 || !errors.Is(u.Err, dispatch.ErrGone) {
		t.Errorf("reported %+v", u)
	}
	for range 2 {
		try.Fails(me.SendBytes(bg, you.ID(), 0, nil))(t, dispatch.ErrGone, "sending")
	}
	if n := c.Stats().Buffers.InUse; n != 0 {
		t.Errorf("%d buffers out", n)
	}
}

// A resource is deleted while others send to it. Each message is received, refused or reported.
func TestDeleteDuringSends(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		var mu sync.Mutex
		reported := 0
		all := sync.NewCond(&mu)
		a, b := open(rocl.WithUndelivered(func(dispatch.Undelivered) {
			mu.Lock()
			reported++
			all.Signal()
			mu.Unlock()
		})), open()
		me := newResource(t, a, nil)
		accepted, received := 0, 0
		for round := range 50 {
			you := newResource(t, b, nil)
			reading, closed := make(chan int), make(chan struct{})
			end := sync.OnceFunc(func() { you.Close(); close(closed) })
			go func() {
				n := 0
				for m, err := range you.Messages(bg) {
					if err != nil {
						t.Error(err)
						break
					}
					m.Release()
					if n++; n == round {
						end()
					}
				}
				reading <- n
			}()
			for sent := 0; ; sent++ {
				if sent == round+100 { // a slow reader does not get more and more
					<-closed
				}
				err := me.SendBytes(bg, you.ID(), 0, []byte("hello"))
				if errors.Is(err, dispatch.ErrGone) {
					break
				}
				try.OK(t, err)
				if accepted++; round == 0 && accepted == 1 {
					end() // the reader got nothing to count
				}
			}
			received += <-reading
		}
		mu.Lock()
		defer mu.Unlock()
		for received+reported < accepted {
			all.Wait()
		}
		if received+reported != accepted {
			t.Errorf("%d accepted, %d received, %d reported", accepted, received, reported)
		}
	})
}

// Counting by compare-and-set loses no increment, however many goroutines count.
//
// Promise (Resources): Attributes change in place. A compare-and-set changes the revision that the
// caller saw or nothing, and concurrent changes lose none. See also TestConflict, TestSet.
func TestCompareAndSetCounts(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	c, other := cl.Open(0), cl.Open(0)
	r := newResource(t, c, resource.Attrs{"n": "0"})
	const workers, each = 8, 25
	var wg sync.WaitGroup
	var conflicts [workers]int
	for w := range workers {
		wg.Go(func() {
			for done := 0; done < each; {
				f, err := other.Lookup(bg, r.ID())
				if err != nil {
					t.Error(err)
					return
				}
				n, err := strconv.Atoi(f.Attrs.GetString("n"))
				if err != nil {
					t.Error(err)
					return
				}
				rev, err := r.CompareAndSet(bg, f.Revision, resource.Attrs{"n": fmt.Sprint(n + 1)})
				switch {
				case err == nil && rev == f.Revision+1:
					done++
				case errors.Is(err, directory.ErrRevision) && rev == 0:
					conflicts[w]++
				default:
					t.Errorf("revision %d after %d, %v", rev, f.Revision, err)
					return
				}
			}
		})
	}
	wg.Wait()
	f, err := other.Lookup(bg, r.ID())
	if err != nil || f.Attrs.GetString("n") != fmt.Sprint(workers*each) || f.Revision != workers*each+1 {
		t.Errorf("%v at revision %d, %v", &f.Attrs, f.Revision, err)
	}
	t.Log("conflicts:", conflicts)
}

// A conflict changes neither the attributes nor the revision, and watchers do not see it.
func TestConflict(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	r := newResource(t, c, resource.Attrs{"v": "1"})
	first := r.Revision()
	if first == 0 {
		t.Fatal("revision 0 means any")
	}
	try.OK(t, r.Update(bg, resource.Attrs{"v": "2"}))
	for _, rev := range []uint64{first, first + 2, 1 << 63} {
		try.Fails(r.CompareAndSet(bg, rev, resource.Attrs{"v": "3"}))(t, directory.ErrRevision, "at revision %d", rev)
	}
	f, err := c.Lookup(bg, r.ID())
	if err != nil || f.Attrs.GetString("v") != "2" || f.Revision != first+1 || r.Revision() != first+1 {
		t.Errorf("%v at revision %d (%d here), %v", &f.Attrs, f.Revision, r.Revision(), err)
	}
	try.Fails(c.Find(bg, resource.Match{"v": "1"}))(t, directory.ErrNotFound, "found by what it was")
	// Revision 0 stands for any revision, as in Update.
	if rev, err := r.CompareAndSet(bg, 0, resource.Attrs{}); err != nil || rev != first+2 {
		t.Errorf("revision %d, %v", rev, err)
	}
	if f, err = c.Lookup(bg, r.ID()); err != nil || f.Attrs.Len() != 0 {
		t.Errorf("%v, %v", &f.Attrs, err)
	}
}

func TestRevisionAfterUpdates(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	r := newResource(t, c, nil)
	for range 500 {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				try.Check(t, r.Update(bg, resource.Attrs{"v": "x"}))
			})
		}
		wg.Wait()
		f := try.Get(c.Lookup(bg, r.ID()))(t)
		if f.Revision != r.Revision() {
			t.Fatalf("revision %d in the directory, %d here", f.Revision, r.Revision())
		}
	}
}

// A registration or a deletion fails if its ctx has ended.
func TestRegisterEnded(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	ctx, cancel := context.WithCancel(bg)
	cancel()
	var failed int
	for range 100 {
		if _, err := c.Register(ctx, resource.Attrs{}); err != nil {
			failed++
		}
	}
	if n := everything(t, c); n != 100-failed {
		t.Errorf("%d of 100 registrations failed, and there are %d resources", failed, n)
	}
}

func TestDeleteEnded(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	r := newResource(t, c, resource.Attrs{})
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if err := r.Delete(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	gone(t, c, r.ID())
	try.Fails(r.Recv(bg))(t, dispatch.ErrClosed, "receiving")
}

func TestRegisterNothing(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	try.Fails(c.Find(bg, nil))(t, directory.ErrNotFound)
	r := try.Get(c.Register(bg, nil))(t)
	try.Check(t, r.Update(bg, nil))
}

// A message without bytes can be sent on like any other.
func TestPassOnEmpty(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		me, echo := newResource(t, a, nil), newResource(t, b, nil)
		for _, n := range []int{0, 1, 3000, 100_000} {
			try.OK(t, me.SendBytes(bg, echo.ID(), 7, make([]byte, n)))
			m := recv(t, echo)
			p := m.Buffer()
			if p == nil {
				t.Fatalf("a message of %d bytes has no buffer", n)
			}
			err := echo.Send(bg, m.From(), m.Tag(), p)
			m.Release()
			try.OK(t, err)
			if m, err = me.Recv(bg, dispatch.From(echo.ID()), dispatch.Tag(7)); err != nil || m.Len() != n {
				t.Fatalf("%v, %v", m, err)
			}
			m.Release()
		}
	})
}

// A loop over messages can be left early, and ends with its ctx or with the resource.
func TestMessages(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	r := newResource(t, c, nil)
	for range 3 {
		send(t, r, r.ID(), "hello")
	}
	for m, err := range r.Messages(bg) {
		try.OK(t, err)
		m.Release()
		break
	}
	if n, bytes := r.Waiting(); n != 2 || bytes < 10 {
		t.Errorf("%d messages of %d bytes wait", n, bytes)
	}
	ctx, cancel := context.WithCancel(bg)
	n := 0
	for m, err := range r.Messages(ctx) {
		try.OK(t, err)
		m.Release()
		if n++; n == 2 {
			cancel()
		}
	}
	cancel()
	if n != 2 {
		t.Errorf("%d messages", n)
	}
	ended := make(chan error, 1)
	go func() {
		for m, err := range r.Messages(bg) {
			ended <- fmt.Errorf("%v, %w", m, err)
			return
		}
		ended <- nil
	}()
	try.Check(t, r.Delete(bg))
	try.Check(t, <-ended, "after the resource")
}

// Gone does not concern messages: a receiver that has got the event Gone still receives what the
// resource sent before.
//
// Promise (Watches): Events and messages have no order among each other. `Gone` loses no message.
func TestGoneBeforeMessages(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		from := newResource(t, a, resource.Attrs{"role": "sender"})
		to := newResource(t, b, resource.Attrs{"role": "receiver"})
		for ev, err := range b.Watch(bg, resource.Match{"role": "sender"}) {
			try.OK(t, err)
			if ev.Kind == directory.Synced {
				send(t, from, to.ID(), "first")
				send(t, from, to.ID(), "last")
				try.OK(t, from.Delete(bg))
			}
			if ev.Kind == directory.Gone {
				break
			}
		}
		expect(t, to, "first")
		expect(t, to, "last")
	})
}

// Changes of a resource that is deleted meanwhile succeed, or fail with ErrClosed.
func TestChangeWhileDeleted(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	for range 300 {
		r := newResource(t, c, nil)
		var all, begun sync.WaitGroup
		begun.Add(2)
		for _, change := range []func() error{
			func() error { return r.Update(bg, resource.Attrs{"a": "1"}) },
			func() error { return r.Set(bg, "a", "2") },
		} {
			all.Go(func() {
				err := change()
				for begun.Done(); err == nil; {
					err = change()
				}
				if !errors.Is(err, dispatch.ErrClosed) {
					t.Error(err)
				}
			})
		}
		begun.Wait()
		try.Check(t, r.Delete(bg))
		all.Wait()
	}
}
