// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
)

// watched is the pattern of the watches. The churn changes resources that match it.
var watched = rocl.Match{"type": "watched"}

// A Seen is the state that a watch has reported.
type Seen struct {
	Synced bool
	Known  map[string]string // the attribute n of each identifier
	Gone   map[string]time.Time
	Events int
	Wrong  []string // events that a watch must not yield
}

// view is a watch of an agent.
type view struct {
	mu   sync.Mutex
	seen Seen
	end  context.CancelFunc
	done chan struct{}
}

// Watch begins a watch of the watched resources.
func (a *Agent) Watch(_ struct{}, _ *struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	v := &view{seen: Seen{Known: map[string]string{}, Gone: map[string]time.Time{}}, end: cancel, done: make(chan struct{})}
	a.views = append(a.views, v)
	go func() {
		defer close(v.done)
		for ev, err := range a.c.Watch(ctx, watched, rocl.Want("n")) {
			v.take(ev, err)
		}
	}()
	return nil
}

// take records an event. A resource may appear only if it was not known, and may change or go only
// if it was known.
func (v *view) take(ev rocl.Event, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := &v.seen
	s.Events++
	id := ev.ID.String()
	before, known := s.Known[id]
	n := ev.Attrs.GetString("n")
	wrong := func(what string) {
		s.Wrong = append(s.Wrong, fmt.Sprintf("%s %s %v %s=%s, was %q (%v)", time.Now().Format("15:04:05.000"), what, ev.Kind, id, n, before, known))
	}
	switch {
	case err != nil:
		wrong(err.Error())
	case ev.Kind == rocl.Synced && s.Synced:
		wrong("again")
	case ev.Kind == rocl.Synced:
		s.Synced = true
	case known != (ev.Kind != rocl.Appeared):
		wrong("out of place")
	case ev.Kind == rocl.Gone:
		delete(s.Known, id)
		s.Gone[id] = time.Now()
	default:
		if older(n, before) {
			wrong("back in time")
		}
		s.Known[id] = n
	}
}

// older reports whether one value of n is before another: they are counted.
func older(n, than string) bool {
	a, _ := strconv.Atoi(n)
	b, _ := strconv.Atoi(than)
	return a < b
}

// View returns the state of the agent's watch.
func (a *Agent) View(_ struct{}, out *Seen) error {
	v := a.views[0]
	v.mu.Lock()
	defer v.mu.Unlock()
	*out = v.seen
	out.Known, out.Gone, out.Wrong = maps.Clone(out.Known), maps.Clone(out.Gone), slices.Clone(out.Wrong)
	return nil
}

func (a *Agent) unwatch() {
	for _, v := range a.views {
		v.end()
		<-v.done
	}
}

// churn registers, changes and deletes watched resources.
type churn struct {
	rs   []*rocl.Resource
	n    []int
	stop chan struct{}
	done chan error
}

// StartChurn begins the churn: a change in each interval.
func (a *Agent) StartChurn(interval time.Duration, _ *struct{}) error {
	if a.churn == nil {
		a.churn = &churn{}
	}
	c := a.churn
	c.stop, c.done = make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			if err := c.step(a.c); err != nil {
				c.done <- err
				return
			}
			select {
			case <-tick.C:
			case <-c.stop:
				c.done <- nil
				return
			}
		}
	}()
	return nil
}

func (c *churn) step(on *rocl.Context) error {
	ctx, cancel := brief()
	defer cancel()
	k := rand.IntN(3)
	if len(c.rs) < 3 {
		k = 0
	} else if len(c.rs) > 10 {
		k = 2
	}
	attrs := func(n int) rocl.Attrs { return rocl.Attrs{"type": "watched", "n": fmt.Sprint(n)} }
	i := rand.IntN(len(c.rs) + 1)
	switch k {
	case 0:
		r, err := on.Register(ctx, attrs(1))
		if err != nil {
			return err
		}
		c.rs, c.n = append(c.rs, r), append(c.n, 1)
	case 1:
		i %= len(c.rs)
		if err := c.rs[i].Update(ctx, attrs(c.n[i]+1)); err != nil {
			return err
		}
		c.n[i]++
	case 2:
		i %= len(c.rs)
		if err := c.rs[i].Delete(ctx); err != nil {
			return err
		}
		c.rs, c.n = slices.Delete(c.rs, i, i+1), slices.Delete(c.n, i, i+1)
	}
	return nil
}

