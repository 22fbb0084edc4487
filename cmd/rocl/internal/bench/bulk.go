// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/rpc"
)

const (
	bulkLeast  = 0.95 // of the rate of the best bare loop
	bulkLarge  = 64 << 20
	bulkTable  = 512 << 20 // bytes of each row of the table of Mercury's paper
	bulkMemory = 1 << 30
)

// bulkCases measure package bulk. This process moves the data, and other processes have the memory.
// Inside a call it is the reverse: the server moves the data of the caller's memory.
var bulkCases = []comparison{
	{bench: "bulk", name: "bulk view", transport: "shm", when: group("view"), set: views, what: "a view of 64 KiB", unit: "µs", limits: []Limit{atMost("ratio", 1.5)}, bare: view(64 << 10), ours: view(0)},
	{bench: "bulk", name: "bulk pull", transport: "tcp", when: group("pull"), set: sized, unit: "bytes/s", limits: []Limit{atLeast("ratio", bulkLeast)},
		bare: bestStream(bulkBlock), ours: pull(false), also: []side{bestStream(bulkLarge)}, finish: func(p *pair, r *Result, t []*times) []*Result {
			return besideBest(fmt.Sprintf("the pull writes all of its memory, the bare loop the same 1 MiB all the time; a bare loop that writes all: %.2f GB/s", t[2].mid()/1e9))(p, r, t)
		}},
	{bench: "bulk", name: "bulk pull of registered memory", transport: "shm", when: group("pull"), set: sized, what: "memcpy, of one goroutine", unit: "bytes/s", limits: []Limit{atLeast("ratio", 0.9)}, bare: memcpy, ours: pull(true)},
	{bench: "bulk", name: "bulk pull of plain memory", transport: "shm", when: group("pull"), set: sized, what: readByKernel, unit: "bytes/s", limits: []Limit{atLeast("ratio", 0.9)},
		bare: reads, ours: pull(false), also: []side{memcpy}, finish: func(p *pair, r *Result, t []*times) []*Result {
			r.What, r.Extra = p.readsBy(), fmt.Sprintf("memcpy: %.1f GB/s", t[2].mid()/1e9)
			return nil
		}},
	{bench: "bulk", name: "bulk pipeline", when: group("pipeline"), set: sized, unit: "bytes/s", run: pipelines},
	{bench: "bulk", name: "bulk clients", when: group("clients"), set: sized, what: "one client", unit: "bytes/s", run: clients},
	{bench: "bulk", name: "bulk memory", transport: "tcp", when: group("memory"), set: sized, what: "the allowed 16 MiB", unit: "bytes", limits: []Limit{atMost("ratio", 1)}, run: memoryOfPipeline},
	{bench: "bulk", name: "bulk call", when: group("call"), unit: "µs", run: inCalls},
}

// groups are the groups of rows that --only can name, and sizable those that are for any --size.
var (
	groups  = []string{"view", "pull", "pipeline", "clients", "memory", "call"}
	sizable = []string{"view", "pull", "call"}
)

func group(name string) func(*options) bool {
	return func(o *options) bool {
		return (o.only == "" || o.only == name) && (o.size == 0 || slices.Contains(sizable, name))
	}
}

func sized(o *options) { o.size = cmp.Or(o.size, bulkLarge) }

func views(o *options) {
	sized(o)
	o.count *= 500
}

// An origin is a process with a region.
type origin struct {
	*peer
	handle bulk.Handle
}

// openEndpoint makes the endpoint of this process.
func (p *pair) openEndpoint() {
	if p.ep == nil {
		p.ep = must(bulk.Open(p.ctx, p.c))
		p.add(func() { _ = p.ep.Close(p.free) })
	}
}

