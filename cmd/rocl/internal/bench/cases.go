// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"slices"

	"github.com/rocl-go/rocl"
)

// A comparison is a case: a loop of rocl beside a bare one.
type comparison struct {
	bench           string              // the command,
	transport, poll string              // what its flags must say; "": anything
	when            func(*options) bool // the same for other flags; nil: anything

	name       string         // of the row; "": the command
	role       role           // of the peer; "": isPeer
	set        func(*options) // changes options that have no flag
	what, unit string         // what the bare loop is, and the unit of the figures; a unit with "/s" is a rate
	limits     []Limit
	bare, ours side
	also       []side                                 // further loops
	finish     finish                                 // may be nil
	run        func(p *pair, c *comparison) []*Result // measures in another way than by loops
}

// A side makes a loop, or returns nil if the options ask for none.
type side func(*pair) loop

// A finish completes a row, and may return further rows. The figures are those of the bare loop, of
// rocl's, and of the further ones.
type finish func(p *pair, r *Result, t []*times) []*Result

// Limits that several cases have.
var (
	noAllocs = atMost("allocs", 0)
	likeBare = atMost("p99/bare", 1.2)
	evenness = atMost("p99/p50", 2.5, 2)
)

// comparisons is the table of all cases.
var comparisons = slices.Concat([]comparison{
	{bench: "rtt", transport: "tcp", when: large, what: "", unit: "µs", limits: []Limit{atMost("ratio", 1.2, 1.05)},
		bare: bestTrips, ours: messages("echo"), finish: besideBest(untouched)},
	{bench: "rtt", transport: "tcp", poll: "always", when: plain, what: "a bare polled Go loop", unit: "µs", limits: []Limit{atMost("ratio", 1.08), likeBare, noAllocs},
		bare: bareTrips("echo-polled"), ours: messages("echo")},
	{bench: "rtt", transport: "tcp", poll: "adaptive", when: plain, what: "a bare Go loop over the runtime's poller", unit: "µs", limits: []Limit{atMost("ratio", 1.08), likeBare},
		bare: bareTrips("echo-blocking"), ours: messages("echo")},
	{bench: "rtt", transport: "tcp", poll: "never", when: plain, what: "a bare Go loop that sleeps in poll(2)", unit: "µs", limits: []Limit{atMost("ratio", 1.08), likeBare},
		bare: bareTrips("echo-sleeping"), ours: messages("echo")},
	{bench: "rtt", transport: "shm", poll: "always", when: plain, what: "a bare Go loop over two atomic words", unit: "µs", limits: []Limit{ifNear(atMost("excess", 0.45, 0.3)), evenness, noAllocs},
		bare: bareTrips("echo-words"), ours: messages("echo"), also: []side{small}, finish: rttShared},
	{bench: "rtt", transport: "shm", poll: "adaptive", when: plain, what: "a bare Go loop over two atomic words", unit: "µs", limits: []Limit{atMost("ratio", 1.8)},
		bare: bareTrips("echo-words"), ours: messages("echo"), also: []side{small}, finish: rttShared},
	{bench: "rtt", transport: "shm", poll: "never", when: plain, what: "a bare Go loop over two shared futexes", unit: "µs", limits: []Limit{atMost("ratio", 1.25)},
		bare: bareTrips("echo-futex"), ours: messages("echo"), also: []side{small}, finish: rttShared},
	{bench: "rtt", transport: "inproc", when: plain, what: "a Go channel there and back", unit: "µs", limits: []Limit{atMost("ratio", 1.9, 1.5), atMost("p99", 3, 2), noAllocs},
		bare: bareTrips("echo-channel"), ours: messages("echo"), finish: note(untouched)},
	{bench: "rtt", when: server("goroutine"), name: "rtt server=goroutine", what: "a server that answers in its loop", unit: "µs", limits: []Limit{atMost("ratio", 3)},
		bare: messages("echo"), ours: messages("echo-goroutine"), finish: serverLimit},
	{bench: "rtt", when: server("receivers"), name: "rtt server=receivers", what: "a server that answers in its loop", unit: "µs", limits: []Limit{atMost("ratio", 3)},
		bare: messages("echo"), ours: messages("echo-receivers"), finish: serverLimit},
	{bench: "rtt", when: func(o *options) bool { return o.idle > 0 }, what: "without the idle links, before and after", unit: "µs", limits: []Limit{atMost("ratio", 1.1, 1.08)}, run: rttIdle},

	{bench: "call", transport: "tcp", when: oneCall, what: "a message there and back", unit: "µs", limits: []Limit{atMost("ratio", 1.1), likeBare, noAllocs},
		bare: messages("echo"), ours: calls},
	{bench: "call", when: func(o *options) bool { return oneCall(o) && o.transport != "tcp" }, what: "a message there and back", unit: "µs", limits: []Limit{atMost("ratio", 1.1), evenness, noAllocs},
		bare: messages("echo"), ours: calls},
	{bench: "call", transport: "shm", when: inFlight, what: "net/rpc over TCP", unit: "calls/s", limits: []Limit{atLeast("rate", 1_000_000)}, bare: netCalls, ours: callsInFlight, finish: leastCalls},
	{bench: "call", transport: "tcp", when: inFlight, what: "net/rpc over TCP", unit: "calls/s", limits: []Limit{atLeast("rate", 400_000)}, bare: netCalls, ours: callsInFlight, finish: leastCalls},
	{bench: "call", transport: "inproc", when: inFlight, what: "net/rpc over a pipe", unit: "calls/s", bare: netCalls, ours: callsInFlight},

	{bench: "rate", transport: "tcp", what: "a bare buffered Go loop", unit: "messages/s", limits: []Limit{atLeast("ratio", 0.5, 0.65), noAllocs},
		bare: buffered("recv-lengths"), ours: floods, also: []side{buffered("recv-fixed")}, finish: besideFixed},
	{bench: "rate", transport: "shm", when: receive("recv"), what: "a bare ring in shared memory", unit: "messages/s", limits: []Limit{ifNear(atLeast("ratio", 0.65, 0.8)), noAllocs}, bare: throughRing, ours: floods},
	{bench: "rate", transport: "shm", when: receive("messages"), what: "a bare ring in shared memory", unit: "messages/s", limits: []Limit{ifNear(atLeast("ratio", 0.75, 0.9)), noAllocs}, bare: throughRing, ours: floods},
	{bench: "rate", transport: "inproc", what: "a Go channel with room for 1024", unit: "messages/s", bare: channelRate, ours: floods, finish: besideChannel},

	{bench: "bw", transport: "tcp", unit: "bytes/s", limits: []Limit{atLeast("ratio", 0.9)}, bare: bestStream(bulkBlock), ours: pours("recv-recv", nil), finish: besideBest("the receiver of both reads no byte of a message; each message of the library's is received into a buffer of its own, those of the bare loop into the same block")},
	{bench: "bw", transport: "shm", what: "memcpy, of one goroutine", unit: "bytes/s", bare: memcpy, ours: pours("recv-read", fillCounting),
		finish: note("the sender writes every byte, and the receiver reads every byte")},

	{bench: "find", when: func(o *options) bool { return o.nodes+o.resources == 0 }, set: func(o *options) { o.transport = "tcp" }, what: "a bare Unix-socket round trip of the same bytes", unit: "µs", limits: []Limit{atMost("ratio", 1.3)},
		bare: bareTrips("echo-unix"), ours: finds(rocl.Match{"bench": "peer"}), finish: anyTransport},
	{bench: "find", when: func(o *options) bool { return o.resources > 0 }, role: isDirectory, what: "the required 1 µs", unit: "µs", limits: []Limit{atMost("ratio", 1)}, run: findInPlace},
	{bench: "find", poll: "always", when: between, role: isNode, what: "a bare polled UDP round trip", unit: "µs", limits: []Limit{atMost("ratio", 1.5)},
		bare: datagrams, ours: finds(rocl.Match{"node": "1"}), also: []side{findsNone}, finish: findsOfNodes},
	{bench: "find", when: func(o *options) bool { return between(o) && o.poll != "always" }, role: isNode, what: "a bare blocking UDP round trip", unit: "µs",
		bare: datagrams, ours: finds(rocl.Match{"node": "1"}), also: []side{findsNone}, finish: findsOfNodes},
	{bench: "findall", role: isDirectory, unit: "µs", limits: []Limit{atMost("ratio", 1)}, run: findAll},
}, fabricCases, cpuCases, rpcCases, bulkCases, tpvmCases, flowCases, kitCases, seeCases)

