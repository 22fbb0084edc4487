// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/database"
)

// A side makes one of the loops of a case.
type side func(*pair) loop

// A comparison is a case: a loop of rocl beside a bare one.
type comparison struct {
	bench           string              // the command,
	transport, poll string              // what its flags must say; "": anything
	when            func(*options) bool // the same for other flags; nil: anything

	name       string // of the row; "": the command
	role       role   // of the peer; "": isPeer
	set        func(*options)
	what, unit string // what the bare loop is, and the unit of the figures; a unit with "/s" is a rate
	goal       float64
	bare, ours side
	also       []side // further loops
	// finish completes the row, or returns the rows instead. The figures are those of the bare loop,
	// of rocl's, and of the further ones.
	finish func(p *pair, r *Result, t []*times) []*Result
	run    func(p *pair, c *comparison) ([]*Result, error) // measures in another way
}

// comparisons is the table of all cases.
var comparisons = slices.Concat([]comparison{
	{bench: "rtt", transport: "tcp", poll: "always", when: plain, what: "a bare polled Go loop", unit: "µs", goal: 1.08, bare: bareTrips("echo-polled"), ours: messages("echo"), finish: rttBesideBareTail},
	{bench: "rtt", transport: "tcp", poll: "adaptive", when: plain, what: "a bare Go loop over the runtime's poller", unit: "µs", goal: 1.08, bare: bareTrips("echo-blocking"), ours: messages("echo")},
	{bench: "rtt", transport: "tcp", poll: "never", when: plain, what: "a bare Go loop that sleeps in poll(2)", unit: "µs", goal: 1.08, bare: bareTrips("echo-sleeping"), ours: messages("echo")},
	{bench: "rtt", transport: "shm", poll: "always", when: plain, what: "a bare Go loop over two atomic words", unit: "µs", goal: 1.8, bare: bareTrips("echo-words"), ours: messages("echo"), also: []side{small}, finish: rttShared},
	{bench: "rtt", transport: "shm", poll: "adaptive", when: plain, what: "a bare Go loop over two atomic words", unit: "µs", goal: 1.8, bare: bareTrips("echo-words"), ours: messages("echo"), also: []side{small}, finish: rttShared},
	{bench: "rtt", transport: "shm", poll: "never", when: plain, what: "a bare Go loop over two shared futexes", unit: "µs", goal: 1.25, bare: bareTrips("echo-futex"), ours: messages("echo"), also: []side{small}, finish: rttShared},
	{bench: "rtt", transport: "shm", when: func(o *options) bool { return o.pause > 0 }, what: "a bare Go loop over two eventfds of the runtime's poller", unit: "µs", goal: 1.2, bare: bareTrips("echo-events"), ours: messages("echo"), also: []side{small}, finish: rttShared},
	{bench: "rtt", transport: "inproc", when: plain, what: "a Go channel there and back", unit: "µs", goal: 1.8, bare: bareTrips("echo-channel"), ours: messages("echo"), finish: note(untouched)},
	{bench: "rtt", when: func(o *options) bool { return o.server == "goroutine" }, name: "rtt server=goroutine", what: "a server that answers in its loop", unit: "µs", goal: 3, bare: messages("echo"), ours: messages("echo-goroutine"), finish: rttServer},
	{bench: "rtt", when: func(o *options) bool { return o.server == "receivers" }, name: "rtt server=receivers", what: "a server that answers in its loop", unit: "µs", goal: 3, bare: messages("echo"), ours: messages("echo-receivers"), finish: rttServer},
	{bench: "rtt", when: func(o *options) bool { return o.idle > 0 }, what: "without the idle links, before and after", unit: "µs", goal: 1.1, run: rttIdle},

	{bench: "call", when: func(o *options) bool { return o.inFlight <= 1 }, what: "a message there and back", unit: "µs", goal: 1.1, bare: messages("echo"), ours: calls},
	{bench: "call", transport: "shm", when: inFlight, what: "net/rpc over TCP", unit: "calls/s", goal: 1_000_000, bare: netCalls, ours: callsInFlight, finish: callsLeast},
	{bench: "call", transport: "tcp", when: inFlight, what: "net/rpc over TCP", unit: "calls/s", goal: 400_000, bare: netCalls, ours: callsInFlight, finish: callsLeast},
	{bench: "call", transport: "inproc", when: inFlight, what: "net/rpc over a pipe", unit: "calls/s", bare: netCalls, ours: callsInFlight},

	{bench: "rate", transport: "tcp", what: "a bare buffered Go loop", unit: "messages/s", goal: 0.65, bare: buffered(true), ours: floods, also: []side{buffered(false)}, finish: func(_ *pair, r *Result, t []*times) []*Result {
		r.Extra = fmt.Sprintf("the bare loop without lengths, both sides knowing the size: %.3g; ratio %.2f", t[2].mid(), r.Rate/t[2].mid())
		return nil
	}},
	{bench: "rate", transport: "shm", what: "a bare ring in shared memory", unit: "messages/s", goal: 0.8, bare: throughRing, ours: floods},
	{bench: "rate", transport: "inproc", what: "a Go channel with room for 1024", unit: "messages/s", bare: channelRate, ours: floods,
		finish: note("the bare figure passes a pointer; the library copies the bytes of each message")},

	{bench: "bw", transport: "tcp", unit: "bytes/s", goal: 0.9, bare: bestStream(intoBlock), ours: pour("recv", false), finish: besideBest("the receiver of both reads no byte of a message; each message of the library's is received into a buffer of its own, those of the bare loop into the same block")},
	{bench: "bw", transport: "shm", what: "memcpy, of one goroutine", unit: "bytes/s", bare: memcpy, ours: pour("recv-read", true), finish: note("the sender writes every byte, and the receiver reads every byte")},

	{bench: "find", when: func(o *options) bool { return o.nodes+o.resources == 0 }, set: overTCP, what: "a bare Unix-socket round trip of the same bytes", unit: "µs", goal: 1.3, bare: bareTrips("echo-unix"), ours: findPeer, finish: func(_ *pair, r *Result, _ []*times) []*Result {
		r.Transport, r.Poll = "", ""
		return nil
	}},
	{bench: "find", when: func(o *options) bool { return o.resources > 0 }, role: isDirectory, what: "the required 1 µs", unit: "µs", goal: 1, run: findInPlace},
	{bench: "find", poll: "always", when: func(o *options) bool { return o.nodes > 0 }, role: isNode, what: "a bare polled UDP round trip", unit: "µs", goal: 1.5, bare: datagrams, ours: findThere, also: []side{findNowhere}, finish: findNodes},
	{bench: "find", when: func(o *options) bool { return o.nodes > 0 && o.poll != "always" }, role: isNode, what: "a bare blocking UDP round trip", unit: "µs", bare: datagrams, ours: findThere, also: []side{findNowhere}, finish: findNodes},
	{bench: "findall", role: isDirectory, unit: "µs", run: findAll},
}, rpcCases, bulkCases, tpvmCases)

