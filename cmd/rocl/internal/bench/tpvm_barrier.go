// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm"
)

// The measured barrier and its target.
const (
	tpvmBarrierMost    = 500 * time.Microsecond
	tpvmBarrierThreads = 64
	tpvmBarrierTasks   = 4 // processes, including this one
	tpvmBarrierCount   = 200
)

// exportBarrier returns an option of the tasks whose threads meet in the barrier.
func exportBarrier() tpvm.Option { return tpvm.WithExport("barrier", barriers) }

// barriers joins the group that its first argument names, and waits in as many barriers as the
// second argument says. It sends the duration of each to its parent, in nanoseconds: the time
// between two barriers that let this thread pass.
func barriers(ctx context.Context, th *tpvm.Thread) error {
	args := th.Args()
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	g, err := th.Join(ctx, args[0])
	if err != nil {
		return err
	}
	if err := g.Barrier(ctx, tpvmBarrierThreads); err != nil { // waits until all threads have joined
		return err
	}
	took := make([]int64, count)
	last := time.Now()
	for i := range took {
		if err := g.Barrier(ctx, tpvmBarrierThreads); err != nil {
			return err
		}
		now := time.Now()
		took[i], last = int64(now.Sub(last)), now
	}
	if err := tpvm.SendValues(ctx, th, th.Parent(), tpvmPong, took); err != nil {
		return err
	}
	return g.Leave(ctx)
}

// tpvmBarrier measures a barrier of threads of several processes.
func tpvmBarrier(ctx context.Context, o *options) (rs []*Result, err error) {
	dir, err := os.MkdirTemp("", "rocl-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	sock := filepath.Join(dir, "directory.sock")
	t, err := tpvm.Enrol(ctx, tpvm.WithVM("bench"), exportBarrier(), tpvm.WithRocl(tpvmOptions(sock, rocl.PollAdaptive)...))
	if err != nil {
		return nil, err
	}
	defer t.Exit(context.WithoutCancel(ctx))
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	tasks, err := t.Spawn(ctx, exe, tpvmBarrierTasks-1, tpvm.Programs(), tpvm.EndWithParent(), tpvm.Args("bench-task", sock, "adaptive", ""))
	if err != nil {
		return nil, err
	}
	took := newTimes()
	for round := range o.rounds {
		threads, err := t.Spawn(ctx, "barrier", tpvmBarrierThreads, tpvm.Args(fmt.Sprintf("bench%d", round), strconv.Itoa(tpvmBarrierCount)))
		if err != nil {
			return nil, err
		}
		if n := mostInOneTask(threads); n != tpvmBarrierThreads/tpvmBarrierTasks {
			return nil, fmt.Errorf("%d of %d threads were started in one task of %d", n, len(threads), tpvmBarrierTasks)
		}
		var first []int64 // of the first thread: all threads pass together
		for i, id := range threads {
			each := make([]int64, tpvmBarrierCount)
			if _, _, err := tpvm.RecvValues(ctx, t.Thread, id, tpvmPong, each); err != nil {
				return nil, err
			}
			if i == 0 {
				first = each
			}
		}
		next := 0
		if err := took.timed(len(first), func() (time.Duration, error) {
			next++
			return time.Duration(first[next-1]), nil
		}); err != nil {
			return nil, err
		}
	}
	if err := t.Mcast(ctx, tasks, tpvmDo, nil); err != nil { // ends the tasks
		return nil, err
	}
	most := float64(tpvmBarrierMost.Microseconds())
	return []*Result{{Bench: "tpvm barrier", Transport: "shm", Poll: "adaptive", Count: o.rounds * tpvmBarrierCount, Unit: "µs",
		What: "the allowed " + tpvmBarrierMost.String(), P50: took.p50(), P99: took.p99(), Raw: most, Ratio: took.p50() / most, Target: 1,
		Extra: fmt.Sprintf("%d threads in %d processes", tpvmBarrierThreads, tpvmBarrierTasks)}}, nil
}

// mostInOneTask returns the greatest number of the threads that one task has.
func mostInOneTask(threads []tpvm.TID) (most int) {
	n := map[tpvm.TID]int{}
	for _, id := range threads {
		n[id.Context()]++
		most = max(most, n[id.Context()])
	}
	return most
}
