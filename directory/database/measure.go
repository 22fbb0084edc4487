// SPDX-License-Identifier: Apache-2.0

package database

import (
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// A Measurement is the result of Measure.
type Measurement struct {
	Resources     int
	PutsPerSecond float64
	BytesEach     float64 // without the bytes of the attributes' names and values
	FindP50       time.Duration
	FindP99       time.Duration
}

// Measure registers n resources of four attributes in a new database, and finds some of them again
// by an exact match. Two attributes of each resource are unique. If ctx ends, Measure returns
// early, and the figures mean nothing.
func Measure(ctx context.Context, n int) Measurement {
	lists := make([]resource.List, min(n, 1<<16))
	sites := []string{"porto", "braga", "lisboa", "faro"}
	build := func(i int, l *resource.List) {
		l.Reset()
		var id [8]byte
		binary.LittleEndian.PutUint64(id[:], uint64(i))
		_ = l.AddString("type", "worker")
		_ = l.AddString("site", sites[i%len(sites)])
		_ = l.Add("serial", id[:])
		_ = l.Add("slot", append(id[:], 's'))
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for i := range lists { // the lists' memory is allocated before the count begins
		build(i, &lists[i])
	}
	before := heap()
	d := New()
	var took time.Duration
	own := 0
	owner := resource.MakeGID(1, 1, 0)
	for done := 0; done < n && ctx.Err() == nil; {
		k := min(len(lists), n-done)
		for i := range k {
			build(done+i, &lists[i])
			own += len("typeworkersite") + len(sites[(done+i)%4]) + len("serial") + 8 + len("slot") + 9
		}
		start := time.Now()
		for i := range k {
			_, _ = d.Put(owner.WithSerial(uint32(done+i+1)), owner, &lists[i])
		}
		took += time.Since(start)
		done += k
	}
	m := Measurement{Resources: n, PutsPerSecond: float64(n) / took.Seconds()}
	m.BytesEach = (float64(heap()) - float64(before) - float64(own)) / float64(n)
	// Slow finds are timed one by one. For the median, sixteen finds are timed together, because
	// reading the clock takes a good part of the time of one.
	const finds, batch = 100_000, 16
	one, many := make([]time.Duration, 0, finds), make([]time.Duration, 0, finds/batch)
	for i := 0; i < finds; {
		if i%len(lists) == 0 {
			for j := range lists {
				build((i+j*7919)%n, &lists[j])
			}
		}
		begun := time.Now()
		for range batch {
			_, _ = d.Find(&lists[i%len(lists)])
			i++
		}
		many = append(many, time.Since(begun)/batch)
		for range batch {
			start := time.Now()
			_, _ = d.Find(&lists[i%len(lists)])
			one = append(one, time.Since(start))
			i++
		}
	}
	slices.Sort(one)
	slices.Sort(many)
	m.FindP50, m.FindP99 = many[len(many)/2], one[len(one)*99/100]
	runtime.KeepAlive(d)
	return m
}
