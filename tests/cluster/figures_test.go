// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"
)

var figures = flag.Bool("figures", false, "print how soon clusters notice what happens, as a table: make cluster-figures")

// reached has the times that the tests have measured.
var reached struct {
	sync.Mutex
	all map[string]*figure
}

// A figure is a row of the table.
type figure struct {
	most time.Duration // the target
	took []time.Duration
}

// reach logs how long something took, and how long it should take at most on an idle machine.
func (l *lab) reach(what string, took, most time.Duration) {
	l.t.Helper()
	l.t.Logf("%s: %v (to reach: %v)", what, took.Round(time.Millisecond), most)
	reached.Lock()
	defer reached.Unlock()
	if reached.all == nil {
		reached.all = map[string]*figure{}
	}
	if reached.all[what] == nil {
		reached.all[what] = &figure{most: most}
	}
	reached.all[what].took = append(reached.all[what].took, took)
}

// printFigures prints the table. Nothing else should have run on the machine.
func printFigures() {
	fmt.Printf("\n%s: %s, %d cores, %s.\n\n| what | times | median | worst | must reach | met |\n|---|---|---|---|---|---|\n",
		time.Now().UTC().Format(time.DateOnly), runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	for _, what := range slices.Sorted(maps.Keys(reached.all)) {
		f := reached.all[what]
		slices.Sort(f.took)
		worst := f.took[len(f.took)-1]
		met := map[bool]string{true: "yes", false: "no"}[worst <= f.most]
		fmt.Printf("| %s | %d | %s | %s | ≤ %v | %s |\n", what, len(f.took), digits(f.took[len(f.took)/2]), digits(worst), f.most, met)
	}
}

// digits returns a duration with about three digits.
func digits(d time.Duration) string {
	switch {
	case d > time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d > 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
