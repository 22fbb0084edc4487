// SPDX-License-Identifier: Apache-2.0

package context_test

import (
	"errors"
	"testing"

	"github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
)

// trySend calls TrySend until it returns something other than ErrFull.
func trySend(t *testing.T, r *context.Resource, to resource.GID) (err error) {
	t.Helper()
	b, err := r.Context().Buffer(10)
	must(t, err)
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
	eachTransport(t, func(t *testing.T, open func(...context.Option) *context.Context) {
		a, b := open(), open()
		me, you := register(t, a, nil), register(t, b, nil)
		must(t, trySend(t, me, you.ID()))
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
		other := register(t, b, nil)
		p, err := a.Buffer(10)
		must(t, err)
		noErr(t, me.TrySend(other.ID(), 7, p))
		if m, err = other.Recv(bg); err != nil {
			t.Fatal(err)
		}
		m.Release()
		must(t, you.Close())
		eventually.True(t, "the end is known", func() bool { // until then a send may be accepted
			err = trySend(t, me, you.ID())
			return err != nil
		})
		if !errors.Is(err, dispatch.ErrGone) {
			t.Errorf("a resource that was deleted: %v", err)
		}
		must(t, me.Close())
		fails(t, trySend(t, me, other.ID()), dispatch.ErrClosed, "from a deleted resource")
	})
}

// An error of the directory is returned for a while only: then TrySend has the directory asked
// again.
func TestTrySendOldError(t *testing.T) {
	s := newServers(t)
	c := s.in(t)
	o := &others{Remote: directory.Unreachable(errors.New("no member is reached"))}
	s.now.Attach(o)
	me, there := register(t, c, nil), resource.MakeGID(c.ID().Node()+1, 1, 1)
	b, err := c.Buffer(1)
	must(t, err)
	defer b.Release()
	if err := me.TrySend(there, 0, b); err != dispatch.ErrFull {
		t.Fatal(err)
	}
	eventually.True(t, "the directory has answered", func() bool { return c.AgeLookups() == 1 })
	if err := me.TrySend(there, 0, b); err != dispatch.ErrFull {
		t.Error("an old error:", err)
	}
	fails(t, trySend(t, me, there), directory.ErrPartial)
}

// Calls that do not wait, to very many targets, keep a limited number of questions.
func TestTrySendToMany(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	me := register(t, c, nil)
	b, err := c.Buffer(1)
	must(t, err)
	defer b.Release()
	for i := range uint32(10_000) {
		if err := me.TrySend(resource.MakeGID(1, 2, i+1), 0, b); err != dispatch.ErrFull {
			t.Fatal(err)
		}
	}
	noErr(t, c.Close())
	fails(t, me.TrySend(resource.MakeGID(1, 2, 1), 0, b), dispatch.ErrClosed, "as the context has been closed")
}