// compare measures all cases that the flags are for, over each of the transports.
func compare(transports ...string) func(context.Context, *options) ([]*Result, error) {
	return func(ctx context.Context, o *options) (all []*Result, err error) {
		over := transports
		if o.transport != "" {
			over = []string{o.transport}
		}
		for _, transport := range over {
			for _, c := range comparisons {
				own := *o
				own.transport = transport
				if !c.fits(&own) {
					continue
				}
				rs, err := c.measure(ctx, own)
				if err != nil {
					return nil, err
				}
				all = append(all, rs...)
			}
		}
		return all, nil
	}
}

func (c *comparison) fits(o *options) bool {
	return c.bench == o.bench && (c.transport == "" || c.transport == o.transport) && (c.poll == "" || c.poll == o.poll) && (c.when == nil || c.when(o))
}

func (c *comparison) measure(ctx context.Context, o options) ([]*Result, error) {
	if c.set != nil {
		c.set(&o)
	}
	with := c.role
	if with == "" {
		with = isPeer
	}
	p, err := openPair(ctx, &o, with)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if o.opened != nil {
		o.opened(p)
	}
	run := c.run
	if run == nil {
		run = loops
	}
	rs, err := run(p, c)
	if err != nil {
		return nil, p.why(err)
	}
	return rs, nil
}

