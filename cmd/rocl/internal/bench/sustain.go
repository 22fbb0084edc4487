// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
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
func measureSustained(ctx context.Context, size, rounds int, interval time.Duration) (all []*Sustained, err error) {
	var xs []*exchange
	for _, transport := range []string{"inproc", "shm", "tcp"} {
		var bare []*exchange
		for _, policy := range policies {
			p, err := openPair(ctx, &options{transport: transport, poll: policy.name, size: size}, isPeer)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", transport, policy.name, err)
			}
			defer p.close()
			xs = append(xs, newExchange(p, "rocl, "+policy.name, "echo", p.trip(size)))
			for _, b := range bares {
				if b.transport == transport && b.poll == policy.name {
					bare = append(bare, newExchange(p, b.what, b.task, p.bare(b.task)))
				}
			}
		}
		xs = append(xs, bare...)
	}
	crew := newCrew(runtime.GOMAXPROCS(0))
	for round := range rounds {
		for _, x := range xs {
			if err := x.round(round, crew, interval); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", x.p.Transport, x.what, x.p.why(err))
			}
		}
	}
	for _, x := range xs {
		s := x.sustained()
		s.Bench, s.Transport, s.Poll, s.Bare, s.What, s.Size = "sustain", x.p.Transport, x.p.Poll, x.task != "echo", x.what, size
		s.Goroutines, s.Rounds, s.Interval, s.Machine = len(crew), rounds, interval.Seconds(), machine()
		all = append(all, s)
	}
	return all, nil
}

// An exchange is a way to make round trips, with the library or bare, and the figures of its rounds.
type exchange struct {
	p          *pair
	what, task string
	trip       func() error

	rateAlone, rateBoth []float64
	alone, both         *times
}

func newExchange(p *pair, what, task string, trip func() error) *exchange {
	return &exchange{p: p, what: what, task: task, trip: trip, alone: newTimes(), both: newTimes()}
}

// round measures the computation alone, the exchange alone, and both. The order changes from round
// to round, so that none always follows the same other one.
func (x *exchange) round(n int, c crew, interval time.Duration) error {
	for k := range 3 {
		var err error
		var rate float64
		switch (n + k) % 3 {
		case 0:
			rate, err = x.together(c, nil, interval)
			x.rateAlone = append(x.rateAlone, rate)
		case 1:
			_, err = x.together(nil, x.alone, interval)
		case 2:
			rate, err = x.together(c, x.both, interval)
			x.rateBoth = append(x.rateBoth, rate)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *exchange) sustained() *Sustained {
	s := &Sustained{RateAlone: median(x.rateAlone), RateBoth: median(x.rateBoth), RTTAlone: x.alone.mid(), RTTBoth: x.both.mid(),
		P50Alone: x.alone.quantile(50), P99Alone: x.alone.quantile(99), P50Both: x.both.quantile(50), P99Both: x.both.quantile(99)}
	s.RelativeRate, s.RelativeRTT = share(s.RateBoth, s.RateAlone), share(s.RTTAlone, s.RTTBoth)
	s.Sustained = math.Sqrt(s.RelativeRate * s.RelativeRTT)
	return s
}

// share returns part / whole, or 0 if the interval was too short for any work.
func share(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}

// together runs the crew c, if not nil, while x makes round trips, which it records in t. If t is
// nil, x makes none. together returns units a second. The first tenth does not count.
func (x *exchange) together(c crew, t *times, interval time.Duration) (rate float64, err error) {
	defer c.start()()
	spend := func(d time.Duration, _ *times) error { return sleep(x.p.ctx, d) }
	if t != nil {
		if err := x.p.begin(x.task, untilLast, 0); err != nil {
			return 0, err
		}
		spend = x.talk
	}
	if err := spend(interval/10, newTimes()); err != nil {
		return 0, err
	}
	speed := c.speed()
	err = spend(interval, t)
	rate = speed()
	if t == nil || err != nil {
		return rate, err
	}
	x.p.mem.last.Store(1) // after one more trip the peer is idle
	defer x.p.mem.last.Store(0)
	if err := x.trip(); err != nil {
		return 0, err
	}
	return rate, x.p.wait()
}

// talk makes round trips for d. The figure of a round is the mean.
func (x *exchange) talk(d time.Duration, t *times) error {
	start := time.Now()
	now, n := start, 0
	for now.Sub(start) < d {
		if x.p.ctx.Err() != nil {
			return context.Cause(x.p.ctx)
		}
		if err := x.trip(); err != nil {
			return err
		}
		was := now
		now = time.Now()
		_ = t.all.RecordValue(int64(now.Sub(was)))
		n++
	}
	t.each = append(t.each, float64(now.Sub(start))/1e3/float64(n))
	return nil
}

// A unit of the computation is a product of two matrices that fit into the first-level cache
// together with it. So the figure includes the cost of cache lines that the exchange evicts.
const order = 32

type worker struct {
	a, b, product [order][order]float64
	done          atomic.Uint64 // number of units
	stop          atomic.Bool
}

func (w *worker) work() {
	for !w.stop.Load() {
		for i := range order {
			for j := range order {
				sum := 0.0
				for k := range order {
					sum += w.a[i][k] * w.b[k][j]
				}
				w.product[i][j] = sum
			}
		}
		w.done.Add(1)
	}
}

// A crew is several workers.
type crew []*worker

func newCrew(n int) crew {
	c := make(crew, n)
	for n := range c {
		c[n] = &worker{}
		for i := range order {
			for j := range order {
				c[n].a[i][j], c[n].b[i][j] = float64(i+1), 1/float64(j+1)
			}
		}
	}
	return c
}

// start starts a goroutine for each worker. stop ends them.
func (c crew) start() (stop func()) {
	var busy sync.WaitGroup
	for _, w := range c {
		w.stop.Store(false)
		busy.Go(w.work)
	}
	return func() {
		for _, w := range c {
			w.stop.Store(true)
		}
		busy.Wait()
	}
}

// speed returns a function that returns the units a second since then.
func (c crew) speed() func() float64 {
	units := func() (n uint64) {
		for _, w := range c {
			n += w.done.Load()
		}
		return n
	}
	start, before := time.Now(), units()
	return func() float64 { return float64(units()-before) / time.Since(start).Seconds() }
}
