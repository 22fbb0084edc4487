// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Two snapshots tell how many calls a server handles a second, and how long they take. Calls of
// long ago do not count, and figures that are lies break nothing.
//
// Promise (Observing): The page and rocl top show how many calls a server handles a second, and
// their latency.
func TestHandlers(t *testing.T) {
	var o observe.Observer
	now := time.Now()
	see := func(after time.Duration, h rocl.HandlerSnapshot) observe.Handler {
		t.Helper()
		now = now.Add(after)
		v := &observe.View{Taken: now, Contexts: []observe.Context{process(1, "server", has("name=x", func(r *rocl.ResourceSnapshot) { r.Handlers = []rocl.HandlerSnapshot{h} }))}}
		v.Clean()
		o.Add(v)
		rows := o.Handlers()
		try.Equal(t, len(rows), 1, "rows")
		return rows[0]
	}
	between := func(what string, got, least, most time.Duration) {
		t.Helper()
		if got < least || got > most {
			t.Errorf("%s: %v, not from %v to %v", what, got, least, most)
		}
	}
	took := make([]uint64, 24)
	took[20] = 1e9 // before anybody looked
	first := see(0, rocl.HandlerSnapshot{Name: "read", Ended: 1e9, Took: took})
	if first.Rate != 0 || first.Median != 0 || first.P99 != 0 || first.Of != "name=x" || first.Name != "read" {
		t.Errorf("the first: %+v", first)
	}
	took = append([]uint64(nil), took...)
	took[3], took[10] = 98, 2 // up to 8.192 µs, and up to 1.05 ms
	h := see(2*time.Second, rocl.HandlerSnapshot{Name: "read", Ended: 1e9 + 800, Errors: 10, Took: took})
	try.Equal(t, h.Rate, 400.0, "calls a second")
	try.Equal(t, h.Failed, 5.0, "errors a second")
	between("median", h.Median, 4096, 8192)
	between("p99", h.P99, 524288, 1048576)

	took = append([]uint64(nil), took...)
	took[5] = 1000 // later ones
	h = see(10*time.Minute, rocl.HandlerSnapshot{Name: "read", Ended: 1e9 + 1800, Errors: 10, Took: took})
	between("median of later ones", h.Median, 16384, 32768)
	between("p99 of later ones", h.P99, 16384, 32768)
	h = see(time.Minute, rocl.HandlerSnapshot{Name: "read", Ended: 1e9 + 1800, Errors: 10, Took: took})
	try.Equal(t, h.Rate, 0, "calls a second, when none ended")
	h = see(10*time.Minute, rocl.HandlerSnapshot{Name: "read", Ended: 1e9 + 1800, Errors: 10, Took: took})
	try.Equal(t, h.Median, 0, "the median, when none was timed lately")

	took = append([]uint64(nil), took...)
	took[23] += 5
	h = see(time.Second, rocl.HandlerSnapshot{Name: "read", Took: append(took, 1<<63, 7)}) // it began anew, and tells more than it may
	if h.Rate != 0 || h.Median <= 0 || h.P99 <= 0 {
		t.Errorf("after a lie: %+v", h)
	}
	h = see(time.Second, rocl.HandlerSnapshot{Name: "read", Took: []uint64{1 << 63}})
	if h.Median < 0 || h.P99 < h.Median {
		t.Errorf("after another lie: %+v", h)
	}
	h = see(time.Second, rocl.HandlerSnapshot{Name: "write"})
	try.Equal(t, h.Rate, 0, "another call")
}