// loops measures the loops of a case.
func loops(p *pair, c *comparison) ([]*Result, error) {
	var all []loop
	for _, s := range append([]side{c.bare, c.ours}, c.also...) {
		if l := s(p); l != nil {
			all = append(all, l)
		}
	}
	t, err := measure(p.o.rounds, p.o.count, all...)
	if err != nil {
		return nil, err
	}
	r := p.result(c, t[1], t[0])
	if c.finish != nil {
		if rs := c.finish(p, r, t); rs != nil {
			return rs, nil
		}
	}
	return []*Result{r}, nil
}

// note returns a finish that adds a note.
func note(text string) func(*pair, *Result, []*times) []*Result {
	return func(_ *pair, r *Result, _ []*times) []*Result {
		r.Extra = text
		return nil
	}
}

// untouched is the note of cases that hand buffers over.
const untouched = "no byte of a message is written or read: this is what handing it over takes"

func bareTrips(task string) side {
	return func(p *pair) loop { return p.trips(task, p.bare(task)) }
}

func messages(task string) side {
	return func(p *pair) loop { return p.computing(p.trips(task, p.trip(p.Size))) }
}

// plain reports whether rtt has no other structure.
func plain(o *options) bool {
	return o.idle == 0 && o.pause == 0 && o.server == servers[0]
}

const smallSize = 64

// small is the loop that one of larger messages is compared with: over shared memory, the time
// should not depend on the size.
func small(p *pair) loop {
	if p.Size <= smallSize {
		return nil
	}
	return p.trips("echo", p.trip(smallSize))
}

// computing returns the loop l beside --compute goroutines that compute all the time.
func (p *pair) computing(l loop) loop {
	if p.o.compute == 0 {
		return l
	}
	if p.crew == nil {
		p.crew = newCrew(p.o.compute)
		p.add(p.crew.start())
	}
	return func(n int, t *times) error {
		speed := p.crew.speed()
		time.Sleep(300 * time.Millisecond)
		alone := speed()
		speed = p.crew.speed()
		err := l(n, t)
		p.computed = append(p.computed, speed()/alone)
		return err
	}
}

func rttBesideBareTail(p *pair, r *Result, t []*times) []*Result {
	return []*Result{r, r.tail(r.What, r.RawP99, 1.2)}
}

// tail returns the row of the p99 of a row, beside raw.
func (r *Result) tail(what string, raw, goal float64) *Result {
	return &Result{Bench: "rtt p99", Transport: r.Transport, Size: r.Size, Poll: r.Poll, Count: r.Count, Unit: r.Unit,
		What: what, P50: r.P99, Raw: raw, Ratio: r.P99 / raw, Target: goal}
}

func rttShared(p *pair, r *Result, t []*times) []*Result {
	all := []*Result{r}
	if p.o.pause > 0 {
		r.Pause = p.o.pause.String()
	} else if p.Poll == "always" {
		all = append(all, r.tail("its own p50", r.P50, 2))
	}
	if len(t) > 2 {
		r.Extra = fmt.Sprintf("%s: p50 %.2f µs; %s", r.What, r.Raw, untouched)
		r.What, r.Target = "64 bytes in the same run", 1.2
		r.compare(t[1], t[2])
	}
	if p.o.compute > 0 {
		r.Compute, r.Computed = p.o.compute, median(p.computed[1:]) // the first warms up
		if r.Extra != "" {
			r.Extra += "\n"
		}
		r.Extra += fmt.Sprintf("computing meanwhile: %.0f %% of what it is alone", 100*r.Computed)
	}
	return all
}

// serverMost is how many microseconds a round trip may take with any server. It applies even if
// that is more than three times the time with the server that answers in its loop.
const serverMost = 5

func rttServer(p *pair, r *Result, t []*times) []*Result {
	r.Target = max(r.Target, serverMost/r.Raw)
	return nil
}

