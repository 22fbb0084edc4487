// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// soon is much longer than the end of a bench takes on any machine.
const soon = eventually.Timeout

// Every bench runs with tiny counts and prints JSON objects, one on a line.
func TestSmoke(t *testing.T) {
	for i, name := range []string{
		"rtt --count 20 --rounds 2",
		"rtt --count 20 --rounds 2 --poll never",
		"rtt --count 1 --rounds 1 --poll adaptive --size 0",
		"rtt --count 5 --rounds 2 --size 300000",
		"rtt --count 40 --rounds 2 --transport inproc --poll adaptive",
		"rtt --count 1 --rounds 1 --transport inproc --poll never",
		"rtt --count 40 --rounds 2 --transport shm",
		"rtt --count 40 --rounds 2 --transport shm --poll never",
		"rtt --count 4 --rounds 2 --transport shm --poll adaptive",
		"rtt --count 10 --rounds 2 --transport shm --size 1000000",
		"call --count 20 --rounds 2",
		"call --count 20 --rounds 2 --transport shm --size 5000",
		"call --count 40 --rounds 2 --transport inproc",
		"call --count 100 --rounds 2 --inflight 32",
		"call --count 100 --rounds 2 --transport shm --inflight 3",
		"call --count 100 --rounds 2 --transport inproc --inflight 32",
		"rate --count 100 --rounds 2",
		"rate --count 1000 --rounds 2 --transport shm",
		"pairs --count 4 --transport shm",
		"rate --count 100 --rounds 1 --senders 3",
		"rate --count 4 --rounds 1 --senders 4 --size 0",
		"rate --count 40000 --rounds 2 --transport shm --senders 2 --size 1000",
		"rate --count 100 --rounds 2 --transport inproc",
		"rate --count 1000 --rounds 2 --transport inproc --senders 3 --size 5000",
		"rtt --count 20 --rounds 1 --transport tcp --idle 3",
		"rtt --count 20 --rounds 2 --transport shm --idle 20",
		"bw --count 2 --rounds 2 --size 1000000 --transport shm",
		"bw --count 1 --rounds 1 --size 1 --transport shm",
		"bw --count 2 --rounds 2 --size 1000000",
		"bw --count 1 --rounds 1 --size 1",
		"db --count 1000",
		"find --count 20 --rounds 2",
		"find --count 20 --rounds 2 --resources 1000",
		"find --count 1 --rounds 1 --resources 1",
		"findall --count 50 --rounds 2",
		"rpc --count 100 --rounds 1",
		"flow --count 1000 --rounds 1",
		"kit --count 100 --rounds 1",
		"see --count 20 --rounds 2",
		"bulk --only view --count 1 --rounds 1",
		"bulk --only pull --count 1 --rounds 1 --transport shm --size 1000000",
		"bulk --only call --count 1 --rounds 2 --size 4096",
		"bulk --only call --count 1 --rounds 1 --transport tcp --size 1000001",
		"cpu --count 500 --rounds 2",
		"cpu --count 3 --rounds 1 --transport shm --size 100000",
		"rtt --count 3 --rounds 1 --size 70000 --poll adaptive",
		"rate --count 1000 --rounds 1 --transport shm --receive messages --senders 2",
		"rate --count 1000 --rounds 2 --transport inproc --procs 1",
		"rate --count 200000 --rounds 3 --transport inproc --senders 4", // in order, which the receiver checks
		"tpvm --count 40 --rounds 1",
	} {
		t.Run(name, func(t *testing.T) {
			if short.Form(t) && i%3 != 0 {
				t.Skip("one of three")
			}
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			out := try.Get(execute(ctx, append([]string{"bench", "--json"}, strings.Fields(name)...)...))(t)
			for line := range strings.Lines(out) {
				var r Result
				try.OK(t, json.Unmarshal([]byte(line), &r), "%q", line)
				if !strings.HasPrefix(r.Bench, strings.Fields(name)[0]) || r.Ratio <= 0 && r.Bench != "pairs idle" || r.Raw <= 0 || r.Count <= 0 ||
					r.Unit == "" || r.What == "" || r.Machine.Cores < 1 {
					t.Errorf("printed %s", line)
				}
				for _, l := range r.Limits {
					if l.Verdict == "" || figures[l.Of] == nil || math.IsNaN(l.Is) {
						t.Errorf("the limit %+v of %s is not judged", l, line)
					}
				}
			}
			if out == "" {
				t.Error("printed nothing")
			}
		})
	}
}

// Without --json a bench prints a line of text.
func TestSmokeText(t *testing.T) {
	out, err := execute(t.Context(), "bench", "find", "--count", "5", "--rounds", "1")
	if err != nil || !strings.HasPrefix(out, "find: p50 ") || !strings.Contains(out, "ratio ") {
		t.Errorf("%v: %q", err, out)
	}
}

