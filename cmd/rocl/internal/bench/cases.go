// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"net"
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
	goal       float64        // of the ratio
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

// comparisons is the table of all cases.
var comparisons = slices.Concat([]comparison{
	{bench: "rtt", transport: "tcp", poll: "always", when: plain, what: "a bare polled Go loop", unit: "µs", goal: 1.08,
		bare: bareTrips("echo-polled"), ours: messages("echo"), finish: besideBareTail},
	{bench: "rtt", transport: "tcp", poll: "adaptive", when: plain, what: "a bare Go loop over the runtime's poller", unit: "µs", goal: 1.08,
		bare: bareTrips("echo-blocking"), ours: messages("echo")},
	{bench: "rtt", transport: "tcp", poll: "never", when: plain, what: "a bare Go loop that sleeps in poll(2)", unit: "µs", goal: 1.08,
		bare: bareTrips("echo-sleeping"), ours: messages("echo")},
	{bench: "rtt", transport: "shm", poll: "always", when: plain, what: "a bare Go loop over two atomic words", unit: "µs", goal: 1.8,
		bare: bareTrips("echo-words"), ours: messages("echo"), also: []side{small}, finish: rttShared},
	{bench: "rtt", transport: "shm", poll: "adaptive", when: plain, what: "a bare Go loop over two atomic words", unit: "µs", goal: 1.8,
		bare: bareTrips("echo-words"), ours: messages("echo"), also: []side{small}, finish: rttShared},
	{bench: "rtt", transport: "shm", poll: "never", when: plain, what: "a bare Go loop over two shared futexes", unit: "µs", goal: 1.25,
		bare: bareTrips("echo-futex"), ours: messages("echo"), also: []side{small}, finish: rttShared},
	{bench: "rtt", transport: "inproc", when: plain, what: "a Go channel there and back", unit: "µs", goal: 1.8,
		bare: bareTrips("echo-channel"), ours: messages("echo"), finish: note(untouched)},
	{bench: "rtt", when: server("goroutine"), name: "rtt server=goroutine", what: "a server that answers in its loop", unit: "µs", goal: 3,
		bare: messages("echo"), ours: messages("echo-goroutine"), finish: serverGoal},
	{bench: "rtt", when: server("receivers"), name: "rtt server=receivers", what: "a server that answers in its loop", unit: "µs", goal: 3,
		bare: messages("echo"), ours: messages("echo-receivers"), finish: serverGoal},
	{bench: "rtt", when: func(o *options) bool { return o.idle > 0 }, what: "without the idle links, before and after", unit: "µs", goal: 1.1, run: rttIdle},

	{bench: "call", when: func(o *options) bool { return o.inFlight <= 1 }, what: "a message there and back", unit: "µs", goal: 1.1,
		bare: messages("echo"), ours: calls},
	{bench: "call", transport: "shm", when: inFlight, what: "net/rpc over TCP", unit: "calls/s", goal: 1_000_000, bare: netCalls, ours: callsInFlight, finish: leastCalls},
	{bench: "call", transport: "tcp", when: inFlight, what: "net/rpc over TCP", unit: "calls/s", goal: 400_000, bare: netCalls, ours: callsInFlight, finish: leastCalls},
	{bench: "call", transport: "inproc", when: inFlight, what: "net/rpc over a pipe", unit: "calls/s", bare: netCalls, ours: callsInFlight},

	{bench: "rate", transport: "tcp", what: "a bare buffered Go loop", unit: "messages/s", goal: 0.65,
		bare: buffered("recv-lengths"), ours: floods, also: []side{buffered("recv-fixed")}, finish: besideFixed},
	{bench: "rate", transport: "shm", what: "a bare ring in shared memory", unit: "messages/s", goal: 0.8, bare: throughRing, ours: floods},
	{bench: "rate", transport: "inproc", what: "a Go channel with room for 1024", unit: "messages/s", bare: channelRate, ours: floods,
		finish: note("the bare figure passes a pointer; the library copies the bytes of each message")},

	{bench: "bw", transport: "tcp", unit: "bytes/s", goal: 0.9, bare: bestStream(bulkBlock), ours: pours("recv", nil), finish: besideBest("the receiver of both reads no byte of a message; each message of the library's is received into a buffer of its own, those of the bare loop into the same block")},
	{bench: "bw", transport: "shm", what: "memcpy, of one goroutine", unit: "bytes/s", bare: memcpy, ours: pours("recv-read", fillCounting),
		finish: note("the sender writes every byte, and the receiver reads every byte")},

	{bench: "find", when: func(o *options) bool { return o.nodes+o.resources == 0 }, set: func(o *options) { o.transport = "tcp" }, what: "a bare Unix-socket round trip of the same bytes", unit: "µs", goal: 1.3,
		bare: bareTrips("echo-unix"), ours: finds(rocl.Match{"bench": "peer"}), finish: anyTransport},
	{bench: "find", when: func(o *options) bool { return o.resources > 0 }, role: isDirectory, what: "the required 1 µs", unit: "µs", goal: 1, run: findInPlace},
	{bench: "find", poll: "always", when: between, role: isNode, what: "a bare polled UDP round trip", unit: "µs", goal: 1.5,
		bare: datagrams, ours: finds(rocl.Match{"node": "1"}), also: []side{findsNone}, finish: findsOfNodes},
	{bench: "find", when: func(o *options) bool { return between(o) && o.poll != "always" }, role: isNode, what: "a bare blocking UDP round trip", unit: "µs",
		bare: datagrams, ours: finds(rocl.Match{"node": "1"}), also: []side{findsNone}, finish: findsOfNodes},
	{bench: "findall", role: isDirectory, unit: "µs", goal: 1, run: findAll},
}, rpcCases, bulkCases, tpvmCases)

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
				all = append(all, l)
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

