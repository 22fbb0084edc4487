// SPDX-License-Identifier: Apache-2.0

package context_test

import (
	stdctx "context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bg is the context of calls without a limit.
var bg = stdctx.Background()

// transports are the options with which tests of messages run.
var transports = map[string][]context.Option{"inproc": nil, "tcp": {rocltest.TCP()}}

// eachTransport runs f with each transport, on a node of its own.
func eachTransport(t *testing.T, f func(t *testing.T, open func(...context.Option) *context.Context)) {
	for name, opts := range transports {
		t.Run(name, func(t *testing.T) {
			cl := rocltest.Cluster(t, 1)
			f(t, func(more ...context.Option) *context.Context { return cl.Open(0, append(opts, more...)...) })
		})
	}
}

// must ends the test if err is not nil. what, a format with its values, says what has returned err.
func must(t testing.TB, err error, what ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(say(err, what))
	}
}

// noErr fails the test if err is not nil, and lets it go on.
func noErr(t testing.TB, err error, what ...any) {
	t.Helper()
	if err != nil {
		t.Error(say(err, what))
	}
}

// fails checks that err matches want.
func fails(t testing.TB, err, want error, what ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v; want %v", say(err, what), want)
	}
}

// say returns the text of err behind that of what.
func say(err error, what []any) string {
	if len(what) == 0 {
		return fmt.Sprint(err)
	}
	return fmt.Sprintf(what[0].(string), what[1:]...) + fmt.Sprint(": ", err)
}

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }

func register(t *testing.T, c *context.Context, a resource.Attrs) *context.Resource {
	t.Helper()
	r, err := c.Register(bg, a)
	must(t, err)
	return r
}

func send(t *testing.T, from *context.Resource, to resource.GID, text string) {
	t.Helper()
	must(t, from.SendBytes(bg, to, 0, []byte(text)))
}

// recv receives one message.
func recv(t testing.TB, r *context.Resource, sel ...dispatch.Select) *dispatch.Message {
	t.Helper()
	m, err := r.Recv(bg, sel...)
	must(t, err)
	return m
}

// expect receives one message and compares it.
func expect(t *testing.T, r *context.Resource, text string) {
	t.Helper()
	m := recv(t, r)
	defer m.Release()
	if string(m.Bytes()) != text {
		t.Fatalf("received %q, want %q", m.Bytes(), text)
	}
}

// all collects what a find yields.
func all(t testing.TB, found iter.Seq2[context.Found, error]) (fs []context.Found) {
	t.Helper()
	for f, err := range found {
		must(t, err)
		fs = append(fs, f)
	}
	return fs
}

// idsOf returns the identifiers of what was found, in order.
func idsOf(fs []context.Found) (ids []resource.GID) {
	for _, f := range fs {
		ids = append(ids, f.ID)
	}
	slices.SortFunc(ids, resource.GID.Compare)
	return ids
}

// registered returns the addresses that the directory has of a context.
func registered(t testing.TB, c *context.Context) (addrs []string) {
	t.Helper()
	f, err := c.Lookup(bg, c.ID())
	must(t, err)
	for v := range f.Attrs.Values(context.AttrAddr) {
		addrs = append(addrs, string(v))
	}
	return addrs
}

// questions returns how many questions f puts to the directory.
func questions(c *context.Context, f func()) uint64 {
	before := c.Stats().Questions
	f()
	return c.Stats().Questions - before
}

// reports collects the messages that a context could not deliver.
type reports chan dispatch.Undelivered

func (r reports) option() context.Option {
	return context.WithUndelivered(func(u dispatch.Undelivered) { r <- u })
}

// refused sends to a resource that is gone until Send fails. Messages that were accepted before the
// end was known must be reported.
func refused(t *testing.T, from *context.Resource, to resource.GID, reported reports) {
	t.Helper()
	for range 2 {
		err := from.SendBytes(bg, to, 0, []byte("too late"))
		if errors.Is(err, dispatch.ErrGone) {
			return
		}
		must(t, err, "sending to what is gone")
		if u := <-reported; u.To != to || !errors.Is(u.Err, dispatch.ErrGone) {
			t.Fatalf("reported %+v", u)
		}
	}
	t.Fatal("sends to what is gone are accepted again and again")
}

// gone waits until the directory has noticed that the context of id has ended.
func gone(t *testing.T, c *context.Context, id resource.GID) {
	t.Helper()
	there := false
	for ev, err := range c.Watch(bg, resource.Match{}) {
		must(t, err)
		there = there || ev.ID == id
		if ev.Kind == directory.Synced && !there || ev.Kind == directory.Gone && ev.ID == id {
			break
		}
	}
	if _, err := c.Lookup(bg, id); !errors.Is(err, directory.ErrNotFound) {
		t.Fatalf("looking up what is gone: %v", err)
	}
}