// origin starts a process that exposes bytes of plain or registered memory: the same memory several
// times, because 64 processes do not have 512 MiB each.
func (p *pair) origin(bytes, memory int, isRegistered bool) *origin {
	p.openEndpoint()
	c := p.config
	c.Role = isOrigin
	kind := 0
	if isRegistered {
		kind = 1
	}
	o := &origin{peer: p.start(c)}
	check(o.handle.UnmarshalText([]byte(p.ask(o.peer, "expose", bytes, memory, kind))))
	return o
}

// expose exposes memory, and returns the handle.
func (a *answerer) expose(bytes, memory int, isRegistered bool) string {
	a.openEndpoint()
	var mem []byte
	var s bulk.Segment
	if isRegistered {
		b := must(a.c.Buffer(memory))
		a.add(b.Release)
		mem, s = b.Bytes(), bulk.Buffer(b)
	} else {
		mem = make([]byte, memory)
		s = bulk.Bytes(mem)
	}
	fillCounting(mem)
	r := must(a.ep.Expose(bulk.ReadOnly, slices.Repeat([]bulk.Segment{s}, bytes/memory)...))
	return string(must(r.Handle().MarshalText()))
}

// openEndpoint makes the endpoint of the peer.
func (a *answerer) openEndpoint() {
	if a.ep == nil {
		a.ep = must(bulk.Open(a.ctx, a.c))
		a.add(func() { _ = a.ep.Close(a.ctx) }) // the other side may have ended
	}
}

// view is a loop of views of registered memory, of all of it if bytes is 0.
func view(bytes int) side {
	return func(p *pair) loop {
		o, n := p.origin(p.Size, p.Size, true), min(cmp.Or(bytes, p.Size), p.Size)
		return func(count int, t *times) {
			t.round(count, func() { must(p.ep.View(p.ctx, o.handle, 0, n)).Release() })
		}
	}
}

// pull is a loop of pulls into plain memory.
func pull(isRegistered bool) side {
	return func(p *pair) loop {
		o, to := p.origin(p.Size, p.Size, isRegistered), make([]byte, p.Size)
		return func(n int, t *times) {
			t.rate(p.Size*n, func() {
				for range n {
					must(p.ep.Pull(p.ctx, o.handle, 0, to))
				}
			})
		}
	}
}

// Reads of the peer's memory by the kernel.
const (
	readByKernel = "a bare loop of process_vm_readv, of one goroutine"
	readByCopy   = "memcpy, of one goroutine: the system does not allow process_vm_readv"
)

// reads is a loop of process_vm_readv at full speed.
func reads(p *pair) loop {
	read := p.reader(p.Size)
	return func(n int, t *times) {
		t.rate(p.Size*n, func() {
			for range n {
				read()
			}
		})
	}
}

// reader returns a function that reads size bytes of the peer's memory by process_vm_readv, or
// copies as many of this process if the system does not allow that.
func (p *pair) reader(size int) (read func()) {
	to := make([]byte, size)
	var address uintptr
	must(fmt.Sscan(p.ask(p.peer, "memory", size), &address))
	pid := p.Cmd.Process.Pid
	if p.reads = readProcess(pid, address, to) == nil; p.reads {
		return func() { check(readProcess(pid, address, to)) }
	}
	from := fillCounting(make([]byte, size))
	return func() { copy(to, from) }
}

// readsBy says what the functions of reader do.
func (p *pair) readsBy() string {
	if p.reads {
		return readByKernel
	}
	return readByCopy
}

// Transfers inside a call: the caller's arguments are a handle of its memory, and the handler pulls
// the memory (read) or fills it (write).

const (
	bulkRead  = "bench.read"
	bulkWrite = "bench.write"
)

// inCallLimits are the limits of reads, by transport and size. Over TCP they count messages of 64
// bytes there and back. Over shared memory they are microseconds of the machine of issue 35, where
// Mercury 2.4 takes as long as the goals, or longer.
var inCallLimits = map[string]map[int]Limit{
	"tcp": {4 << 10: atMost("ratio", 2.7, 2.5), 64 << 10: atMost("ratio", 5, 4), 1 << 20: atMost("ratio", 20, 17), 16 << 20: atMost("ratio", 350, 310)},
	"shm": {4 << 10: atMost("p50", 7), 64 << 10: atMost("p50", 13, 12.8), 1 << 20: atMost("p50", 95, 91), 16 << 20: atMost("p50", 1900, 1858)},
}

