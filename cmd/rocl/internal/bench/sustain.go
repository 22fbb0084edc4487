// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// sustain measures what communication costs a computation, and the reverse: the right side of
// figure 4 of the paper. A computation on all processors and a ping-pong are measured alone and
// then together. What is left of each is a share of 1. The geometric mean of the two shares says
// how much of both is sustained. It is low both for a policy whose polling takes the processors
// from the computation and for one that delays the messages.

// Sustained is what is left of a computation and of an exchange when they run together. Rates are
// units a second. Times are microseconds for a round trip, and the mean of all round trips, which
// includes the slow ones.
type Sustained struct {
	Bench      string  `json:"bench"`
	Transport  string  `json:"transport"`
	Poll       string  `json:"poll"`
	Bare       bool    `json:"bare,omitempty"` // a loop without the library
	What       string  `json:"what"`           // the library or the bare loop, and how it waits
	Size       int     `json:"size"`
	Goroutines int     `json:"goroutines"` // goroutines that compute
	Rounds     int     `json:"rounds"`
	Interval   float64 `json:"interval"` // seconds; a round has three intervals

	RateAlone float64 `json:"rate_alone"` // of the computation
	RateBoth  float64 `json:"rate_both"`
	RTTAlone  float64 `json:"rtt_alone"`
	RTTBoth   float64 `json:"rtt_both"`
	P50Alone  float64 `json:"p50_alone"` // of the round trips of all rounds
	P50Both   float64 `json:"p50_both"`
	P99Alone  float64 `json:"p99_alone"`
	P99Both   float64 `json:"p99_both"`

	RelativeRate float64 `json:"relative_rate"` // RateBoth / RateAlone
	RelativeRTT  float64 `json:"relative_rtt"`  // RTTAlone / RTTBoth
	Sustained    float64 `json:"sustained"`     // the geometric mean of these two

	Machine Machine `json:"machine"`
}

// bares are the bare loops beside which a transport is measured, by whether they poll.
var bares = []struct{ transport, poll, task, what string }{
	{"inproc", "never", "echo-channel", "a Go channel"},
	{"shm", "never", "echo-futex", "two futexes"},
	{"shm", "always", "echo-words", "two words, polled"},
	{"tcp", "never", "echo-blocking", "a blocking socket"},
	{"tcp", "always", "echo-polled", "a polled socket"},
}

// measureSustained measures all transports with all policies. In each round every exchange has its
// three intervals, so that other load of the machine affects all of them alike.
func measureSustained(ctx context.Context, size, rounds int, interval time.Duration) (all []*Sustained) {
	var os []options
	for _, transport := range []string{"inproc", "shm", "tcp"} {
		for _, policy := range policies {
			os = append(os, options{transport: transport, poll: policy.name, size: size})
		}
	}
	withPairs(ctx, os, nil, func(pairs []*pair) {
		var xs []*exchange
		for ps := range slices.Chunk(pairs, len(policies)) { // those of a transport
			for _, p := range ps {
				xs = append(xs, &exchange{p: p, what: "rocl, " + p.Poll, task: "echo", trip: p.trip(size), alone: newTimes(), both: newTimes()})
			}
			for _, p := range ps {
				for _, b := range bares {
					if b.transport == p.Transport && b.poll == p.Poll {
						xs = append(xs, &exchange{p: p, what: b.what, task: b.task, trip: p.wires[b.task].ping, alone: newTimes(), both: newTimes()})
					}
				}
			}
		}
		crew := newCrew(runtime.GOMAXPROCS(0))
		for round := range rounds {
			for _, x := range xs {
				x.round(round, crew, interval)
			}
		}
		for _, x := range xs {
			s := x.sustained()
			s.Bench, s.Transport, s.Poll, s.Bare, s.What, s.Size = "sustain", x.p.Transport, x.p.Poll, x.task != "echo", x.what, size
			s.Goroutines, s.Rounds, s.Interval, s.Machine = len(crew.units), rounds, interval.Seconds(), machine()
			all = append(all, s)
		}
	})
	return all
}

// withPairs runs f with the pairs got and one for each of the options.
func withPairs(ctx context.Context, os []options, got []*pair, f func([]*pair)) {
	if len(os) == 0 {
		f(got)
		return
	}
	check(withPair(ctx, &os[0], isPeer, func(p *pair) { withPairs(ctx, os[1:], append(got, p), f) }))
}

