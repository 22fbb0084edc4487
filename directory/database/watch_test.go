package database

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/rocl-go/rocl/resource"
)

// What others tell a watch comes before Synced while it is held, once for each
// resource however often it changes unread, and ends as it began.
func TestHeldWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New()
		var p resource.List
		_ = p.AddString("a", "1")
		here, there := resource.MakeGID(1, 1, 1), resource.MakeGID(2, 1, 1)
		if _, err := d.Put(here, here.Context(), &p); err != nil {
			t.Fatal(err)
		}
		w := d.Watch(&p)
		w.Hold()
		want := func(kind Kind, id resource.GID, rev uint64) {
			t.Helper()
			ev, err := w.Next(t.Context())
			if err != nil || ev.Kind != kind || ev.ID != id || ev.Revision != rev {
				t.Fatalf("%v %v, revision %d, %v; want %v %v, %d", ev.Kind, ev.ID, ev.Revision, err, kind, id, rev)
			}
		}
		want(Appeared, here, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			cancel()
		}()
		if ev, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("while held: %v, %v", ev.Kind, err)
		}
		w.Untell(there) // never told
		w.Tell(Record{ID: there, Revision: 1, Attrs: p})
		w.Tell(Record{ID: there, Revision: 2, Attrs: p})
		w.Release()
		w.Tell(Record{ID: there.WithSerial(2), Revision: 7, Attrs: p}) // too late
		want(Appeared, there, 2)
		want(Synced, resource.GID{}, 0)
		want(Appeared, there.WithSerial(2), 7)
		w.Hold() // it has been told
		w.Tell(Record{ID: there, Revision: 3, Attrs: p})
		want(Changed, there, 3)
		w.Release()
		w.Untell(there)
		w.Untell(there)
		want(Gone, there, 3)
		w.Tell(Record{ID: there, Revision: 4, Attrs: p}) // comes and goes unread
		w.Untell(there)
		if err := d.Delete(here); err != nil {
			t.Fatal(err)
		}
		want(Gone, here, 1)
		w.Close()
		if _, err := w.Next(t.Context()); !errors.Is(err, ErrWatchClosed) {
			t.Error(err)
		}
	})
}
