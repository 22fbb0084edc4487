// SPDX-License-Identifier: Apache-2.0

//go:build unix

package directory

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// Asking goroutines that give up a question without an answer leave no connections in the server.
func TestHangup(t *testing.T) {
	_, s, c := begun(t)
	s.Attach(silent(nil))
	p := list(t, resource.Match{"a": "b"})
	var wg sync.WaitGroup
	for i := range 90 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*slowQuestion/30)
			defer cancel()
			var err error
			switch i % 3 {
			case 0:
				_, err = c.Find(ctx, p)
			case 1:
				for _, err = range c.FindAll(ctx, p) {
				}
			default:
				_, err = c.Trace(ctx, strategy.Auto, p)
			}
			try.Fails(err)(t, context.DeadlineExceeded)
		})
	}
	wg.Wait()
	eventually.True(t, "only the registration connection is left", func() bool { return s.Stats().Connections == 1 })
}

// A client that waits gets its answers, also for several questions on one connection, and also if
// it sends the next question before the answer.
func TestNoHangup(t *testing.T) {
	path := sock(t)
	s := serve(t, path)
	s.Attach(&remote{find: func(context.Context) (resource.Record, error) {
		time.Sleep(slowQuestion + time.Millisecond) // the server looks whether the client has hung up
		return resource.Record{}, ErrNotFound
	}})
	k := raw(t, DialSocket(path), wire.KindAsk)
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
		try.OK(t, k.Send())
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
	l := try.Get(net.Listen("unix", filepath.Join(t.TempDir(), "s")))(t)
	defer l.Close()
	c := try.Get(net.Dial("unix", l.Addr().String()))(t)
	defer c.Close()
	stop := onHangup(c, func() { t.Error("the other end has not hung up") })
	stop()
	stop() // must return
}