// compare returns a function that measures all cases that the flags are for, over each of the
// transports if the flags name none.
func compare(transports ...string) func(context.Context, *options) []*Result {
	return func(ctx context.Context, o *options) (all []*Result) {
		over := transports
		if o.transport != "" {
			over = []string{o.transport}
		}
		for _, transport := range over {
			for _, c := range comparisons {
				own := *o
				if own.transport = transport; c.fits(&own) {
					all = append(all, c.measure(ctx, &own)...)
				}
			}
		}
		return all
	}
}

func (c *comparison) fits(o *options) bool {
	return c.bench == o.bench && (c.transport == "" || c.transport == o.transport) && (c.poll == "" || c.poll == o.poll) && (c.when == nil || c.when(o))
}

func (c *comparison) measure(ctx context.Context, o *options) (rows []*Result) {
	if c.set != nil {
		c.set(o)
	}
	check(withPair(ctx, o, c.role, func(p *pair) {
		if o.opened != nil {
			o.opened(p)
		}
		if c.run != nil {
			rows = c.run(p, c)
			return
		}
		var all []loop
		for _, s := range append([]side{c.bare, c.ours}, c.also...) {
			if l := s(p); l != nil {
				all = append(all, onProcs(o.procs, l))
			}
		}
		t := measure(o.rounds, o.count, all...)
		rows = []*Result{p.result(c, t[1], t[0])}
		if c.finish != nil {
			rows = append(rows, c.finish(p, rows[0], t)...)
		}
	}))
	return rows
}

