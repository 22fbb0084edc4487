// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
)

// pairMost limits the memory in bytes that a pair of contexts of one node keeps after it has
// exchanged messages and become idle.
const pairMost = 64 << 10

// quietPairs measures the memory of unused links: --count contexts of one process have all exchanged a
// small message and one of --size bytes with each other.
func quietPairs(ctx context.Context, o *options) ([]*Result, error) {
	s := directory.NewServer()
	defer s.Close()
	var cs []*rocl.Context
	defer func() {
		for _, c := range cs {
			c.Close()
		}
	}()
	var rs []*rocl.Resource
	for range o.count {
		c, err := rocl.Open(ctx, icontext.WithDirectory(s.Dialer()), rocl.WithTransports(transportOf(o.transport)))
		if err != nil {
			return nil, err
		}
		cs = append(cs, c)
		r, err := c.Register(ctx, rocl.Attrs{"bench": "pairs"})
		if err != nil {
			return nil, err
		}
		rs = append(rs, r)
	}
	before, err := resident(ctx)
	if err != nil {
		return nil, err
	}
	for _, from := range rs {
		for _, to := range rs {
			if from == to {
				continue
			}
			for _, size := range []int{64, o.size} {
				if err := from.SendBytes(ctx, to.ID(), 1, make([]byte, size)); err != nil {
					return nil, err
				}
				m, err := to.Recv(ctx)
				if err != nil {
					return nil, err
				}
				m.Release()
			}
		}
	}
	after, err := resident(ctx)
	if err != nil {
		return nil, err
	}
	n := o.count * (o.count - 1) / 2
	r := &Result{Bench: "pairs", Transport: o.transport, Size: o.size, Count: n, Unit: "bytes a pair", What: "the allowed 64 KiB",
		Rate: float64(max(after-before, 0)) / float64(n), Raw: pairMost, Target: 1,
		Extra: fmt.Sprintf("%d contexts in one process, all to all; %.1f MiB with the pools, %.1f MiB before", o.count, float64(after)/(1<<20), float64(before)/(1<<20))}
	r.Ratio = r.Rate / r.Raw
	return []*Result{r}, nil
}

// resident returns how many bytes of memory this process has, with its share of shared memory, once
// the number does not change any more.
func resident(ctx context.Context) (int64, error) {
	last := int64(-1)
	for range 50 { // until the number is stable
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
		debug.FreeOSMemory()
		n, err := pss()
		if err != nil {
			return 0, err
		}
		if last >= 0 && n >= last {
			return last, nil
		}
		last = n
	}
	return last, nil
}

// pss returns how many bytes of memory this process has, with its share of shared memory. The pages
// of the program's file are left out: this process's share of them changes when other processes of
// the same program start and end.
func pss() (n int64, err error) {
	f, err := os.Open("/proc/self/smaps_rollup")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	found := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		name, v, _ := strings.Cut(s.Text(), ":")
		if name != "Pss_Anon" && name != "Pss_Shmem" {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(v, "kB")), 10, 64)
		if err != nil {
			return 0, err
		}
		n += kb << 10
		found++
	}
	if found != 2 {
		return 0, fmt.Errorf("%s lacks Pss_Anon or Pss_Shmem", f.Name())
	}
	return n, nil
}
