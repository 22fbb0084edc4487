// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
)

// bg is the context of calls without a limit.
var bg = context.Background()

// transports are the options with which tests of messages run.
var transports = map[string][]rocl.Option{"inproc": nil, "tcp": {rocltest.TCP()}}

// eachTransport runs f with each transport, on a node of its own.
func eachTransport(t *testing.T, f func(t *testing.T, open func(...rocl.Option) *rocl.Context)) {
	for name, opts := range transports {
		t.Run(name, func(t *testing.T) {
			cl := rocltest.Cluster(t, 1)
			f(t, func(more ...rocl.Option) *rocl.Context { return cl.Open(0, append(opts, more...)...) })
		})
	}
}

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }

func newResource(t *testing.T, c *rocl.Context, a resource.Attrs) *rocl.Resource {
	t.Helper()
	r := try.Get(c.Register(bg, a))(t)
	return r
}

func send(t *testing.T, from *rocl.Resource, to resource.GID, text string) {
	t.Helper()
	try.OK(t, from.SendBytes(bg, to, 0, []byte(text)))
}

// recv receives one message.
func recv(t testing.TB, r *rocl.Resource, sel ...dispatch.Select) *dispatch.Message {
	t.Helper()
	m := try.Get(r.Recv(bg, sel...))(t)
	return m
}

// expect receives one message and compares it.
func expect(t *testing.T, r *rocl.Resource, text string) {
	t.Helper()
	m := recv(t, r)
	defer m.Release()
	if string(m.Bytes()) != text {
		t.Fatalf("received %q, want %q", m.Bytes(), text)
	}
}

// all collects what a find yields.
func all(t testing.TB, found iter.Seq2[rocl.Found, error]) (fs []rocl.Found) {
	t.Helper()
	for f, err := range found {
		try.OK(t, err)
		fs = append(fs, f)
	}
	return fs
}

// idsOf returns the identifiers of what was found, in order.
func idsOf(fs []rocl.Found) (ids []resource.GID) {
	for _, f := range fs {
		ids = append(ids, f.ID)
	}
	slices.SortFunc(ids, resource.GID.Compare)
	return ids
}

// registered returns the addresses that the directory has of a context.
func registered(t testing.TB, c *rocl.Context) (addrs []string) {
	t.Helper()
	f := try.Get(c.Lookup(bg, c.ID()))(t)
	for v := range f.Attrs.Values(rocl.AttrAddr) {
		addrs = append(addrs, string(v))
	}
	return addrs
}

// questions returns how many questions f puts to the directory.
func questions(c *rocl.Context, f func()) uint64 {
	before := c.Stats().Questions
	f()
	return c.Stats().Questions - before
}

// reports collects the messages that a context could not deliver.
type reports chan dispatch.Undelivered

func (r reports) option() rocl.Option {
	return rocl.WithUndelivered(func(u dispatch.Undelivered) { r <- u })
}

// refused sends to a resource that is gone until Send fails. Messages that were accepted before the
// end was known must be reported.
func refused(t *testing.T, from *rocl.Resource, to resource.GID, reported reports) {
	t.Helper()
	for range 2 {
		err := from.SendBytes(bg, to, 0, []byte("too late"))
		if errors.Is(err, dispatch.ErrGone) {
			return
		}
		try.OK(t, err, "sending to what is gone")
		if u := <-reported; u.To != to || !errors.Is(u.Err, dispatch.ErrGone) {
			t.Fatalf("reported %+v", u)
		}
	}
	t.Fatal("sends to what is gone are accepted again and again")
}

// gone waits until the directory has noticed that the context of id has ended.
func gone(t *testing.T, c *rocl.Context, id resource.GID) {
	t.Helper()
	there := false
	for ev, err := range c.Watch(bg, resource.Match{}) {
		try.OK(t, err)
		there = there || ev.ID == id
		if ev.Kind == directory.Synced && !there || ev.Kind == directory.Gone && ev.ID == id {
			break
		}
	}
	if _, err := c.Lookup(bg, id); !errors.Is(err, directory.ErrNotFound) {
		t.Fatalf("looking up what is gone: %v", err)
	}
}
