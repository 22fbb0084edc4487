// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

// sites are the values of an attribute that many resources share.
var sites = []string{"porto", "braga", "lisboa", "faro"}

// describe makes l the attributes of resource i, and returns the bytes of their names and values.
// Two of the four attributes are unique.
func describe(l *resource.List, i int) (bytes int) {
	l.Reset()
	name, site := nameOf(i), sites[i%len(sites)]
	check(errors.Join(l.AddString("type", "worker"), l.AddString("site", site), l.AddString("name", name), l.AddString("slot", name)))
	return len("typeworkersitenameslot") + len(site) + 2*len(name)
}

// heapBytes returns how many bytes of the heap are in use.
func heapBytes() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// db registers --count resources in a new database of this process, and finds some of them again by
// an exact match.
func db(ctx context.Context, o *options) []*Result {
	all := make([]resource.List, min(o.count, 1<<16)) // used again and again
	for i := range all {                              // their memory is allocated before the count begins
		describe(&all[i], i)
	}
	before, own, took := heapBytes(), 0, time.Duration(0)
	d, owner := directory.NewDatabase(), resource.MakeGID(1, 1, 0)
	for done := 0; done < o.count; done += len(all) {
		proceed(ctx)
		some := all[:min(len(all), o.count-done)]
		for i := range some {
			own += describe(&some[i], done+i)
		}
		start := time.Now()
		for i := range some {
			must(d.Put(owner.WithSerial(uint32(done+i+1)), owner, &some[i]))
		}
		took += time.Since(start)
	}
	each := (heapBytes() - before - float64(own)) / float64(o.count)
	for i := range all {
		describe(&all[i], i*7919%o.count)
	}
	next := 0
	find := func() {
		if _, ok := d.Find(&all[next%len(all)]); !ok {
			check(rocl.ErrNotFound)
		}
		next++
	}
	many, one := newTimes(), newTimes() // a single find shows the slow ones, and takes hardly more than reading the clock
	many.batch(ctx, len(all), find)
	one.round(len(all), find)
	runtime.KeepAlive(d)
	r := &Result{Case: Case{Bench: "db"}, Count: o.count, Unit: "registrations/s", What: "the required 700,000", Limits: []Limit{atLeast("ratio", 1)}, P50: many.mid(), P99: one.quantile(99)}
	puts := limit(float64(o.count) / took.Seconds())
	r.compare(puts, limit(700_000))
	r.Extra = fmt.Sprintf("%.0f bytes a resource beyond its attributes (at most 350); exact find p50 %.2f µs, p99 %.2f (at most 1 µs)", each, r.P50, r.P99)
	return []*Result{r}
}