// StopChurn ends the churn, and returns the resources that are registered.
func (a *Agent) StopChurn(_ struct{}, there *map[string]string) error {
	c := a.churn
	close(c.stop)
	if err := <-c.done; err != nil {
		return err
	}
	*there = map[string]string{}
	for i, r := range c.rs {
		(*there)[r.ID().String()] = fmt.Sprint(c.n[i])
	}
	return nil
}

// watch makes all agents watch, and begin their churn.
func watch(as []*agent) {
	for _, a := range as {
		do[struct{}, struct{}](a, "Watch", struct{}{})
	}
	startChurn(as)
}

func startChurn(as []*agent) {
	for _, a := range as {
		do[time.Duration, struct{}](a, "StartChurn", 100*time.Millisecond)
	}
}

// stopChurn ends the churn and waits until all watches have reported the registered resources. It
// returns those.
func stopChurn(as []*agent) map[string]string {
	t := as[0].node.lab.t
	t.Helper()
	truth := map[string]string{}
	for _, a := range as {
		maps.Copy(truth, do[struct{}, map[string]string](a, "StopChurn", struct{}{}))
	}
	var off string
	if !eventually.Within(30*time.Second, func() bool { off = astray(as, truth); return off == "" }) {
		t.Fatal(off)
	}
	return truth
}

// astray returns how the state of a watch differs from the truth, for the first agent with a
// difference, or "". It fails the test if a watch has yielded an event that it must not.
func astray(as []*agent, truth map[string]string) string {
	t := as[0].node.lab.t
	t.Helper()
	for _, a := range as {
		s := do[struct{}, Seen](a, "View", struct{}{})
		if len(s.Wrong) > 0 {
			t.Fatalf("node %d (%s): of %d events %d are wrong: %s", a.node.i, a.node.id, s.Events, len(s.Wrong), strings.Join(s.Wrong[:min(5, len(s.Wrong))], "; "))
		}
		if !s.Synced {
			return fmt.Sprintf("node %d (%s) is not synced", a.node.i, a.node.id)
		}
		if !maps.Equal(s.Known, truth) {
			var off []string
			for id, n := range truth {
				if got := s.Known[id]; got != n {
					off = append(off, fmt.Sprintf("%s is %s, not %q", id, n, got))
				}
			}
			for id := range s.Known {
				if truth[id] == "" {
					off = append(off, id+" is no more")
				}
			}
			return fmt.Sprintf("node %d (%s) knows %d of %d: %s", a.node.i, a.node.id, len(s.Known), len(truth), strings.Join(off[:min(5, len(off))], "; "))
		}
	}
	return ""
}

// still checks that the watches keep the right state. On a busy machine, a living daemon may be
// taken for dead for a moment.
func still(as []*agent, truth map[string]string) {
	t := as[0].node.lab.t
	t.Helper()
	var off string
	if !eventually.Within(20*time.Second, func() bool { off = astray(as, truth); return off == "" }) {
		t.Errorf("a moment later: %s", off)
	}
}

// A process that is killed is soon gone from every watch in the cluster.
func TestProcessDeathSeen(t *testing.T) {
	l := up(t, 3)
	as, _, _ := l.populate()
	watch(as)
	stopChurn(as)
	victim := l.nodes[2].agent()
	id := victim.register(rocl.Attrs{"type": "watched", "n": "1"}).String()
	for _, a := range as[:2] {
		eventually.True(t, "it appears", func() bool { return do[struct{}, Seen](a, "View", struct{}{}).Known[id] != "" })
	}
	began, last := time.Now(), time.Duration(0)
	victim.p.Kill()
	for _, a := range as[:2] {
		eventually.True(t, "its process is dead", func() bool {
			gone, ok := do[struct{}, Seen](a, "View", struct{}{}).Gone[id]
			if ok {
				last = max(last, gone.Sub(began))
			}
			return ok
		})
	}
	l.reach("process death seen by a watcher anywhere", last, 100*time.Millisecond)
}