// onProcs returns a loop that runs on so many processors, or on all if procs is 0.
func onProcs(procs int, l loop) loop {
	return func(n int, t *times) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		l(n, t)
	}
}

// note returns a finish that adds a note.
func note(text string) finish {
	return func(_ *pair, r *Result, _ []*times) []*Result {
		r.Extra = text
		return nil
	}
}

// anyTransport is the finish of rows that do not depend on the transport.
func anyTransport(_ *pair, r *Result, _ []*times) []*Result {
	r.Transport, r.Poll = "", ""
	return nil
}

// over returns a function that sets how a case is measured.
func over(transport, poll string) func(*options) {
	return func(o *options) { o.transport, o.poll = transport, poll }
}

// untouched is the note of cases that hand buffers over.
const untouched = "no byte of a message is written or read: this is what handing it over takes"

func bareTrips(task string) side {
	return func(p *pair) loop { return p.trips(task, p.wires[task].ping) }
}

func messages(task string) side {
	return func(p *pair) loop { return p.trips(task, p.trip(p.Size)) }
}

func plain(o *options) bool { return o.idle == 0 && o.server == servers[0] && !large(o) }

// large reports whether messages over TCP are so large that the best bare loop writes them in
// parts.
func large(o *options) bool {
	return o.transport == "tcp" && o.size > 64<<10 && o.idle == 0 && o.server == servers[0]
}

func oneCall(o *options) bool { return o.inFlight <= 1 }

func receive(how string) func(*options) bool {
	return func(o *options) bool { return o.receive == how }
}

func server(name string) func(*options) bool {
	return func(o *options) bool { return o.server == name }
}

// small is the loop with which that of larger messages is compared: over shared memory, the time
// should not depend on the size.
func small(p *pair) loop {
	const size = 64
	if p.Size <= size {
		return nil
	}
	return p.trips("echo", p.trip(size))
}

func rttShared(p *pair, r *Result, t []*times) []*Result {
	if len(t) > 2 {
		r.Extra = fmt.Sprintf("%s: p50 %.2f µs; %s", r.What, r.Raw, untouched)
		r.What, r.Limits = "64 bytes in the same run", []Limit{atMost("ratio", 1.2), evenness}
		r.compare(t[1], t[2])
	}
	return nil
}

