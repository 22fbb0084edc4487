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

	"github.com/HdrHistogram/hdrhistogram-go"
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
var bares = []struct{ transport, poll, what string }{
	{"inproc", "never", "a Go channel"},
	{"shm", "never", "two futexes"},
	{"shm", "always", "two words, polled"},
	{"tcp", "never", "a blocking socket"},
	{"tcp", "always", "a polled socket"},
}

// measureSustained measures all transports with all policies. In each round every exchange has its
// three intervals, so that other load of the machine affects all of them alike.
func measureSustained(ctx context.Context, size, rounds int, interval time.Duration) (all []*Sustained, err error) {
	var xs []*exchange
	defer func() {
		for _, x := range xs {
			x.close()
		}
	}()
	for _, transport := range []string{"inproc", "shm", "tcp"} {
		open := openBetween
		if transport == "inproc" {
			open = openWithin
		}
		var bare []*exchange
		for _, p := range policies {
			ours, its, err := open(ctx, &options{transport: transport, poll: p.name, size: size})
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", transport, p.name, err)
			}
			xs, bare = append(xs, ours), append(bare, its...)
		}
		xs = append(xs, bare...)
	}
	crew := newCrew()
	ms := make([]sides, len(xs))
	for i := range ms {
		ms[i] = sides{alone: newTrips(), both: newTrips()}
	}
	for round := range rounds {
		for i, x := range xs {
			if err := ms[i].round(round, x, crew, interval); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", x.transport, x.name(), x.why(err))
			}
		}
	}
	for i, x := range xs {
		s := ms[i].sustained()
		s.Bench, s.Transport, s.Poll, s.Bare, s.What, s.Size = "sustain", x.transport, x.poll, x.bare != "", x.name(), size
		s.Goroutines, s.Rounds, s.Interval, s.Machine = len(crew), rounds, interval.Seconds(), machine()
		all = append(all, s)
	}
	return all, nil
}

// sides are the rounds of one exchange.
type sides struct {
	rateAlone, rateBoth []float64
	alone, both         *trips
}

