// SPDX-License-Identifier: Apache-2.0

package eventually

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Within calls its function until the time is over, and waits no longer than that.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, calls := time.Now(), 0
		if Within(time.Minute, func() bool { calls++; return false }) {
			t.Error("what never is has become true")
		}
		if d := time.Since(begun); d < time.Minute || d > time.Minute+time.Second || calls < 1000 {
			t.Errorf("given up after %v and %d calls", d, calls)
		}
		if !Within(0, func() bool { return true }) {
			t.Error("what is true already is not seen")
		}
	})
}

// A process that was stopped for an hour, here by a call that takes an hour, has waited for a
// second.
func TestStoppedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		True(t, "the third call", func() bool {
			calls++
			if calls < 3 {
				time.Sleep(time.Hour)
			}
			return calls == 3
		})
	})
}

// A failing is a test that notes that it has failed, and goes on.
type failing struct {
	testing.TB
	name   string
	failed int
}

func (f *failing) Name() string          { return f.name }
func (f *failing) Fatalf(string, ...any) { f.failed++ }

// When a wait has used up its time, further waits of the same test end soon. Those of another test
// do not.
func TestSpent(t *testing.T) {
	waits := map[string]func(t testing.TB){
		"True":    func(t testing.TB) { True(t, "it", func() bool { return false }) },
		"Value":   func(t testing.TB) { Value(t, "it", make(chan int)) },
		"Context": func(t testing.TB) { <-Context(t).Done(); t.Fatalf("") },
	}
	for first, wait := range waits {
		synctest.Test(t, func(t *testing.T) {
			most := func(name string, d time.Duration, wait func(testing.TB)) {
				f, begun := &failing{TB: t, name: name}, time.Now()
				wait(f)
				if took := time.Since(begun); took > d+time.Second || took < d || f.failed != 1 {
					t.Errorf("behind %s: %s: after %v, %d failures", first, name, took, f.failed)
				}
				synctest.Wait()
			}
			most("Test"+first+"/a", Timeout, wait)
			for next, wait := range waits {
				most("Test"+first+"/"+next, hurried, wait)
			}
			most("TestOther", Timeout, waits["Value"])
		})
	}
}

// The context of a test has not ended when the test's cleanup functions run, and may be made by
// one.
func TestContext(t *testing.T) {
	var ctx context.Context
	t.Run("it", func(t *testing.T) {
		ctx = Context(t)
		t.Cleanup(func() {
			try.Check(t, errors.Join(ctx.Err(), Context(t).Err()), "within a cleanup function")
		})
	})
	try.Fails(ctx.Err())(t, context.Canceled, "after the test")
}
