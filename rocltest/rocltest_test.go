// SPDX-License-Identifier: Apache-2.0

package rocltest_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func talk(t *testing.T, opts ...rocl.Option) {
	ctx := context.Background()
	c := rocltest.Cluster(t, 2)
	a, b := c.Open(0, opts...), c.Open(1, opts...)
	if a.ID().Node() == b.ID().Node() {
		t.Fatal("two nodes have one number")
	}
	srv := try.Get(b.Register(ctx, rocl.Attrs{"type": "server", "load": "3"}))(t)
	me := try.Get(a.Register(ctx, rocl.Attrs{"type": "client"}))(t)
	found := try.Get(a.Find(ctx, rocl.Match{"type": "server"}, rocl.Want("load")))(t)
	if found.ID != srv.ID() || found.Attrs.GetString("load") != "3" {
		t.Fatalf("found %v %v", found.ID, &found.Attrs)
	}
	try.OK(t, me.SendBytes(ctx, found.ID, 7, []byte("hello")))
	m := try.Get(srv.Recv(ctx))(t)
	if string(m.Bytes()) != "hello" || m.From() != me.ID() || m.Tag() != 7 {
		t.Fatalf("got %q from %v tag %d", m.Bytes(), m.From(), m.Tag())
	}
	try.OK(t, srv.Send(ctx, m.From(), 8, m.Buffer()))
	m.Release()
	if m = try.Get(me.Recv(ctx, rocl.From(srv.ID()), rocl.Tag(8)))(t); string(m.Bytes()) != "hello" {
		t.Fatalf("got %q back", m.Bytes())
	}
	m.Release()
}

// A testOf stands for a test that ends before t.
type testOf struct {
	testing.TB
	cleanups []func()
	hasEnded bool
}

func (t *testOf) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *testOf) Log(...any) {
	if t.hasEnded {
		t.Error("a line was logged after the end of the test, for which t.Log panics")
	}
}

// A line that a context logs when the test has ended is dropped.
func TestLogAfterTest(t *testing.T) {
	ends := &testOf{TB: t}
	log := rocltest.Cluster(ends, 1).Logger()
	for _, f := range slices.Backward(ends.cleanups) {
		f()
	}
	ends.hasEnded = true
	log.Warn("from a goroutine that Close does not wait for")
}

func TestInMemory(t *testing.T) { talk(t) }

func TestOverTCP(t *testing.T) { talk(t, rocltest.TCP()) }

func TestInSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		talk(t)
		if d := time.Since(start); d > time.Minute {
			t.Errorf("took %v of virtual time", d)
		}
	})
}