// round measures the computation alone, the exchange alone, and both. The order changes from round
// to round, so that none always follows the same other one.
func (m *sides) round(n int, x *exchange, c crew, interval time.Duration) error {
	for k := range 3 {
		var err error
		var rate float64
		switch (n + k) % 3 {
		case 0:
			rate, err = together(x, c, nil, interval)
			m.rateAlone = append(m.rateAlone, rate)
		case 1:
			_, err = together(x, nil, m.alone, interval)
		case 2:
			rate, err = together(x, c, m.both, interval)
			m.rateBoth = append(m.rateBoth, rate)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *sides) sustained() *Sustained {
	s := &Sustained{RateAlone: median(m.rateAlone), RateBoth: median(m.rateBoth)}
	s.RTTAlone, s.P50Alone, s.P99Alone = m.alone.figures()
	s.RTTBoth, s.P50Both, s.P99Both = m.both.figures()
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
func together(x *exchange, c crew, t *trips, interval time.Duration) (float64, error) {
	defer c.start()()
	spend := x.sleep
	if t != nil {
		if err := x.begin(); err != nil {
			return 0, err
		}
		spend = x.talk
	}
	if err := spend(interval/10, newTrips()); err != nil {
		return 0, err
	}
	before, start := c.units(), time.Now()
	if err := spend(interval, t); err != nil {
		return 0, err
	}
	rate := float64(c.units()-before) / time.Since(start).Seconds()
	if t != nil {
		return rate, x.end()
	}
	return rate, nil
}

// trips collects round trips.
type trips struct {
	means []float64 // the mean of each interval
	all   *hdrhistogram.Histogram
}

func newTrips() *trips { return &trips{all: hdrhistogram.New(1, int64(time.Minute), 3)} }

func (t *trips) figures() (mean, p50, p99 float64) {
	return median(t.means), float64(t.all.ValueAtQuantile(50)) / 1e3, float64(t.all.ValueAtQuantile(99)) / 1e3
}

// A unit of the computation is a product of two matrices that fit into the first-level cache
// together with it. So the figure includes the cost of cache lines that the exchange evicts.
const order = 32

type worker struct {
	a, b, product [order][order]float64
	done          atomic.Uint64 // number of units
	stop          atomic.Bool
}

func (w *worker) unit() {
	for i := range order {
		for j := range order {
			sum := 0.0
			for k := range order {
				sum += w.a[i][k] * w.b[k][j]
			}
			w.product[i][j] = sum
		}
	}
}

func (w *worker) work() {
	for !w.stop.Load() {
		w.unit()
		w.done.Add(1)
	}
}

// A crew is a worker for each processor.
type crew []*worker

func newCrew() crew {
	c := make(crew, runtime.GOMAXPROCS(0))
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

func (c crew) units() (n uint64) {
	for _, w := range c {
		n += w.done.Load()
	}
	return n
}

// exchange is a way to make round trips, with the library or bare.
type exchange struct {
	transport, poll, bare string

	ctx   context.Context   // ends when no more trips are possible
	begin func() error      // makes the other side echo
	trip  func() error      // makes one round trip
	end   func() error      // makes a last trip, after which the other side is idle
	why   func(error) error // returns the reason for an error
	close func()
}

// name returns the name of the bare loop, or the library's name with the policy.
func (x *exchange) name() string {
	if x.bare != "" {
		return x.bare
	}
	return "rocl, " + x.poll
}

// talk makes round trips for d.
func (x *exchange) talk(d time.Duration, t *trips) error {
	start := time.Now()
	now, n := start, 0
	for now.Sub(start) < d {
		if x.ctx.Err() != nil {
			return context.Cause(x.ctx)
		}
		if err := x.trip(); err != nil {
			return err
		}
		was := now
		now = time.Now()
		_ = t.all.RecordValue(int64(now.Sub(was)))
		n++
	}
	t.means = append(t.means, float64(now.Sub(start))/1e3/float64(n))
	return nil
}

// sleep does nothing for d.
func (x *exchange) sleep(d time.Duration, _ *trips) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-x.ctx.Done():
		return context.Cause(x.ctx)
	}
}

// openBetween starts a process to exchange messages with. It returns the exchange of the library,
// and the bare ones that are compared with it, if any.
func openBetween(ctx context.Context, o *options) (*exchange, []*exchange, error) {
	p, err := openPair(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	to := func(bare, task string, trip func() error) *exchange {
		return &exchange{
			transport: o.transport, poll: o.poll, bare: bare, ctx: p.ctx, why: p.why, close: func() {}, trip: trip,
			begin: func() error { return p.begin(task, untilLast) },
			end: func() error {
				p.words.last.Store(1)
				defer p.words.last.Store(0)
				if err := trip(); err != nil {
					return err
				}
				return p.wait()
			},
		}
	}
	ours := to("", "echo", func() error { return pingPong(p.ctx, p.c, p.me, p.peer, o.size) })
	ours.close = p.close
	what := bareOf(o)
	switch {
	case what == "":
		return ours, nil, nil
	case o.transport == "shm":
		task, futex := "echo-words", o.poll == "never"
		if futex {
			task = "echo-futex"
		}
		return ours, []*exchange{to(what, task, func() error { return p.words.ping(p.ctx, futex) })}, nil
	case o.poll == "never":
		return ours, []*exchange{to(what, "echo-blocking", func() error { return p.tripRaw(p.raw, o.size) })}, nil
	}
	return ours, []*exchange{to(what, "echo-polled", func() error { return p.tripRaw(p.poll, o.size) })}, nil
}

func bareOf(o *options) string {
	for _, b := range bares {
		if b.transport == o.transport && b.poll == o.poll {
			return b.what
		}
	}
	return ""
}

// openWithin is openBetween for two contexts of this process. As in all benches within a process, a
// message is not cancelled: see rttInproc.
func openWithin(ctx context.Context, o *options) (*exchange, []*exchange, error) {
	p, err := openInproc(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	why := func(err error) error { return err }
	var last atomic.Bool
	echoed := make(chan error, 1)
	var echoing sync.WaitGroup
	ours := &exchange{
		transport: o.transport, poll: o.poll, ctx: ctx, why: why,
		trip: func() error { return pingPong(context.Background(), p.a, p.me, p.peer.ID(), o.size) },
		begin: func() error {
			last.Store(false)
			echoing.Go(func() {
				echoed <- echo(context.Background(), p.b, p.peer, func() bool { return !last.Load() }, nil)
			})
			return nil
		},
		close: func() { p.close(); echoing.Wait() },
	}
	ours.end = func() error {
		last.Store(true)
		if err := ours.trip(); err != nil {
			return err
		}
		return <-echoed
	}
	what := bareOf(o)
	if what == "" {
		return ours, nil, nil
	}
	var msg [64]byte
	var to, fro chan *[64]byte
	end := func() error {
		if to != nil {
			close(to)
			<-fro
			to = nil
		}
		return nil
	}
	return ours, []*exchange{{
		transport: o.transport, poll: o.poll, bare: what, ctx: ctx, why: why,
		trip: func() error { to <- &msg; <-fro; return nil },
		begin: func() error {
			there, back := make(chan *[64]byte), make(chan *[64]byte)
			to, fro = there, back
			go func() {
				defer close(back)
				for m := range there {
					back <- m
				}
			}()
			return nil
		},
		end:   end,
		close: func() { _ = end() },
	}}, nil
}
