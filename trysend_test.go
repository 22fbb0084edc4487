// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"errors"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
)

// trySend calls TrySend until it returns something other than ErrFull.
func trySend(t *testing.T, r *rocl.Resource, to resource.GID) (err error) {
	t.Helper()
	b := try.Get(r.Context().Buffer(10))(t)
	eventually.True(t, "TrySend needs no credit", func() bool {
		err = r.TrySend(to, 7, b)
		return err != dispatch.ErrFull
	})
	if err != nil {
		b.Release()
	}
	return err
}

// TrySend to a resource that this context does not know has the directory asked, and succeeds
// later. For a resource that does not exist, or has ended, it fails as Send does.
func TestTrySendAsks(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		me, you := newResource(t, a, nil), newResource(t, b, nil)
		try.OK(t, trySend(t, me, you.ID()))
		m, err := you.Recv(bg)
		if err != nil || m.Tag() != 7 {
			t.Fatal(m, err)
		}
		m.Release()
		for what, id := range map[string]resource.GID{
			"zero": {}, "a context": b.ID(), "no such context": resource.MakeGID(1, 2, 3), "no such resource": b.ID().WithSerial(1 << 20),
		} {
			err := trySend(t, me, id)
			if what == "no such resource" && err == nil { // accepted, and reported as undelivered later
				err = trySend(t, me, id)
			}
			if !errors.Is(err, dispatch.ErrGone) && what != "no such resource" {
				t.Errorf("%s: %v", what, err)
			}
		}
		// Another resource of the same context gets its message at once.
		other := newResource(t, b, nil)
		p := try.Get(a.Buffer(10))(t)
		try.Check(t, me.TrySend(other.ID(), 7, p))
		if m, err = other.Recv(bg); err != nil {
			t.Fatal(err)
		}
		m.Release()
		try.OK(t, you.Close())
		eventually.True(t, "the end is known", func() bool { // until then a send may be accepted
			err = trySend(t, me, you.ID())
			return err != nil
		})
		if !errors.Is(err, dispatch.ErrGone) {
			t.Errorf("a resource that was deleted: %v", err)
		}
		try.OK(t, me.Close())
		try.Fails(trySend(t, me, other.ID()))(t, dispatch.ErrClosed, "from a deleted resource")
	})
}

// Calls that do not wait, to very many targets, keep a limited number of questions.
func TestTrySendToMany(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	me := newResource(t, c, nil)
	b := try.Get(c.Buffer(1))(t)
	defer b.Release()
	for i := range uint32(10_000) {
		if err := me.TrySend(resource.MakeGID(1, 2, i+1), 0, b); err != dispatch.ErrFull {
			t.Fatal(err)
		}
	}
	try.Check(t, c.Close())
	try.Fails(me.TrySend(resource.MakeGID(1, 2, 1), 0, b))(t, dispatch.ErrClosed, "as the context has been closed")
}