// serverLimit allows 5 µs with any server, even if that is more than the ratio allows.
func serverLimit(_ *pair, r *Result, _ []*times) []*Result {
	r.Limits[0] = atMost("ratio", max(r.Limits[0].Must, 5/r.Raw))
	return nil
}

// rttIdle measures what unused links cost a link in use: round trips of a pair alone, then beside
// other links of this context, and alone again.
func rttIdle(p *pair, c *comparison) []*Result {
	alone, beside := newTimes(), newTimes()
	for i, t := range []*times{alone, beside, alone} {
		links := i % 2 * p.o.idle
		p.begin(p.peer, "idle", links)
		for range links {
			p.recv()
		}
		p.wait(p.peer)
		got := measure(p.o.rounds, p.o.count, messages("echo")(p))[0]
		t.each = append(t.each, got.each...)
		t.all.Merge(got.all)
	}
	r := p.result(c, beside, alone)
	r.Idle = p.o.idle
	return []*Result{r}
}

func calls(p *pair) loop { return p.trips("reply", func() { p.call(p.msg) }) }

// call makes a call, whose request is in a new buffer like the message of trip.
func (p *pair) call(ctx context.Context) {
	must(p.me.Call(ctx, p.to, 0, must(p.c.Buffer(p.Size)))).Release()
}

func inFlight(o *options) bool { return o.inFlight > 1 }

// callsInFlight is a loop of calls of many goroutines. A call of net/rpc cannot be cancelled. For
// comparison the library's calls use a context that does not end.
func callsInFlight(p *pair) loop {
	return p.with("reply", func(n int, t *times) {
		t.rate(n, func() { share(p.o.inFlight, n, func() { p.call(p.free) }) })
	})
}

// rpcThere is the mean number of calls a second of net/rpc on the machine for which the least
// numbers of calls in flight were set.
const rpcThere = 57_500.0

// leastCalls drops the limit for other numbers of goroutines than the one that it is for.
func leastCalls(p *pair, r *Result, _ []*times) []*Result {
	if r.Extra = fmt.Sprintf("the limit was set where net/rpc made %.0f", rpcThere); p.o.inFlight != 32 {
		r.Limits, r.Extra = nil, ""
	}
	return nil
}

// buffered is a bare loop of messages through a buffer.
func buffered(task string) side {
	return func(p *pair) loop {
		return p.with(task, func(n int, t *times) {
			t.rate(n, func() { sendRaw(p.tcp, max(p.Size, 1), n, task == "recv-lengths") })
		})
	}
}

func besideFixed(_ *pair, r *Result, t []*times) []*Result {
	r.Extra = fmt.Sprintf("the bare loop without lengths, both sides knowing the size: %.3g; ratio %.2f", t[2].mid(), r.Rate/t[2].mid())
	return nil
}

func throughRing(p *pair) loop {
	return p.with("recv-ring", func(n int, t *times) {
		t.rate(n, func() { p.mem.send(p.ctx, max(p.Size, 1), n) })
	})
}

func channelRate(p *pair) loop {
	return func(n int, t *times) { t.rate(n, func() { throughChannel(p.ctx, p.o.senders, n) }) }
}

// besideChannel sets the limits of rates within a process.
func besideChannel(p *pair, r *Result, _ []*times) []*Result {
	r.Extra = "the bare figure passes a pointer; the library copies the bytes of each message"
	switch {
	case p.o.procs == 1:
		r.Limits = []Limit{atLeast("ratio", 0.5, 0.8)}
	case p.o.senders > 1:
		r.Limits = []Limit{atLeast("ratio", 0.25, 0.5)}
	default:
		r.Limits = []Limit{atLeast("ratio", 0.6, 1)}
	}
	return nil
}

// floods is a loop of senders that send copies of one message, as the bare loops do.
func floods(p *pair) loop {
	for len(p.senders) < p.o.senders {
		p.senders = append(p.senders, must(p.c.Register(p.ctx, rocl.Attrs{"bench": "sender"})))
	}
	return p.with("recv-"+p.o.receive, func(n int, t *times) {
		t.rate(n, func() {
			concurrently(len(p.senders), func(i int) {
				b := make([]byte, p.Size)
				for k := range uint64((n + i) / len(p.senders)) { // the sum over all senders is n
					check(p.senders[i].SendBytes(p.msg, p.to, uint64(i)<<40|k, b))
				}
			})
			p.ack()
		})
	}, len(p.senders))
}

