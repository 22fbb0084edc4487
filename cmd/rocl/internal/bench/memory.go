// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
)

// quietPairs measures the memory of unused links: --count contexts of one process have all
// exchanged a small message and one of --size bytes with each other.
func quietPairs(ctx context.Context, o *options) []*Result {
	s := directory.NewServer()
	defer s.Close()
	var rs []*rocl.Resource
	for range o.count {
		c := must(rocl.Open(ctx, icontext.WithDirectory(s.Dialer()), rocl.WithTransports(transportOf(o.transport))))
		defer c.Close()
		rs = append(rs, must(c.Register(ctx, rocl.Attrs{"bench": "pairs"})))
	}
	before := resident(ctx)
	for _, from := range rs {
		for _, to := range rs {
			for _, size := range []int{64, o.size} {
				if from != to {
					check(from.SendBytes(ctx, to.ID(), 1, make([]byte, size)))
					must(to.Recv(ctx)).Release()
				}
			}
		}
	}
	after := resident(ctx)
	const most = 64 << 10
	n := o.count * (o.count - 1) / 2
	r := &Result{Case: Case{Bench: "pairs", Transport: o.transport, Size: o.size}, Count: n, Unit: "bytes a pair", What: "the allowed 64 KiB",
		Rate: float64(max(after-before, 0)) / float64(n), Raw: most, Limits: []Limit{atMost("ratio", 1)},
		Extra: fmt.Sprintf("%d contexts in one process, all to all; %.1f MiB with the pools, %.1f MiB before", o.count, float64(after)/(1<<20), float64(before)/(1<<20))}
	r.Ratio = r.Rate / r.Raw
	return []*Result{r, idle(ctx, o, rs)}
}

// idle counts what contexts with links that carry nothing do in a second: how often a waiter wakes,
// and system calls.
func idle(ctx context.Context, o *options, rs []*rocl.Resource) *Result {
	work := func() (n float64) {
		for _, r := range rs {
			n += contextWork(r.Context())
		}
		return n
	}
	before := work()
	sleep(ctx, time.Second)
	r := &Result{Case: Case{Bench: "pairs idle", Transport: o.transport}, Count: len(rs), Unit: "wake-ups and system calls/s", What: "contexts",
		Rate: work() - before, Raw: float64(len(rs)), Limits: []Limit{atMost("rate", 0)}}
	r.Ratio = r.Rate / r.Raw
	return r
}

// contextWork returns how many wake-ups and system calls a context has counted.
func contextWork(c *rocl.Context) float64 {
	s := c.Stats()
	return float64(s.Sleeps + s.Wakeups + s.Polls + s.Reads + s.Writes)
}

// resident returns how many bytes of memory this process has, once the number does not fall any
// more.
func resident(ctx context.Context) (last int) {
	for n := 0; ; last = n {
		sleep(ctx, 100*time.Millisecond)
		debug.FreeOSMemory()
		if n = pss(); last > 0 && n >= last {
			return last
		}
	}
}

var pssLines = regexp.MustCompile(`(?m)^Pss_(?:Anon|Shmem): *(\d+) kB`)

// pss returns how many bytes of memory this process has, with its share of shared memory. The pages
// of the program's file are left out: this process's share of them changes when other processes of
// the same program start and end.
func pss() (n int) {
	found := pssLines.FindAllSubmatch(must(os.ReadFile("/proc/self/smaps_rollup")), -1)
	if len(found) != 2 {
		check(fmt.Errorf("smaps_rollup has %d of Pss_Anon and Pss_Shmem", len(found)))
	}
	for _, m := range found {
		n += must(strconv.Atoi(string(m[1]))) << 10
	}
	return n
}
