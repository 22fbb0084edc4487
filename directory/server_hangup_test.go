// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"iter"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/resource"
)

// mute is a Remote that does not answer.
type mute struct{ nowhere }

func (mute) Find(ctx context.Context, _ *resource.List) (resource.Record, error) {
	<-ctx.Done()
	return resource.Record{}, context.Cause(ctx)
}

func (m mute) All(ctx context.Context, p *resource.List, _ *Coverage) iter.Seq2[resource.Record, error] {
	return func(yield func(resource.Record, error) bool) { yield(m.Find(ctx, p)) }
}

func (m mute) Trace(ctx context.Context, _ strategy.Strategy, p *resource.List) (Trace, error) {
	return Trace{}, second(m.Find(ctx, p))
}

// second returns the error of two results.
func second[T any](_ T, err error) error { return err }

// Asking goroutines that give up a question without an answer leave no connections in the server.
func TestHangup(t *testing.T) {
	path := sock(t)
	s := serve(t, path)
	c := joined(t, path)
	s.Attach(mute{nowhere{t}})
	p := list(t, resource.Match{"a": "b"})
	var wg sync.WaitGroup
	for i := range 90 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*slowQuestion/30)
			defer cancel()
			var err error
			switch i % 3 {
			case 0:
				err = second(c.Find(ctx, p))
			case 1:
				for _, err = range c.FindAll(ctx, p) {
				}
			default:
				err = second(c.Trace(ctx, strategy.Auto, p))
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	eventually.True(t, "only the life connection is left", func() bool { return s.Stats().Connections == 1 })
}

// slow is a Remote that answers "not found" after a while.
type slow struct{ nowhere }

func (slow) Find(context.Context, *resource.List) (resource.Record, error) {
	time.Sleep(slowQuestion + time.Millisecond) // the server looks whether the client has hung up
	return resource.Record{}, ErrNotFound
}

// A client that waits gets its answers, also for several questions on one connection, and also if
// it sends the next question before the answer.
func TestNoHangup(t *testing.T) {
	path := sock(t)
	s := serve(t, path)
	s.Attach(slow{nowhere{t}})
	nc, err := DialSocket(path)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_, _ = nc.Write(wire.Greeting(wire.KindAsk))
	k := wire.NewConn(nc)
	read := func(id uint64) {
		t.Helper()
		if m, err := k.ReadMessage(); err != nil || m.ID != id || m.Type != wire.MsgError {
			t.Fatalf("%d: %+v: %v", id, m, err)
		}
	}
	const n = 5
	for i := range uint64(n) {
		k.Begin(wire.MsgFind, i)
		k.Append(list(t, resource.Match{"a": "b"}).Wire())
		if err := k.Send(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			read(0) // no other question follows the first one
		}
	}
	for i := range uint64(n - 1) {
		read(i + 1)
	}
}

// A question that is answered in batches calls stop of onHangup twice.
func TestHangupStoppedTwice(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stop := onHangup(c, func() { t.Error("the other end has not hung up") })
	stop()
	stop() // must return
}