// ack waits for the receiver's one answer, whichever sender it goes to.
func (p *pair) ack() {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	concurrently(len(p.senders), func(i int) {
		m, err := p.senders[i].Recv(ctx)
		if err != nil && ctx.Err() != nil && p.ctx.Err() == nil {
			return // another sender has the answer
		}
		check(err)
		m.Release()
		cancel()
	})
}

// bestStream is the fastest bare loop of large messages. The receiver reads into the same memory
// again and again, of so many bytes.
func bestStream(memory int) side {
	return func(p *pair) loop {
		b := fillCounting(make([]byte, max(p.Size, 1)))
		return func(n int, t *times) {
			if p.best == nil {
				p.best = fastest(func(s stream) float64 {
					once := newTimes()
					p.move(s, bulkBlock, b, max(n/4, 1), once)
					return 1 / once.mid()
				})
			}
			p.move(*p.best, memory, b, n, t)
		}
	}
}

// fastest returns the stream with the least cost.
func fastest(cost func(stream) float64) (best *stream) {
	least := math.Inf(1)
	for _, s := range streams {
		if c := cost(s); c < least {
			best, least = &s, c
		}
	}
	return best
}

// move sends n messages b by a stream.
func (p *pair) move(s stream, memory int, b []byte, n int, t *times) {
	p.through(s, "recv-stream", min(memory, len(b)), n, func(rw io.ReadWriter, n int) {
		t.rate(len(b)*n, func() { sendBulk(rw, b, s.part, n) })
	})
}

// through runs f with a separate connection, over which the peer does a task with n messages.
func (p *pair) through(s stream, task string, memory, n int, f func(rw io.ReadWriter, n int)) {
	p.with(task, func(n int, _ *times) {
		p.dialled(func(nc net.Conn) { s.run(nc, func(rw io.ReadWriter) { f(rw, n) }) })
	}, append(s.numbers(), memory)...)(n, nil)
}

// bestTrips is the fastest bare loop of round trips of large messages.
func bestTrips(p *pair) loop {
	trips := func(s stream, n int, t *times) {
		p.through(s, "echo-stream", 0, n, func(rw io.ReadWriter, n int) {
			t.round(n, newRaw(rw, p.Size, p.Size, s.part).ping)
		})
	}
	return func(n int, t *times) {
		if p.best == nil {
			p.best = fastest(func(s stream) float64 {
				once := newTimes()
				trips(s, max(min(n/4, 64<<20/p.Size), 1), once)
				return once.mid()
			})
		}
		trips(*p.best, n, t)
	}
}

// besideBest returns a finish that names the fastest bare loop, and adds a note.
func besideBest(text string) finish {
	return func(p *pair, r *Result, _ []*times) []*Result {
		r.What, r.Extra = p.best.what(), text
		return nil
	}
}

// memcpy is a loop of copies by one goroutine.
func memcpy(p *pair) loop {
	source, to := fillCounting(make([]byte, p.Size)), make([]byte, p.Size)
	return func(n int, t *times) {
		t.rate(p.Size*n, func() {
			for range n {
				copy(to, source)
			}
		})
	}
}

// pours is a loop of large messages, each in a new buffer, into which the sender copies what fill
// has written, unless fill is nil.
func pours(task string, fill func([]byte) []byte) side {
	return func(p *pair) loop {
		var source []byte
		if fill != nil {
			source = fill(make([]byte, p.Size))
		}
		return p.pour(task, func(b []byte) { copy(b, source) })
	}
}

func (p *pair) pour(task string, write func([]byte)) loop {
	return p.with(task, func(n int, t *times) {
		t.rate(p.Size*n, func() {
			for i := range uint64(n) {
				b := must(p.c.BufferWait(p.ctx, p.Size))
				write(b.Bytes())
				check(p.me.Send(p.msg, p.to, i, b))
			}
			p.recv()
		})
	}, 1)
}
