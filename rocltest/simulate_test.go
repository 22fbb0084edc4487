// SPDX-License-Identifier: Apache-2.0

package rocltest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/rocltest"
)

var (
	seeds = flag.Int("seeds", 0, "the number of seeds of TestPromises; 0: 1000, or 20 with -short")
	first = flag.Uint64("seed", 0, "the first seed of TestPromises")
	span  = flag.Duration("span", 0, "if above 0, TestPromises runs random seeds for so long")
)

// The promises of the library hold in a world with faults.
//
// Promise (Delivery): The promises about messages, credit, monitors, searches and watches hold
// together while links break, machines stand still or crash, and processes are killed. See also
// TestPlanted.
func TestPromises(t *testing.T) {
	n := *seeds
	if n == 0 {
		n = 1000
		if short.Form(t) {
			n = 20
		}
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	if *span == 0 {
		promises(t, *first, n)
		return
	}
	for begun := time.Now(); time.Since(begun) < *span && !t.Failed(); {
		promises(t, rand.Uint64(), 100)
	}
}

// promises runs n seeds, several at once, and stops at the first that fails.
func promises(t *testing.T, first uint64, n int) {
	var failed atomic.Bool
	t.Run("seeds", func(t *testing.T) {
		for i := range n {
			seed := first + uint64(i)
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				if failed.Load() {
					t.Skip("another seed has failed")
				}
				rocltest.Simulate(t, seed, rocltest.Promises)
				if t.Failed() {
					failed.Store(true)
				}
			})
		}
	})
}

// counter is a program in a world: a server counts, and a client calls it.
func counter(w *rocltest.World) {
	w.AddNodes(2)
	w.Start(0, "server", func(p *rocltest.Process) {
		r, err := p.Rocl().Register(p.Context(), rocl.Attrs{"service": "counter"})
		if err != nil {
			return
		}
		for count := byte(1); ; count++ {
			m, err := r.Recv(p.Context())
			if err != nil {
				return // the process is killed, or the world ends
			}
			_ = r.ReplyBytes(p.Context(), m, []byte{count})
			m.Release()
		}
	})
	var answers atomic.Int32
	w.Start(1, "client", func(p *rocltest.Process) {
		r, err := p.Rocl().Register(p.Context(), nil)
		if err != nil {
			return
		}
		for p.Context().Err() == nil {
			ctx, cancel := context.WithTimeout(p.Context(), 15*time.Second)
			server, err := p.Rocl().Find(ctx, rocl.Match{"service": "counter"})
			if err == nil {
				var m *rocl.Message
				if m, err = r.CallBytes(ctx, server.ID, 0, nil); err == nil {
					answers.Add(1)
					m.Release()
				}
			}
			if errors.Is(err, context.DeadlineExceeded) {
				w.Errorf("a call has hung: %v", err)
			}
			cancel()
			time.Sleep(time.Second) // of virtual time
		}
	})
	w.Run(10 * time.Second)
	if n := answers.Load(); n < 5 {
		w.Errorf("%d calls were answered", n)
	}
}

func ExampleSimulate() {
	test := func(t *testing.T) { // TestCounter
		for seed := range uint64(20) {
			rocltest.Simulate(t, seed, counter)
		}
	}
	_ = test
}

// A program of a user runs in the world.
func TestSimulate(t *testing.T) {
	for seed := range uint64(20) {
		rocltest.Simulate(t, seed, counter)
	}
}

// What is wrong in a world is returned: what Errorf was called with, and goroutines that are left.
func TestBrokenWorld(t *testing.T) {
	wrong := rocltest.Broken(t, 1, func(w *rocltest.World) {
		w.AddNodes(1)
		w.Errorf("wrong %d", 7)
		go time.Sleep(10 * time.Minute) // of virtual time: longer than the world waits
	})
	if len(wrong) != 2 || !strings.Contains(wrong[0], "wrong 7") || !strings.Contains(wrong[1], "1 goroutines are left") {
		t.Errorf("wrong is %q", wrong)
	}
}

// A schedule of which some faults break a promise together is shrunk to these.
func TestShrink(t *testing.T) {
	var all []rocltest.Fault
	for i := range 13 {
		all = append(all, rocltest.Fault{A: i})
	}
	for _, want := range [][]int{{}, {0}, {12}, {3, 4}, {0, 7, 12}} {
		fails := func(part []rocltest.Fault) bool {
			left := 0
			for _, f := range part {
				if slices.Contains(want, f.A) {
					left++
				}
			}
			return left == len(want)
		}
		var got []int
		for _, f := range rocltest.Shrink(all, fails) {
			got = append(got, f.A)
		}
		if !slices.Equal(got, want) {
			t.Errorf("shrunk to %v, want %v", got, want)
		}
	}
}
