// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"slices"
)

const (
	mostTurns  = 1 << 12 // hosts whose balances a task remembers
	mostWeight = 1 << 12 // the highest weight of a host, however many processors its node reports
)

// rank orders the launchers of a host: Spawn asks the one of the highest rank. A dirserver and a
// pod that serves nothing else outlive tasks.
func rank(launcher string) int {
	return slices.Index([]string{LauncherTask, LauncherDirserver, LauncherPod}, launcher)
}

// onePerNode returns one host for each node: own if it is among them, so that the caller starts
// the programs on its own host, or else the host of the highest rank. It keeps the order of the
// nodes.
func onePerNode(ps []hostEntry, own TID) []hostEntry {
	var chosen []hostEntry
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

// weigh sets the weights of the hosts if the options ask for unequal shares.
func (t *Task) weigh(ctx context.Context, ps []hostEntry, s *spawn) error {
	if !s.byCores {
		return nil
	}
	hs, err := t.hosts(ctx, new(error), nil)
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

// A share is the part of n threads or programs that a host gets: count of them, from the number
// first on.
type share struct {
	hostEntry
	first, count int
}

// spread deals n threads or programs to hosts in turn, to each as often as its weight says, and
// returns the shares that are not empty. It continues the rotation of the previous call.
//
// A host has a balance. Each turn adds its weight to each balance. The host with the highest
// balance gets one thread or program, and the sum of all weights is subtracted from its balance.
func (p *pod) spread(hosts []hostEntry, n int) (shares []share) {
	total := 0
	for i := range hosts {
		hosts[i].weight = min(max(1, hosts[i].weight), mostWeight)
		total += hosts[i].weight
	}
	all := make([]int, len(hosts))
	for i := range hosts {
		all[i] = n / total * hosts[i].weight // whole rounds leave the balances as they were
	}
	p.mu.Lock()
	if len(p.turns) > mostTurns {
		clear(p.turns)
	}
	for range n % total {
		best := 0
		for i := range hosts {
			p.turns[hosts[i].pod] += hosts[i].weight
			if p.turns[hosts[i].pod] > p.turns[hosts[best].pod] {
				best = i
			}
		}
		p.turns[hosts[best].pod] -= total
		all[best]++
	}
	p.mu.Unlock()
	first := 0
	for i, c := range all {
		if c > 0 {
			shares = append(shares, share{hosts[i], first, c})
			first += c
		}
	}
	return shares
}
