// SPDX-License-Identifier: Apache-2.0

package live_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/live"
	"github.com/rocl-go/rocl/rocltest"
)

// Workers and followers run on three nodes, whose network, directories and processes fail. Each
// follower calls the workers that it picks. It must not pick a worker again whose end it has told
// the set. When the faults are over, each follower has the living workers.
func TestFaults(t *testing.T) {
	seeds := uint64(15)
	if short.Form(t) {
		seeds = 5
	}
	for seed := range seeds {
		rocltest.Simulate(t, seed, fall)
	}
}

func fall(w *rocltest.World) {
	const nodes, each = 3, 2
	w.AddNodes(nodes)
	var mu sync.Mutex
	alive := map[string]rocl.GID{} // the latest worker of each program
	sets := map[string]*live.Set{} // the latest set of each program
	for i := range nodes * each {
		w.Start(i%nodes, fmt.Sprint("worker", i), func(p *rocltest.Process) {
			r, err := p.Rocl().Register(p.Context(), workers)
			if err != nil {
				return
			}
			mu.Lock()
			alive[p.Name()] = r.ID()
			mu.Unlock()
			for m, err := range r.Messages(p.Context()) {
				if err != nil {
					return
				}
				_ = r.ReplyBytes(p.Context(), m, nil)
				m.Release()
			}
		})
	}
	for i := range nodes {
		w.Start(i, fmt.Sprint("follower", i), func(p *rocltest.Process) {
			s, err := live.Follow(p.Context(), p.Rocl(), workers)
			if err != nil {
				return // the process was killed
			}
			defer s.Close()
			mu.Lock()
			sets[p.Name()] = s
			mu.Unlock()
			use(p, s)
		})
	}
	w.Run(10 * time.Second)
	want := func() string {
		mu.Lock()
		defer mu.Unlock()
		return sorted(slices.Collect(maps.Values(alive)))
	}
	for i := range nodes {
		name, had := fmt.Sprint("follower", i), ""
		for range 30 { // a link that was given up, and a member that is back, take seconds
			mu.Lock()
			s := sets[name]
			mu.Unlock()
			if s != nil {
				had = sorted(ids(s))
			}
			if had == want() {
				break
			}
			time.Sleep(time.Second) // of virtual time
		}
		if had != want() {
			w.Errorf("%s has %s, not %s", name, had, want())
		}
	}
}

func sorted(ids []rocl.GID) string {
	slices.SortFunc(ids, rocl.GID.Compare)
	return strings.Trim(fmt.Sprint(ids), "[]")
}

// use calls the members that it picks, in all ways, until the process ends.
func use(p *rocltest.Process, s *live.Set) {
	me, err := p.Rocl().Register(p.Context(), nil)
	if err != nil {
		return
	}
	ended := map[rocl.GID]error{}
	ways := []live.By{live.Turn(), live.Hash("key"), live.Random(), live.Least("load"), live.Nearest()}
	for i := 0; ; i++ {
		m, err := s.Await(p.Context(), ways[i%len(ways)])
		if err != nil {
			return
		}
		if why := ended[m.ID]; why != nil {
			p.World().Errorf("%s picks %v, which has ended: %v", p.Name(), m.ID, why)
		}
		ctx, cancel := context.WithTimeout(p.Context(), 3*time.Second)
		reply, err := me.CallBytes(ctx, m.ID, 0, nil)
		if cancel(); err == nil {
			reply.Release()
		}
		m.Done(err)
		if rocl.IsEnd(err) && !errors.Is(err, rocl.ErrNodeDead) && !errors.Is(err, rocl.ErrUnreachable) {
			ended[m.ID] = err
		}
		time.Sleep(20 * time.Millisecond) // of virtual time
	}
}
