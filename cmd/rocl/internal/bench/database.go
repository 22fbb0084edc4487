// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

// A measurement is what measureDatabase has measured.
type measurement struct {
	Resources     int
	PutsPerSecond float64
	BytesEach     float64 // without the bytes of the attributes' names and values
	FindP50       time.Duration
	FindP99       time.Duration
}

// measureDatabase registers n resources of four attributes in a new database, and finds some of
// them again by an exact match. Two attributes of each resource are unique. If ctx ends, it returns
// early, and the figures mean nothing.
func measureDatabase(ctx context.Context, n int) measurement {
	lists := make(measuredLists, min(n, 1<<16))
	for i := range lists { // the lists' memory is allocated before the count begins
		lists.build(i, i)
	}
	before := heapBytes()
	d := directory.NewDatabase()
	took, own := lists.put(ctx, d, n)
	m := measurement{Resources: n, PutsPerSecond: float64(n) / took.Seconds()}
	m.BytesEach = (float64(heapBytes()) - float64(before) - float64(own)) / float64(n)
	m.FindP50, m.FindP99 = lists.find(d, n)
	runtime.KeepAlive(d)
	return m
}

// heapBytes returns how many bytes of the heap are in use.
func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// measuredLists are the lists of some of the resources of measureDatabase. They are used again for
// others.
type measuredLists []resource.List

// sites are the values of an attribute that many resources of measureDatabase share.
var sites = []string{"porto", "braga", "lisboa", "faro"}

// build makes list at the list of resource i.
func (lists measuredLists) build(at, i int) {
	l := &lists[at]
	l.Reset()
	var id [8]byte
	binary.LittleEndian.PutUint64(id[:], uint64(i))
	_ = l.AddString("type", "worker")
	_ = l.AddString("site", sites[i%len(sites)])
	_ = l.Add("serial", id[:])
	_ = l.Add("slot", append(id[:], 's'))
}

// put registers n resources in d. It returns the time that this took without building the lists,
// and the bytes of the attributes' names and values.
func (lists measuredLists) put(ctx context.Context, d *directory.Database, n int) (took time.Duration, own int) {
	owner := resource.MakeGID(1, 1, 0)
	for done := 0; done < n && ctx.Err() == nil; {
		k := min(len(lists), n-done)
		for i := range k {
			lists.build(i, done+i)
			own += len("typeworkersite") + len(sites[(done+i)%len(sites)]) + len("serial") + 8 + len("slot") + 9
		}
		start := time.Now()
		for i := range k {
			_, _ = d.Put(owner.WithSerial(uint32(done+i+1)), owner, &lists[i])
		}
		took += time.Since(start)
		done += k
	}
	return took, own
}

// find finds resources of the n in d, and returns the median of the times and the time that 99 of
// 100 finds do not exceed. Slow finds are timed one by one. For the median, sixteen finds are timed
// together, because reading the clock takes a good part of the time of one.
func (lists measuredLists) find(d *directory.Database, n int) (p50, p99 time.Duration) {
	const finds, together = 100_000, 16
	one, many := make([]time.Duration, 0, finds), make([]time.Duration, 0, finds/together)
	for i := 0; i < finds; {
		if i%len(lists) == 0 {
			for j := range lists {
				lists.build(j, (i+j*7919)%n)
			}
		}
		begun := time.Now()
		for range together {
			_, _ = d.Find(&lists[i%len(lists)])
			i++
		}
		many = append(many, time.Since(begun)/together)
		for range together {
			start := time.Now()
			_, _ = d.Find(&lists[i%len(lists)])
			one = append(one, time.Since(start))
			i++
		}
	}
	slices.Sort(one)
	slices.Sort(many)
	return many[len(many)/2], one[len(one)*99/100]
}
