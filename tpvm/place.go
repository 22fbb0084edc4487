// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"slices"
)

const (
	mostTurns  = 1 << 12 // places that a task remembers the turns of
	mostWeight = 1 << 12 // of a place, whatever its node says of its processors
)

// rank orders the launchers of a host: Spawn asks the one of the highest rank. Pods that serve
// nothing else outlive tasks.
func rank(launcher string) int {
	return slices.Index([]string{LauncherTask, LauncherDirserver, LauncherPod}, launcher)
}

// onePerNode returns one place for each node: own where it is among them, so that programs of
// the caller's host are started by the caller, or else the one of the highest rank. It keeps
// the order of the nodes.
func onePerNode(ps []place, own TID) []place {
	var chosen []place
	at := map[string]int{}
	for _, p := range ps {
		i, ok := at[p.node]
		switch {
		case !ok:
			at[p.node] = len(chosen)
			chosen = append(chosen, p)
		case chosen[i].pod != own && rank(p.launcher) > rank(chosen[i].launcher):
			chosen[i] = p
		}
	}
	return chosen
}

// weigh gives the places their shares, where the options ask for other than equal ones.
func (t *Task) weigh(ctx context.Context, ps []place, s *spawn) error {
	if !s.byCores {
		return nil
	}
	hs, err := t.hosts(ctx, nil)
	if err != nil {
		return err
	}
	cores := map[string]int{}
	for _, h := range hs {
		cores[h.Node] = h.Cores
	}
	for i := range ps {
		ps[i].weight = cores[ps[i].node]
	}
	return nil
}

// A share is what a place gets of n threads or programs: count of them, from the first on.
type share struct {
	place
	first, count int
}

// spread deals n threads or programs to places in turn, each as often as its weight says, and
// returns the shares that are not empty. It goes on where the last call has ended.
//
// A place has a balance. Each turn adds its weight to each balance, and takes the sum of all
// weights from the place with the highest, which gets one.
func (p *pod) spread(places []place, n int) (shares []share) {
	total := 0
	for i := range places {
		places[i].weight = min(max(1, places[i].weight), mostWeight)
		total += places[i].weight
	}
	all := make([]int, len(places))
	for i := range places {
		all[i] = n / total * places[i].weight // whole rounds leave the balances as they were
	}
	p.mu.Lock()
	if len(p.turns) > mostTurns {
		clear(p.turns)
	}
	for range n % total {
		best := 0
		for i := range places {
			p.turns[places[i].pod] += places[i].weight
			if p.turns[places[i].pod] > p.turns[places[best].pod] {
				best = i
			}
		}
		p.turns[places[best].pod] -= total
		all[best]++
	}
	p.mu.Unlock()
	first := 0
	for i, c := range all {
		if c > 0 {
			shares = append(shares, share{places[i], first, c})
			first += c
		}
	}
	return shares
}