// An exchange is a way to make round trips, with the library or bare, and the figures of its
// rounds.
type exchange struct {
	p          *pair
	what, task string
	trip       func()

	rateAlone, rateBoth []float64
	alone, both         *times
}

// round measures the computation alone, the exchange alone, and both. The order changes from round
// to round, so that none always follows the same other one.
func (x *exchange) round(n int, c *crew, interval time.Duration) {
	for k := range 3 {
		switch (n + k) % 3 {
		case 0:
			x.rateAlone = append(x.rateAlone, x.together(c, nil, interval))
		case 1:
			x.together(nil, x.alone, interval)
		case 2:
			x.rateBoth = append(x.rateBoth, x.together(c, x.both, interval))
		}
	}
}

func (x *exchange) sustained() *Sustained {
	s := &Sustained{RateAlone: median(x.rateAlone), RateBoth: median(x.rateBoth), RTTAlone: x.alone.mid(), RTTBoth: x.both.mid(),
		P50Alone: x.alone.quantile(50), P99Alone: x.alone.quantile(99), P50Both: x.both.quantile(50), P99Both: x.both.quantile(99)}
	s.RelativeRate, s.RelativeRTT = ratio(s.RateBoth, s.RateAlone), ratio(s.RTTAlone, s.RTTBoth)
	s.Sustained = math.Sqrt(s.RelativeRate * s.RelativeRTT)
	return s
}

// ratio returns part / whole, or 0 if the interval was too short for any work.
func ratio(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}

// together runs the crew c, if not nil, while x makes round trips, which it records in t. If t is
// nil, x makes none. together returns units a second. The first tenth does not count.
func (x *exchange) together(c *crew, t *times, interval time.Duration) (rate float64) {
	if c == nil {
		c = newCrew(0)
	}
	defer c.start()()
	spend := func(d time.Duration, _ *times) { sleep(x.p.ctx, d) }
	if t != nil {
		x.p.begin(x.p.peer, x.task, untilLast)
		spend = x.talk
	}
	spend(interval/10, newTimes())
	speed := c.speed()
	spend(interval, t)
	rate = speed()
	if t != nil { // after one more trip the peer is idle
		x.p.mem.last.Store(1)
		x.trip()
		x.p.wait(x.p.peer)
		x.p.mem.last.Store(0)
	}
	return rate
}

// talk makes round trips for d. The figure of a round is the mean.
func (x *exchange) talk(d time.Duration, t *times) {
	start := time.Now()
	now, n := start, 0
	for now.Sub(start) < d {
		proceed(x.p.ctx)
		x.trip()
		was := now
		now = time.Now()
		_ = t.all.RecordValue(int64(now.Sub(was)))
		n++
	}
	t.each = append(t.each, float64(now.Sub(start))/1e3/float64(n))
}

// A unit of the computation is a product of two matrices that fit into the first-level cache
// together with it. So the figure includes the cost of cache lines that the exchange evicts.
type unit [3][32][32]float64

func (u *unit) compute() {
	for i := range u[0] {
		for j := range u[0] {
			sum := 0.0
			for k := range u[0] {
				sum += u[0][i][k] * u[1][k][j]
			}
			u[2][i][j] = sum
		}
	}
}

// A crew has goroutines that compute.
type crew struct {
	units []unit // one for each goroutine
	done  atomic.Uint64
}

// newCrew returns a crew of n goroutines.
func newCrew(n int) *crew { return &crew{units: make([]unit, n)} }

// start starts the goroutines. stop ends them.
func (c *crew) start() (stop func()) {
	var isOver atomic.Bool
	var busy sync.WaitGroup
	for i := range c.units {
		busy.Go(func() {
			for ; !isOver.Load(); c.done.Add(1) {
				c.units[i].compute()
			}
		})
	}
	return func() { isOver.Store(true); busy.Wait() }
}

// speed returns a function that returns the units a second since then.
func (c *crew) speed() func() float64 {
	start, before := time.Now(), c.done.Load()
	return func() float64 { return float64(c.done.Load()-before) / time.Since(start).Seconds() }
}
