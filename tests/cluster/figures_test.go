// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
)

var figures = flag.Bool("figures", false, "measure how soon a cluster of eight notices what happens, and print it as a table")

// A figure is a measured time, as a row of the table.
type figure struct {
	what string
	most time.Duration // the target
	took []time.Duration
}

func (f *figure) add(d time.Duration) { f.took = append(f.took, d) }

func (f *figure) row() string {
	slices.Sort(f.took)
	worst := f.took[len(f.took)-1]
	met := "yes"
	if worst > f.most {
		met = "no"
	}
	return fmt.Sprintf("| %s | %d | %s | %s | ≤ %v | %s |", f.what, len(f.took), brief(f.took[len(f.took)/2]), brief(worst), f.most, met)
}

// brief returns a duration with about three digits.
func brief(d time.Duration) string {
	switch {
	case d > time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d > 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

// TestFigures prints how soon a cluster of eight nodes notices changes: see make cluster-figures.
// Nothing else should run on the machine.
func TestFigures(t *testing.T) {
	if !*figures {
		t.Skip("prints a table, for which it takes minutes: make cluster-figures")
	}
	l := up(t, 8)
	as, own, same := l.populate()
	watch(as)
	stopChurn(as)

	death := &figure{what: "node killed (`kill -9` of its daemon): dead for all others", most: 2 * time.Second}
	silent := &figure{what: "node falls silent: dead for all others", most: 2 * time.Second}
	for i := range 10 {
		dead := l.nodes[2+i%6]
		began := time.Now()
		dead.kill()
		_, last := l.deathSeen(dead, began)
		death.add(last)
		l.start(dead)
		l.one("back", time.Now())

		began = time.Now()
		l.cut([]*node{dead}, l.nodes)
		_, last = l.deathSeen(dead, began)
		silent.add(last)
		l.heal()
		l.one("heard again", time.Now())
	}

	views := &figure{what: "halves cut off from each other for 5 s, healed: one view", most: 5 * time.Second}
	watches := &figure{what: "the same: all watches complete", most: 5 * time.Second}
	for range 5 {
		startChurn(as)
		l.cut(l.nodes[:4], l.nodes[4:])
		time.Sleep(5 * time.Second) // the length of the cut, which the figure names
		truth := stopChurn(as[:4])  // of one half; the half must learn that of the other
		for id, n := range stopChurn(as[4:]) {
			truth[id] = n
		}
		began := time.Now()
		l.heal()
		eventually.True(t, "all watches complete", func() bool { return astray(as, truth) == "" })
		watches.add(time.Since(began))
		l.one("healed", began)
		views.add(l.since().Sub(began))
	}

	process := &figure{what: "process killed (`kill -9`): gone from every watch", most: 100 * time.Millisecond}
	for i := range 30 {
		process.add(l.processDeath(as, l.nodes[i%8]))
	}

	var deaths int
	for _, n := range l.nodes {
		deaths -= n.deaths()
	}
	finds := func(percent int, d time.Duration) (r Report) {
		l.lose(percent)
		defer l.heal()
		load(as, own, 50*time.Millisecond)
		time.Sleep(d) // of questions
		return ended(as)
	}
	quiet, lossy := finds(0, 10*time.Second), finds(5, time.Minute)
	for _, n := range l.nodes {
		deaths += n.deaths()
	}
	complete(as, own, same)

	fmt.Printf("\n%s: %s.\n\n| what, 8 nodes | times | median | worst | must reach | met |\n|---|---|---|---|---|---|\n", time.Now().UTC().Format(time.DateOnly), machine())
	for _, f := range []*figure{death, silent, views, watches, process} {
		fmt.Println(f.row())
	}
	for _, f := range []struct {
		loss int
		r    *Report
	}{{0, &quiet}, {5, &lossy}} {
		met := "yes"
		if f.r.quantile(0.99) > 50*time.Millisecond || len(f.r.Failed) > 0 {
			met = "no"
		}
		fmt.Printf("| remote find at %d %% loss; worst: p99, longest %s; %d failed | %d | %s | %s | ≤ 50ms | %s |\n", f.loss, brief(f.r.quantile(1)), len(f.r.Failed),
			f.r.Asked, brief(f.r.quantile(0.5)), brief(f.r.quantile(0.99)), met)
	}
	fmt.Printf("| live nodes taken for dead meanwhile | | | %d | 0 | %s |\n\n", deaths, map[bool]string{true: "yes", false: "no"}[deaths == 0])
}

// since returns when a member last came to see another one alive.
func (l *lab) since() (at time.Time) {
	for _, n := range l.nodes {
		n.mu.Lock()
		for _, t := range n.view {
			if t.After(at) {
				at = t
			}
		}
		n.mu.Unlock()
	}
	return at
}

// machine describes the machine of the run.
func machine() string {
	cpu := runtime.GOARCH
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			cpu = strings.TrimSpace(value)
			break
		}
	}
	var u unix.Utsname
	_ = unix.Uname(&u)
	return fmt.Sprintf("%s, %d cores, Linux %s, %s", cpu, runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]), runtime.Version())
}