// endless are benches that do not end by themselves. In the first of each kind the bare loop never
// ends. In the second the rounds never end, so an interruption may come at any step.
var endless = []struct {
	name, line    string
	count, rounds int
}{
	{"rtt polled bare", "rtt", endlessly, 1},
	{"rtt polled", "rtt", 50, endlessly},
	{"rtt blocking bare", "rtt --poll never", endlessly, 1},
	{"rtt blocking", "rtt --poll never", 50, endlessly},
	{"rate bare", "rate", endlessly, 1},
	{"rate", "rate --senders 3", 5000, endlessly},
	{"call", "call", 50, endlessly},
	{"calls", "call --inflight 5 --poll adaptive", 500, endlessly},
	{"calls bare", "call --inflight 5 --poll adaptive", endlessly, 1},
	{"bw bare", "bw --size 1048576", endlessly, 1},
	{"rate shm bare", "rate --transport shm", endlessly, 1},
	{"bw shm", "bw --transport shm --size 1048576", 4, endlessly},
	{"bw", "bw --size 4194304", 4, endlessly},
	{"find bare", "find", endlessly, 1},
	{"find", "find", 50, endlessly},
	{"find between nodes bare", "find --nodes 2 --poll never", endlessly, 1},
	{"find between nodes", "find --nodes 2 --poll never", 50, endlessly},
}

const endlessly = math.MaxInt / 2

// interrupted runs a bench, calls interrupt a while after both processes have found each other, and
// fails if the bench does not end soon after.
func interrupted(t *testing.T, ctx context.Context, line string, count, rounds int, interrupt func(*pair)) error {
	t.Helper()
	b, o, err := parse(line)
	try.OK(t, err)
	o.count, o.rounds = count, rounds
	hurt := make(chan time.Time, 1)
	var dir string
	var peer int
	ended := make(chan error, 1)
	o.opened = func(p *pair) {
		dir, peer = p.Dir, p.Cmd.Process.Pid
		// Any moment is suitable, because the bench does not end earlier.
		timer := time.AfterFunc(100*time.Millisecond, func() {
			hurt <- time.Now()
			interrupt(p)
		})
		p.add(func() { timer.Stop() })
	}
	go func() {
		_, err := b.measure(ctx, o)
		ended <- err
	}()
	var begun time.Time
	select {
	case begun = <-hurt:
	case err = <-ended:
		t.Fatalf("it ended before it was interrupted: %v", err)
	}
	select {
	case err = <-ended:
		t.Logf("ended %v after, with: %v", time.Since(begun).Round(time.Millisecond), err)
	case <-time.After(soon):
		t.Fatal("it goes on")
	}
	if err == nil {
		t.Error("no error")
	}
	if _, e := os.Stat(dir); !os.IsNotExist(e) {
		t.Errorf("%s is left behind: %v", dir, e)
	}
	if _, e := os.Stat(fmt.Sprintf("/proc/%d", peer)); !os.IsNotExist(e) {
		t.Errorf("the peer, process %d, is left behind: %v", peer, e)
	}
	return err
}

func TestInterrupted(t *testing.T) {
	for i, e := range endless {
		if short.Form(t) && i%3 != 0 { // the plain form runs all
			continue
		}
		t.Run(e.name+", peer killed", func(t *testing.T) {
			err := interrupted(t, t.Context(), e.line, e.count, e.rounds, func(p *pair) { _ = p.Cmd.Process.Kill() })
			if !errors.Is(err, subprocess.ErrEnded) || !strings.Contains(err.Error(), "killed") {
				t.Errorf("the peer was killed: %v", err)
			}
		})
		t.Run(e.name+", cancelled", func(t *testing.T) {
			why := errors.New("why")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			try.Fails(interrupted(t, ctx, e.line, e.count, e.rounds, func(*pair) { cancel(why) }))(t, why, "cancelled")
		})
	}
}

// A bench within this process, which has no sockets to cut, ends with its context.
func TestCancelledInProcess(t *testing.T) {
	for _, line := range []string{
		"rtt --transport inproc --poll adaptive --count 1000000000",           // interrupts the loop of the channel
		"rtt --transport inproc --poll adaptive --count 100 --rounds 1000000", // interrupts either loop
		"rate --transport inproc --count 1000000000",                          // interrupts the loop of the channel
		"rate --transport inproc --count 1000 --senders 3 --rounds 1000000",
		"db --count 1000000000",
		"find --resources 16000000",
		"find --resources 10 --count 1000000000",
	} {
		t.Run(line, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := execute(ctx, append([]string{"bench"}, strings.Fields(line)...)...)
				ended <- err
			}()
			select {
			case err := <-ended:
				try.Fails(err)(t, context.DeadlineExceeded)
			case <-time.After(soon):
				t.Fatal("it goes on")
			}
		})
	}
}

// With a context that has ended no bench starts, and no peer is left.
func TestCancelledBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, bench := range []string{"rtt", "rate", "bw", "find"} {
		if out, err := execute(ctx, "bench", bench, "--count", "10"); !errors.Is(err, context.Canceled) || out != "" {
			t.Errorf("%s: %v, %q", bench, err, out)
		}
	}
}
