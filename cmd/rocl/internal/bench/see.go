// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/internal/observe"
)

// seeCases measure what it costs to be watched as rocl top watches, and how long a view takes.
var seeCases = []comparison{
	{bench: "see", name: "see rate", set: seeRate, what: "without the watcher", unit: "messages/s", limits: []Limit{asUnwatched}, bare: floods, ours: watched(floods)},
	{bench: "see", name: "see rtt", set: over("shm", "always"), what: "without the watcher", unit: "trips/s", limits: []Limit{asUnwatched}, bare: tripRate, ours: watched(tripRate)},
	{bench: "see", name: "see gather", set: over("shm", "never"), what: "the required second", unit: "µs", limits: []Limit{atMost("ratio", 1)}, run: gathers},
}

// asUnwatched is the limit of what is watched, beside the same without a watcher.
var asUnwatched = atLeast("ratio", 0.95, 0.99)

// seeRate makes a round last some seconds, so that views are taken in it.
func seeRate(o *options) {
	o.transport, o.poll = "shm", "adaptive"
	o.count *= 10
}

// watched returns a side during whose rounds another process takes a view each second.
func watched(s side) side {
	return func(p *pair) loop {
		own := p.config
		own.Role, own.Poll = isWatcher, "never"
		w, l := p.start(own), s(p)
		return func(n int, t *times) {
			p.ask(w, "watch", 0)
			l(n, t)
			p.ask(w, "unwatch", 0)
		}
	}
}

// watch takes a view, and then one each second until unwatch is called.
func (a *answerer) watch() {
	must(observe.Gather(a.ctx, a.c, false, time.Second))
	ctx, cancel := context.WithCancel(a.ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- attempt(func() {
			for {
				must(observe.Gather(ctx, a.c, false, time.Second))
				sleep(ctx, time.Second)
			}
		})
	}()
	a.unwatch = func() {
		cancel()
		<-ended
	}
}

// tripRate is a loop of round trips, of which all the time counts.
func tripRate(p *pair) loop {
	return p.with("echo", func(n int, t *times) {
		trip := p.trip(p.Size)
		t.rate(n, func() {
			for range n {
				trip()
			}
		})
	})
}

// maxGathered is the number of contexts of a view.
const maxGathered = 1000

// gathers measures views of many contexts, which all have links already.
func gathers(p *pair, c *comparison) []*Result {
	n := min(p.o.count, maxGathered)
	p.begin(p.peer, "idle", n)
	for range n {
		p.recv()
	}
	p.wait(p.peer)
	t := measure(p.o.rounds, 1, func(_ int, t *times) {
		t.round(1, func() {
			v := must(observe.Gather(p.ctx, p.c, false, time.Minute))
			for i := range v.Contexts {
				if v.Contexts[i].Silent != "" {
					check(fmt.Errorf("context %v: %s", v.Contexts[i].Context, v.Contexts[i].Silent))
				}
			}
			if len(v.Contexts) != n+1 { // and the peer's own
				check(fmt.Errorf("a view has %d contexts of %d", len(v.Contexts), n+1))
			}
		})
	})[0]
	r := p.result(c, t, limit(us(time.Second)))
	r.Bench, r.Size = fmt.Sprintf("see gather of %d contexts", n), 0
	return []*Result{r}
}