func plain(o *options) bool { return o.idle == 0 && o.server == servers[0] }

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

func besideBareTail(_ *pair, r *Result, _ []*times) []*Result {
	return []*Result{r.tail(r.What, r.RawP99, 1.2)}
}

// tail returns the row of the p99 of a row, beside raw.
func (r *Result) tail(what string, raw, goal float64) *Result {
	return &Result{Bench: "rtt p99", Transport: r.Transport, Size: r.Size, Poll: r.Poll, Count: r.Count, Unit: r.Unit,
		What: what, P50: r.P99, Raw: raw, Ratio: r.P99 / raw, Target: goal}
}

func rttShared(p *pair, r *Result, t []*times) (more []*Result) {
	if p.Poll == "always" {
		more = append(more, r.tail("its own p50", r.P50, 2))
	}
	if len(t) > 2 {
		r.Extra = fmt.Sprintf("%s: p50 %.2f µs; %s", r.What, r.Raw, untouched)
		r.What, r.Target = "64 bytes in the same run", 1.2
		r.compare(t[1], t[2])
	}
	return more
}

// serverGoal allows 5 µs with any server, even if that is more than the ratio allows.
func serverGoal(_ *pair, r *Result, _ []*times) []*Result {
	r.Target = max(r.Target, 5/r.Raw)
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

// leastCalls makes a goal of calls a second that of the ratio.
func leastCalls(p *pair, r *Result, _ []*times) []*Result {
	least := r.Target
	if r.Target = 0; p.o.inFlight == 32 {
		r.Target = least / r.Raw
		r.Extra = fmt.Sprintf("at least %.0f are required, where net/rpc makes %.0f: %.1f times as many", least, rpcThere, least/rpcThere)
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

// floods is a loop of senders that send copies of one message, as the bare loops do.
func floods(p *pair) loop {
	for len(p.senders) < p.o.senders {
		p.senders = append(p.senders, must(p.c.Register(p.ctx, rocl.Attrs{"bench": "sender"})))
	}
	return p.with("recv", func(n int, t *times) {
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
				p.best = p.fastest(b, max(n/4, 1))
			}
			p.move(*p.best, memory, b, n, t)
		}
	}
}

func (p *pair) fastest(b []byte, n int) (best *stream) {
	most := 0.0
	for _, s := range streams {
		t := newTimes()
		if p.move(s, bulkBlock, b, n, t); t.each[0] > most {
			best, most = &s, t.each[0]
		}
	}
	return best
}

// move sends n messages b by a stream over a separate connection.
func (p *pair) move(s stream, memory int, b []byte, n int, t *times) {
	kind := 0
	if s.isPolled {
		kind = 1
	}
	p.with("recv-stream", func(n int, t *times) {
		p.dialled(func(nc net.Conn) {
			s.run(nc, func(rw io.ReadWriter) { t.rate(len(b)*n, func() { sendBulk(rw, b, n) }) })
		})
	}, kind, s.buffers, min(memory, len(b)))(n, t)
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