// rttIdle measures what unused links cost a link in use: round trips of a pair alone, then beside
// other links of this context, and alone again.
func rttIdle(p *pair, c *comparison) ([]*Result, error) {
	alone, beside := newTimes(), newTimes()
	for _, side := range []struct {
		links int
		t     *times
	}{{0, alone}, {p.o.idle, beside}, {0, alone}} {
		if err := p.begin("idle", side.links); err != nil {
			return nil, err
		}
		for range side.links {
			if err := p.recv(p.me); err != nil {
				return nil, err
			}
		}
		if err := p.wait(); err != nil {
			return nil, err
		}
		t, err := measure(p.o.rounds, p.o.count, messages("echo")(p))
		if err != nil {
			return nil, err
		}
		side.t.each = append(side.t.each, t[0].each...)
		side.t.all.Merge(t[0].all)
	}
	r := p.result(c, beside, alone)
	r.Idle = p.o.idle
	return []*Result{r}, nil
}

// calls is a loop of calls, whose requests are in new buffers like the messages of trip.
func calls(p *pair) loop {
	return p.trips("reply", func() error { return p.call(p.msg) })
}

func (p *pair) call(ctx context.Context) error {
	b, err := p.c.Buffer(p.Size)
	if err != nil {
		return err
	}
	m, err := p.me.Call(ctx, p.to, 0, b)
	if err != nil {
		b.Release()
		return err
	}
	m.Release()
	return nil
}

func inFlight(o *options) bool { return o.inFlight > 1 }

// callsInFlight is a loop of calls of many goroutines. A call of net/rpc cannot be cancelled. For
// comparison the library's calls use a context that does not end.
func callsInFlight(p *pair) loop {
	return p.sharing(p.o.inFlight, "reply", func(_, each int) error { return repeat(each, func() error { return p.call(p.free) }) })
}

// sharing returns a loop whose messages goroutines share, while the peer does a task.
func (p *pair) sharing(goroutines int, task string, f func(i, each int) error) loop {
	return func(n int, t *times) error {
		each := max(n/goroutines, 1)
		all := each * goroutines
		return p.with(task, func(_ int, t *times) error {
			return t.rate(float64(all), func() error {
				err := concurrently(goroutines, func(i int) error { return f(i, each) })
				if err == nil && task == "recv" {
					err = p.ack()
				}
				return err
			})
		}, goroutines)(all, t)
	}
}

