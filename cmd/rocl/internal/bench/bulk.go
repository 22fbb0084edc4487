// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/bulk"
)

const (
	bulkLeast      = 0.95     // of the rate of the best bare loop
	bulkCopyLeast  = 0.9      // of the rate of memcpy, and of the rate with one client
	bulkMemoryMost = 16 << 20 // bytes more than when idle
	bulkLarge      = 64 << 20
	bulkPart       = 4 << 20   // bytes of one process_vm_readv
	bulkTable      = 512 << 20 // bytes of each row of the table of Mercury's paper
	bulkTableFrom  = 512 << 10 // size of pieces from which the table must reach bulkLeast
)

// bulkCases measure package bulk. This process moves the data; other processes have the memory.
var bulkCases = []comparison{
	{bench: "bulk", name: "bulk view", transport: "shm", when: group("view"), set: views, what: "a view of 64 KiB", unit: "µs", goal: 1.5, bare: view(64 << 10), ours: view(bulkLarge)},
	{bench: "bulk", name: "bulk pull", transport: "tcp", when: group("pull"), set: large, unit: "bytes/s", goal: bulkLeast, bare: bestStream(intoBlock), ours: pull(false), also: []side{bestStream(intoMemory)}, finish: func(p *pair, r *Result, t []*times) []*Result {
		return besideBest(fmt.Sprintf("the pull writes 64 MiB of memory, the bare loop the same 1 MiB all the time; a bare loop that writes 64 MiB: %.2f GB/s", t[2].mid()/1e9))(p, r, t)
	}},
	{bench: "bulk", name: "bulk pull of registered memory", transport: "shm", when: group("pull"), set: large, what: "memcpy, of one goroutine", unit: "bytes/s", goal: bulkCopyLeast, bare: memcpy, ours: pull(true)},
	{bench: "bulk", name: "bulk pull of plain memory", transport: "shm", when: group("pull"), set: large, what: "memcpy, of one goroutine", unit: "bytes/s", goal: bulkCopyLeast, bare: readOther, ours: pull(false), also: []side{memcpy}, finish: func(p *pair, r *Result, t []*times) []*Result {
		if p.reads {
			r.What, r.Extra = "a bare loop of process_vm_readv, of one goroutine", fmt.Sprintf("memcpy: %.1f GB/s", t[2].mid()/1e9)
		}
		return nil
	}},
	{bench: "bulk", name: "bulk pipeline", when: group("pipeline"), set: large, unit: "bytes/s", run: pipelines},
	{bench: "bulk", name: "bulk clients", when: group("clients"), set: large, what: "one client", unit: "bytes/s", goal: bulkCopyLeast, run: clients},
	{bench: "bulk", name: "bulk memory", transport: "tcp", when: group("memory"), set: large, what: "the allowed 16 MiB", unit: "bytes", goal: 1, run: bulkMemory},
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

// origin returns the process of a number, which exposes plain or registered memory. The region of
// so many bytes consists of the same memory several times if it is longer than bulkLarge and
// repeats: 64 processes do not have 512 MiB each.
func (p *pair) origin(number, bytes int, isRegistered, repeats bool) (*origin, error) {
	for len(p.origins) <= number {
		c := p.config
		c.Role = isOrigin
		q, err := p.start(c)
		if err != nil {
			return nil, err
		}
		kind, memory := 0, bytes
		if isRegistered {
			kind = 1
		}
		if repeats {
			memory = min(bytes, bulkLarge)
		}
		answer, err := p.ask(q, "expose", bytes, memory, kind)
		if err != nil {
			return nil, err
		}
		o := &origin{peer: q}
		var text string
		if _, err := fmt.Sscan(answer, &text, &o.address); err != nil {
			return nil, err
		}
		if err := o.handle.UnmarshalText([]byte(text)); err != nil {
			return nil, err
		}
		p.origins = append(p.origins, o)
	}
	return p.origins[number], nil
}

// expose exposes memory, and returns the handle and the address of the memory.
func (a *answerer) expose(bytes, memory int, isRegistered bool) (string, error) {
	ep, err := bulk.Open(a.ctx, a.c)
	if err != nil {
		return "", err
	}
	a.add(func() { _ = ep.Close(a.ctx) }) // the other side may have ended
	mem := []byte(nil)
	s := bulk.Segment{}
	if isRegistered {
		b, err := a.c.Buffer(memory)
		if err != nil {
			return "", err
		}
		a.add(b.Release)
		mem, s = b.Bytes(), bulk.Buffer(b)
	} else {
		mem = make([]byte, memory)
		s = bulk.Bytes(mem)
	}
	fillCounting(mem)
	r, err := ep.Expose(bulk.ReadOnly, slices.Repeat([]bulk.Segment{s}, bytes/memory)...)
	if err != nil {
		return "", err
	}
	text, err := r.Handle().MarshalText()
	return string(text) + " " + strconv.FormatUint(uint64(uintptr(unsafe.Pointer(&mem[0]))), 10), err
}

// endpoint returns the endpoint of this process.
func (p *pair) endpoint() (*bulk.Endpoint, error) {
	if p.ep == nil {
		ep, err := bulk.Open(p.ctx, p.c)
		if err != nil {
			return nil, err
		}
		p.ep = ep
		p.add(func() { _ = ep.Close(p.free) })
	}
	return p.ep, nil
}

// transfers returns a loop that moves data from an origin with bulkLarge bytes.
func (p *pair) transfers(isRegistered bool, l func(ep *bulk.Endpoint, o *origin, n int, t *times) error) loop {
	return func(n int, t *times) error {
		ep, err := p.endpoint()
		if err != nil {
			return err
		}
		o, err := p.origin(0, bulkLarge, isRegistered, false)
		if err != nil {
			return err
		}
		return l(ep, o, n, t)
	}
}

// view is a loop of views of registered memory.
func view(bytes int) side {
	return func(p *pair) loop {
		return p.transfers(true, func(ep *bulk.Endpoint, o *origin, n int, t *times) error {
			return t.round(n, func() error {
				m, err := ep.View(p.ctx, o.handle, 0, bytes)
				if err == nil {
					m.Release()
				}
				return err
			})
		})
	}
}

// pull is a loop of pulls into plain memory.
func pull(isRegistered bool) side {
	return func(p *pair) loop {
		to := make([]byte, bulkLarge)
		return p.transfers(isRegistered, func(ep *bulk.Endpoint, o *origin, n int, t *times) error {
			return t.rate(float64(bulkLarge*n), func() error {
				return repeat(n, func() error {
					_, err := ep.Pull(p.ctx, o.handle, 0, to)
					return err
				})
			})
		})
	}
}

// readOther is a loop of process_vm_readv, or that of memcpy if the system does not allow the call.
func readOther(p *pair) loop {
	to, instead := make([]byte, bulkLarge), memcpy(p)
	return p.transfers(false, func(_ *bulk.Endpoint, o *origin, n int, t *times) error {
		if p.reads = o.read(to) == nil; !p.reads {
			return instead(n, t)
		}
		return t.rate(float64(bulkLarge*n), func() error { return repeat(n, func() error { return o.read(to) }) })
	})
}

// read reads an origin's memory with process_vm_readv.
func (o *origin) read(to []byte) error {
	for part := range slices.Chunk(to, bulkPart) {
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
func pipelines(p *pair, c *comparison) (rows []*Result, err error) {
	isShared := p.Transport == "shm"
	ep, err := p.endpoint()
	if err != nil {
		return nil, err
	}
	o, err := p.origin(0, bulkTable, isShared, false)
	if err != nil {
		return nil, err
	}
	stream, memory := bestStream(intoBlock)(p), fillCounting(make([]byte, bulkLarge))
	for piece := 16 << 10; piece <= 4<<20; piece *= 2 {
		bare := func(_ int, t *times) error { return stream(p.o.count, t) }
		if isShared {
			bare = func(_ int, t *times) error {
				return t.rate(bulkLarge, func() error { p.summed.Add(sum(memory)); return nil })
			}
		}
		t, err := measure(p.o.rounds, bulkTable/piece, bare, func(_ int, t *times) error {
			return t.rate(bulkTable, func() error { return p.consume(ep, o.handle, isShared, bulk.PieceSize(piece)) })
		})
		if err != nil {
			return nil, err
		}
		r := p.result(c, t[1], t[0])
		if r.What = "reading local memory"; !isShared {
			r.What = p.best.what()
		}
		if r.Size = piece; piece >= bulkTableFrom {
			r.Target = bulkLeast
		}
		r.Count = p.o.rounds * bulkTable / piece
		rows = append(rows, r)
	}
	return rows, nil
}

// consume runs a pipeline, and reads every byte or not.
func (p *pair) consume(ep *bulk.Endpoint, h bulk.Handle, reads bool, opts ...bulk.Option) error {
	var summed uint64
	for b, err := range bulk.Pipeline(p.ctx, ep, h, opts...) {
		if err != nil {
			return err
		}
		if reads {
			summed += sum(b.Bytes())
		}
	}
	p.summed.Add(summed)
	return nil
}

// clients measures how fast one process pulls from several at the same time, the same number of
// bytes from each. It compares that with pulling as many bytes from one.
func clients(p *pair, c *comparison) (rows []*Result, err error) {
	counts, size := []int{4, 16}, bulkLarge
	if p.o.full {
		counts, size = []int{4, 16, 64}, bulkTable
	}
	ep, err := p.endpoint()
	if err != nil {
		return nil, err
	}
	for _, n := range counts {
		if _, err := p.origin(n-1, size, p.Transport == "shm", true); err != nil {
			return nil, err
		}
	}
	for _, n := range counts {
		one := func(_ int, t *times) error {
			return t.rate(float64(max(n/4, 1)*size), func() error {
				return repeat(max(n/4, 1), func() error { return p.consume(ep, p.origins[0].handle, true) })
			})
		}
		all := func(_ int, t *times) error {
			return t.rate(float64(n*size), func() error {
				return concurrently(n, func(i int) error { return p.consume(ep, p.origins[i].handle, true) })
			})
		}
		t, err := measure(p.o.rounds, n, one, all)
		if err != nil {
			return nil, err
		}
		r := p.result(c, t[1], t[0])
		r.Size, r.Senders, r.Count = size, n, p.o.rounds
		r.Extra = "each client's bytes come through a pipeline of 4 x 1 MiB, and are read"
		rows = append(rows, r)
	}
	return rows, nil
}

// bulkMemory measures how much more memory this process uses while it pulls 1 GiB through a
// pipeline of 4 x 1 MiB.
func bulkMemory(p *pair, c *comparison) ([]*Result, error) {
	const total, piece, depth = 1 << 30, 1 << 20, 4
	ep, err := p.endpoint()
	if err != nil {
		return nil, err
	}
	o, err := p.origin(0, total, false, false)
	if err != nil {
		return nil, err
	}
	first, err := o.handle.Slice(0, 1) // makes the connection
	if err != nil {
		return nil, err
	}
	if err := p.consume(ep, first, true); err != nil {
		return nil, err
	}
	before, err := resident(p.ctx)
	if err != nil {
		return nil, err
	}
	most := before
	for _, err := range bulk.Pipeline(p.ctx, ep, o.handle, bulk.PieceSize(piece), bulk.Depth(depth)) {
		if err != nil {
			return nil, err
		}
		now, err := pss()
		if err != nil {
			return nil, err
		}
		most = max(most, now)
	}
	r := p.result(c, limit(float64(max(most-before, 0))), limit(bulkMemoryMost))
	r.Size, r.Count = total, 1
	r.Rate, r.P50 = r.P50, 0
	r.Extra = fmt.Sprintf("through a pipeline of %d x 1 MiB; resident before: %.1f MiB, and at most %.1f", depth, float64(before)/(1<<20), float64(most)/(1<<20))
	return []*Result{r}, nil
}