// inCalls measures calls with a transfer of each size.
func inCalls(p *pair, c *comparison) (rows []*Result) {
	p.openEndpoint()
	sizes := []int{4 << 10, 64 << 10, 1 << 20, 16 << 20}
	if p.Size > 0 {
		sizes = []int{p.Size}
	}
	for _, size := range sizes {
		memory := make([]byte, size)
		region := must(p.ep.Expose(bulk.ReadWrite, bulk.Bytes(memory)))
		transfers := func(name string) loop {
			return p.calling("calls-bulk", func(c *caller, n int, t *times) {
				if clear(memory); name == bulkRead {
					fillCounting(memory)
				}
				t.round(n, func() { must(rpc.Call[bulk.Handle, struct{}](c.ctx, c.client, c.server, name, region.Handle())) })
				if memory[size-1] != byte(size-1) { // the handler writes what it has read before
					check(errors.New("the memory of the caller has other bytes than expected"))
				}
			})
		}
		bare, what := p.trips("echo", p.trip(64)), "a message of 64 bytes there and back"
		if p.Transport == "shm" {
			read := p.reader(size)
			bare, what = func(n int, t *times) { t.round(n, read) }, p.readsBy()
		}
		count := p.o.count * min(max(16<<20/size, 1), 250)
		t := measure(p.o.rounds, count, bare, transfers(bulkRead), transfers(bulkWrite))
		for i, name := range []string{"bulk read in a call", "bulk write in a call"} {
			r := p.result(c, t[i+1], t[0])
			r.Bench, r.Size, r.Count, r.What = name, size, p.o.rounds*count, what
			if l, ok := inCallLimits[p.Transport][size]; ok && i == 0 {
				r.Limits = []Limit{l}
			}
			rows = append(rows, r)
		}
		check(region.Revoke(p.ctx))
	}
	return rows
}

// offerTransfers makes s offer the calls of inCalls.
func (a *answerer) offerTransfers(s *rpc.Server, done func()) error {
	a.openEndpoint()
	var mu sync.Mutex // of memory
	offer := func(name string, move func(ctx context.Context, h bulk.Handle, off int64, b ...[]byte) (int64, error)) error {
		return rpc.Register(s, name, func(ctx context.Context, h bulk.Handle) (struct{}, error) {
			defer done()
			mu.Lock()
			defer mu.Unlock()
			a.resize(int(h.Len()))
			_, err := move(ctx, h, 0, a.memory)
			return struct{}{}, err
		})
	}
	return errors.Join(offer(bulkRead, a.ep.Pull), offer(bulkWrite, a.ep.Push))
}

// pipelines measures pipelines with pieces of 16 KiB to 4 MiB. Over shared memory the loop reads
// every byte, and is compared with reading local memory in place.
func pipelines(p *pair, c *comparison) (rows []*Result) {
	isShared := p.Transport == "shm"
	o := p.origin(bulkTable, bulkTable, isShared)
	stream, memory := bestStream(bulkBlock)(p), fillCounting(make([]byte, bulkLarge))
	bare := func(_ int, t *times) { stream(p.o.count, t) }
	if isShared {
		bare = func(_ int, t *times) { t.rate(bulkLarge, func() { p.summed.Add(sum(memory)) }) }
	}
	for piece := 16 << 10; piece <= 4<<20; piece *= 2 {
		t := measure(p.o.rounds, bulkTable/piece, bare, func(_ int, t *times) {
			t.rate(bulkTable, func() { p.consume(o.handle, isShared, bulk.PieceSize(piece)) })
		})
		r := p.result(c, t[1], t[0])
		if r.What = "reading local memory"; !isShared {
			r.What = p.best.what()
		}
		switch isLarge := piece >= 512<<10; {
		case isLarge && isShared:
			r.Limits = []Limit{atLeast("ratio", bulkLeast)}
		case isLarge:
			r.Limits = []Limit{atLeast("ratio", 0.9, 0.95)}
		case !isShared:
			r.Limits = []Limit{atLeast("ratio", 0.6, 0.8)}
		}
		r.Size, r.Count = piece, p.o.rounds*bulkTable/piece
		rows = append(rows, r)
	}
	return rows
}

