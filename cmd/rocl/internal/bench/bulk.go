// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/bulk"
)

const (
	bulkLeast  = 0.95 // of the rate of the best bare loop
	bulkLarge  = 64 << 20
	bulkTable  = 512 << 20 // bytes of each row of the table of Mercury's paper
	bulkMemory = 1 << 30
)

// bulkCases measure package bulk. This process moves the data; other processes have the memory.
var bulkCases = []comparison{
	{bench: "bulk", name: "bulk view", transport: "shm", when: group("view"), set: views, what: "a view of 64 KiB", unit: "µs", goal: 1.5, bare: view(64 << 10), ours: view(bulkLarge)},
	{bench: "bulk", name: "bulk pull", transport: "tcp", when: group("pull"), set: large, unit: "bytes/s", goal: bulkLeast,
		bare: bestStream(bulkBlock), ours: pull(false), also: []side{bestStream(bulkLarge)}, finish: func(p *pair, r *Result, t []*times) []*Result {
			return besideBest(fmt.Sprintf("the pull writes 64 MiB of memory, the bare loop the same 1 MiB all the time; a bare loop that writes 64 MiB: %.2f GB/s", t[2].mid()/1e9))(p, r, t)
		}},
	{bench: "bulk", name: "bulk pull of registered memory", transport: "shm", when: group("pull"), set: large, what: "memcpy, of one goroutine", unit: "bytes/s", goal: 0.9, bare: memcpy, ours: pull(true)},
	{bench: "bulk", name: "bulk pull of plain memory", transport: "shm", when: group("pull"), set: large, what: "memcpy, of one goroutine", unit: "bytes/s", goal: 0.9,
		bare: readOther, ours: pull(false), also: []side{memcpy}, finish: func(p *pair, r *Result, t []*times) []*Result {
			if p.reads {
				r.What, r.Extra = "a bare loop of process_vm_readv, of one goroutine", fmt.Sprintf("memcpy: %.1f GB/s", t[2].mid()/1e9)
			}
			return nil
		}},
	{bench: "bulk", name: "bulk pipeline", when: group("pipeline"), set: large, unit: "bytes/s", run: pipelines},
	{bench: "bulk", name: "bulk clients", when: group("clients"), set: large, what: "one client", unit: "bytes/s", goal: 0.9, run: clients},
	{bench: "bulk", name: "bulk memory", transport: "tcp", when: group("memory"), set: large, what: "the allowed 16 MiB", unit: "bytes", goal: 1, run: memoryOfPipeline},
}

// groups are the groups of rows that --only can name.
var groups = []string{"view", "pull", "pipeline", "clients", "memory"}

func group(name string) func(*options) bool {
	return func(o *options) bool { return o.only == "" || o.only == name }
}

func large(o *options) { o.size = bulkLarge }

func views(o *options) { o.size, o.count = bulkLarge, 2000 }

// An origin is a process with a region.
type origin struct {
	*peer
	handle  bulk.Handle
	address uintptr // address of the memory in that process
}

// origin starts a process that exposes bytes of plain or registered memory: the same memory several
// times, because 64 processes do not have 512 MiB each.
func (p *pair) origin(bytes, memory int, isRegistered bool) *origin {
	if p.ep == nil {
		p.ep = must(bulk.Open(p.ctx, p.c))
		p.add(func() { _ = p.ep.Close(p.free) })
	}
	c := p.config
	c.Role = isOrigin
	kind := 0
	if isRegistered {
		kind = 1
	}
	o := &origin{peer: p.start(c)}
	var text string
	must(fmt.Sscan(p.ask(o.peer, "expose", bytes, memory, kind), &text, &o.address))
	check(o.handle.UnmarshalText([]byte(text)))
	return o
}

// expose exposes memory, and returns the handle and the address of the memory.
func (a *answerer) expose(bytes, memory int, isRegistered bool) string {
	ep := must(bulk.Open(a.ctx, a.c))
	a.add(func() { _ = ep.Close(a.ctx) }) // the other side may have ended
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
	r := must(ep.Expose(bulk.ReadOnly, slices.Repeat([]bulk.Segment{s}, bytes/memory)...))
	return fmt.Sprintf("%s %d", must(r.Handle().MarshalText()), uintptr(unsafe.Pointer(&mem[0])))
}

// view is a loop of views of registered memory.
func view(bytes int) side {
	return func(p *pair) loop {
		o := p.origin(bulkLarge, bulkLarge, true)
		return func(n int, t *times) {
			t.round(n, func() { must(p.ep.View(p.ctx, o.handle, 0, bytes)).Release() })
		}
	}
}

// pull is a loop of pulls into plain memory.
func pull(isRegistered bool) side {
	return func(p *pair) loop {
		o, to := p.origin(bulkLarge, bulkLarge, isRegistered), make([]byte, bulkLarge)
		return func(n int, t *times) {
			t.rate(bulkLarge*n, func() {
				for range n {
					must(p.ep.Pull(p.ctx, o.handle, 0, to))
				}
			})
		}
	}
}

// readOther is a loop of process_vm_readv, or that of memcpy if the system does not allow the call.
func readOther(p *pair) loop {
	o, to := p.origin(bulkLarge, bulkLarge, false), make([]byte, bulkLarge)
	if p.reads = o.read(to) == nil; !p.reads {
		return memcpy(p)
	}
	return func(n int, t *times) {
		t.rate(bulkLarge*n, func() {
			for range n {
				check(o.read(to))
			}
		})
	}
}

// read reads an origin's memory with process_vm_readv.
func (o *origin) read(to []byte) error {
	const most = 4 << 20 // bytes of one call
	for part := range slices.Chunk(to, most) {
		from := o.address + uintptr(unsafe.Pointer(&part[0])) - uintptr(unsafe.Pointer(&to[0]))
		local := []unix.Iovec{{Base: &part[0]}}
		local[0].SetLen(len(part))
		if n, err := unix.ProcessVMReadv(o.Cmd.Process.Pid, local, []unix.RemoteIovec{{Base: from, Len: len(part)}}, 0); err != nil || n != len(part) {
			return fmt.Errorf("reading %d bytes of process %d: %d, %w", len(part), o.Cmd.Process.Pid, n, err)
		}
	}
	return nil
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
		if piece >= 512<<10 {
			r.Target = bulkLeast
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

// clients measures how fast one process pulls from several at the same time, the same number of
// bytes from each. It compares that with pulling as many bytes from one.
func clients(p *pair, c *comparison) (rows []*Result) {
	counts, size := []int{4, 16}, bulkLarge
	if p.o.full {
		counts, size = []int{4, 16, 64}, bulkTable
	}
	var origins []*origin
	for range counts[len(counts)-1] {
		origins = append(origins, p.origin(size, bulkLarge, p.Transport == "shm"))
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
	r := &Result{Bench: c.name, Transport: p.Transport, Size: bulkMemory, Poll: p.Poll, Count: 1, Unit: c.unit, What: c.what, Target: c.goal,
		Rate: float64(most - before), Raw: 16 << 20, Ratio: float64(most-before) / (16 << 20)}
	r.Extra = fmt.Sprintf("through a pipeline of 4 x 1 MiB; resident before: %.1f MiB, and at most %.1f", float64(before)/(1<<20), float64(most)/(1<<20))
	return []*Result{r}
}