func repeat(n int, f func() error) error {
	for range n {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// rpcThere is the mean number of calls a second of net/rpc on the machine for which the least
// numbers of calls in flight were set.
const rpcThere = 57_500.0

func callsLeast(p *pair, r *Result, t []*times) []*Result {
	least := r.Target
	if r.Target = 0; p.o.inFlight == 32 {
		r.Target = least / r.Raw
		r.Extra = fmt.Sprintf("at least %.0f are required, where net/rpc makes %.0f: %.1f times as many", least, rpcThere, least/rpcThere)
	}
	return nil
}

// buffered is a bare loop of messages through a buffer.
func buffered(lengths bool) side {
	task := "recv-fixed"
	if lengths {
		task = "recv-lengths"
	}
	return func(p *pair) loop {
		return p.with(task, func(n int, t *times) error {
			return t.rate(float64(n), func() error { return sendRaw(p.tcp, max(p.Size, 1), n, lengths) })
		})
	}
}

func throughRing(p *pair) loop {
	return p.with("recv-ring", func(n int, t *times) error {
		return t.rate(float64(n), func() error { return p.mem.send(p.ctx, max(p.Size, 1), n) })
	})
}

func channelRate(p *pair) loop {
	return func(n int, t *times) error {
		each := max(n/p.o.senders, 1)
		return t.rate(float64(each*p.o.senders), func() error { return throughChannel(p.ctx, p.o.senders, each) })
	}
}

// floods is a loop of senders that send copies of one message, as the bare loops do.
func floods(p *pair) loop {
	flood := p.sharing(p.o.senders, "recv", func(i, each int) error {
		b := make([]byte, p.Size)
		for k := range uint64(each) {
			if err := p.senders[i].SendBytes(p.msg, p.to, uint64(i)<<40|k, b); err != nil {
				return err
			}
		}
		return nil
	})
	return func(n int, t *times) error {
		for len(p.senders) < p.o.senders {
			r, err := p.c.Register(p.ctx, rocl.Attrs{"bench": "sender"})
			if err != nil {
				return err
			}
			p.senders = append(p.senders, r)
		}
		return flood(n, t)
	}
}

// ack waits for the receiver's one answer, whichever sender it goes to.
func (p *pair) ack() error {
	if len(p.senders) == 1 {
		return p.recv(p.me)
	}
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	got := make(chan error, len(p.senders))
	for _, s := range p.senders {
		go func() {
			m, err := s.Recv(ctx)
			if err == nil {
				m.Release()
			}
			got <- err
		}()
	}
	err := <-got
	cancel()
	for range len(p.senders) - 1 {
		<-got
	}
	return err
}

// bestStream is the fastest bare loop of large messages.
func bestStream(into string) side {
	return func(p *pair) loop {
		b := fillCounting(make([]byte, max(p.Size, 1)))
		return func(n int, t *times) error {
			if p.best == nil {
				most := 0.0
				for _, s := range streams {
					got := newTimes()
					if err := p.move(s, intoBlock, b, max(n/4, 1), got); err != nil {
						return err
					}
					if got.each[0] > most {
						p.best, most = &s, got.each[0]
					}
				}
			}
			return p.move(*p.best, into, b, n, t)
		}
	}
}

// besideBest returns a finish that names the fastest bare loop, and adds a note.
func besideBest(text string) func(*pair, *Result, []*times) []*Result {
	return func(p *pair, r *Result, _ []*times) []*Result {
		r.What, r.Extra = p.best.what(), text
		return nil
	}
}

// move sends n messages b by a stream over a separate connection.
func (p *pair) move(s stream, into string, b []byte, n int, t *times) error {
	kind := 0
	if s.isPolled {
		kind = 1
	}
	return p.with(into, func(n int, t *times) error {
		nc, done, err := p.dial()
		if err != nil {
			return err
		}
		defer done()
		rw, close, err := s.prepare(nc)
		if err != nil {
			return err
		}
		defer close()
		return t.rate(float64(len(b))*float64(n), func() error { return sendBulk(rw, b, n) })
	}, kind, s.buffers)(n, t)
}

// memcpy is a loop of copies by one goroutine.
func memcpy(p *pair) loop {
	source, to := fillCounting(make([]byte, p.Size)), make([]byte, p.Size)
	return func(n int, t *times) error {
		return t.rate(float64(p.Size)*float64(n), func() error {
			for range n {
				copy(to, source)
			}
			return nil
		})
	}
}

// pour is a loop of large messages, each in a new buffer, which the sender writes or not.
func pour(task string, writes bool) side {
	return func(p *pair) loop {
		var source []byte
		if writes {
			source = fillCounting(make([]byte, p.Size))
		}
		return p.pour(task, func(b []byte) { copy(b, source) })
	}
}

func (p *pair) pour(task string, write func([]byte)) loop {
	return p.with(task, func(n int, t *times) error {
		return t.rate(float64(p.Size)*float64(n), func() error {
			for i := range uint64(n) {
				b, err := p.c.BufferWait(p.ctx, p.Size)
				if err != nil {
					return err
				}
				write(b.Bytes())
				if err := p.me.Send(p.msg, p.to, i, b); err != nil {
					b.Release()
					return err
				}
			}
			return p.recv(p.me)
		})
	}, 1)
}

func db(ctx context.Context, o *options) ([]*Result, error) {
	m := database.Measure(ctx, o.count)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r := &Result{Bench: "db", Count: m.Resources, Unit: "registrations/s", What: "the required 700,000", Rate: m.PutsPerSecond, Raw: 700_000, Target: 1, AtLeast: true,
		P50: float64(m.FindP50) / 1e3, P99: float64(m.FindP99) / 1e3, Ratio: m.PutsPerSecond / 700_000}
	r.Extra = fmt.Sprintf("%.0f bytes a resource beyond its attributes (at most 350); exact find p50 %.2f µs, p99 %.2f (at most 1 µs)", m.BytesEach, r.P50, r.P99)
	return []*Result{r}, nil
}