// consume runs a pipeline, and reads every byte or not.
func (p *pair) consume(h bulk.Handle, reads bool, opts ...bulk.Option) {
	var summed uint64
	for b, err := range bulk.Pipeline(p.ctx, p.ep, h, opts...) {
		check(err)
		if reads {
			summed += sum(b.Bytes())
		}
	}
	p.summed.Add(summed)
}

// clientSizes returns how many bytes each client has, and in how much memory.
func clientSizes(full bool) (size, memory int) {
	if full {
		return bulkTable, bulkLarge
	}
	return bulkLarge, bulkLarge / 4
}

// clients measures how fast one process pulls from several at the same time, the same number of
// bytes from each. It compares that with pulling as many bytes from one.
func clients(p *pair, c *comparison) (rows []*Result) {
	counts := []int{4, 16, 64}
	size, memory := clientSizes(p.o.full)
	var origins []*origin
	for range counts[len(counts)-1] {
		origins = append(origins, p.origin(size, memory, p.Transport == "shm"))
	}
	for _, n := range counts {
		one := func(_ int, t *times) {
			t.rate(n/4*size, func() {
				for range n / 4 {
					p.consume(origins[0].handle, true)
				}
			})
		}
		all := func(_ int, t *times) {
			t.rate(n*size, func() { concurrently(n, func(i int) { p.consume(origins[i].handle, true) }) })
		}
		t := measure(p.o.rounds, n, one, all)
		r := p.result(c, t[1], t[0])
		r.Size, r.Senders, r.Count = size, n, p.o.rounds
		switch isTCP := p.Transport == "tcp"; {
		case isTCP && n == 16:
			r.Limits = []Limit{atLeast("ratio", 0.8, 0.9)}
		case isTCP && n == 64:
			r.Limits = []Limit{atLeast("ratio", 0.6, 0.8)}
		default:
			r.Limits = []Limit{atLeast("ratio", 0.9)}
		}
		r.Extra = "each client's bytes come through a pipeline of 4 x 1 MiB, and are read"
		rows = append(rows, r)
	}
	return rows
}

// memoryOfPipeline measures how much more memory this process uses while it pulls 1 GiB through a
// pipeline.
func memoryOfPipeline(p *pair, c *comparison) []*Result {
	o := p.origin(bulkMemory, bulkMemory, false)
	p.consume(must(o.handle.Slice(0, 1)), true) // makes the connection
	before := resident(p.ctx)
	most := before
	for _, err := range bulk.Pipeline(p.ctx, p.ep, o.handle, bulk.PieceSize(1<<20), bulk.Depth(4)) {
		check(err)
		most = max(most, pss())
	}
	r := &Result{Case: Case{Bench: c.name, Transport: p.Transport, Size: bulkMemory, Poll: p.Poll}, Count: 1, Unit: c.unit, What: c.what, Limits: slices.Clone(c.limits),
		Rate: float64(most - before), Raw: 16 << 20, Ratio: float64(most-before) / (16 << 20)}
	r.Extra = fmt.Sprintf("through a pipeline of 4 x 1 MiB; resident before: %.1f MiB, and at most %.1f", float64(before)/(1<<20), float64(most)/(1<<20))
	return []*Result{r}
}
