// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/internal/subprocess"
)

// The targets of the rows of bulk.
const (
	bulkLeast      = 0.95     // of the rate of the best bare loop
	bulkCopyLeast  = 0.9      // of the rate of memcpy, and of the rate with one client
	bulkViewMost   = 1.5      // times the time of a view of 64 KiB, for a view of 64 MiB
	bulkMemoryMost = 16 << 20 // bytes more than when idle
	bulkLarge      = 64 << 20
	bulkPart       = 4 << 20   // bytes of one process_vm_readv
	bulkTable      = 512 << 20 // bytes of each row of the table of Mercury's paper
	bulkTableFrom  = 512 << 10 // size of pieces from which the table must reach bulkLeast
)

// bulkBench measures package bulk, row by row. This process moves the data; other processes have
// the memory.
func bulkBench(ctx context.Context, o *options) (*Result, error) {
	var all []*Result
	transports := []string{o.transport}
	if o.transport == "" {
		transports = []string{"tcp", "shm"}
	}
	for _, transport := range transports {
		own := *o
		own.transport, own.size = transport, bulkLarge
		_, err := between(ctx, &own, func(p *pair) (*Result, error) {
			b, err := openBulk(p, &own)
			if err != nil {
				return nil, err
			}
			rows, err := b.rows()
			all = append(all, rows...)
			if e := b.close(); err == nil {
				err = e
			}
			return nil, err
		})
		if err != nil {
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, cli.Usagef("%s is not measured over %s", o.only, strings.Join(transports, " or "))
	}
	for i := range all[1:] {
		all[i].Also = all[i+1]
	}
	return all[0], nil
}

// A bulkRun is what the rows over one transport share.
type bulkRun struct {
	p       *pair
	o       *options
	ep      *bulk.Endpoint
	origins []*origin
	summed  uint64 // makes the compiler keep the reads
}

func openBulk(p *pair, o *options) (*bulkRun, error) {
	ep, err := bulk.Open(p.ctx, p.c)
	return &bulkRun{p: p, o: o, ep: ep}, err
}

func (b *bulkRun) close() error {
	for _, o := range b.origins {
		_ = o.Stop()
	}
	return b.ep.Close(context.WithoutCancel(b.p.ctx))
}

// bulkRowNames are the groups of rows that --only can name.
var bulkRowNames = []string{"view", "pull", "pipeline", "clients", "memory"}

func (b *bulkRun) rows() (all []*Result, err error) {
	rows := map[string]func() ([]*Result, error){"pull": b.pullTCP, "pipeline": b.table, "clients": b.clients, "memory": b.memory}
	if b.o.transport == "shm" {
		rows = map[string]func() ([]*Result, error){"view": b.views, "pull": b.pullShared, "pipeline": b.table, "clients": b.clients}
	}
	for _, name := range bulkRowNames {
		f := rows[name]
		if f == nil || b.o.only != "" && b.o.only != name {
			continue
		}
		rs, err := f()
		if err != nil {
			return all, err
		}
		all = append(all, rs...)
	}
	return all, nil
}

func (b *bulkRun) result(name string, size int) *Result {
	return &Result{Bench: "bulk " + name, Transport: b.o.transport, Size: size, Poll: b.o.poll, Count: b.o.count * b.o.rounds, Unit: "bytes/s", AtLeast: true}
}

// An origin is a process with a region.
type origin struct {
	*subprocess.Process
	handle  bulk.Handle
	address uintptr // address of the memory in that process
}

// origin starts a process that exposes memory, plain or registered, and waits for its handle.
func (b *bulkRun) origin(bytes int, isRegistered bool) (*origin, error) {
	return b.originOf(bytes, bytes, isRegistered)
}

// originOf is origin with a region of bytes that consists of the same memory several times, because
// 64 processes do not have 512 MiB each.
func (b *bulkRun) originOf(bytes, memory int, isRegistered bool) (*origin, error) {
	name := strconv.Itoa(len(b.origins))
	kind := "plain"
	if isRegistered {
		kind = "registered"
	}
	p, err := subprocess.Start(subprocess.Self("bench-origin", filepath.Join(b.p.dir, "directory.sock"), b.o.poll, b.o.transport, name, strconv.Itoa(bytes), strconv.Itoa(memory), kind))
	if err != nil {
		return nil, err
	}
	o := &origin{Process: p}
	b.origins = append(b.origins, o)
	found, err := b.p.c.Await(b.p.ctx, rocl.Match{"origin": name}, 1, rocl.Want("handle", "address"))
	if err != nil {
		return nil, err
	}
	text, _ := found[0].Attrs.Get("handle")
	address, _ := found[0].Attrs.Get("address")
	at, err := strconv.ParseUint(string(address), 10, 64)
	if err != nil {
		return nil, err
	}
	o.address = uintptr(at)
	return o, o.handle.UnmarshalText([]byte(text))
}

// originMain is the main function of an origin's process.
func originMain(ctx context.Context, args []string, in io.Reader) error {
	policy, err := (&options{poll: args[1]}).policy()
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	tr := transportOf(args[2])
	if tr == nil {
		return cli.Usagef("%q joins no two processes", args[2])
	}
	c, err := rocl.Open(ctx, rocl.WithSocket(args[0]), rocl.JoinOnly(), rocl.WithPoll(policy), rocl.WithTransports(tr))
	if err != nil {
		return err
	}
	defer c.Close()
	ep, err := bulk.Open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = ep.Close(ctx) }() // the other side may have ended
	one, err := strconv.Atoi(args[5])
	if err != nil {
		return err
	}
	var mem []byte
	var s bulk.Segment
	if args[6] == "registered" {
		b, err := c.Buffer(one)
		if err != nil {
			return err
		}
		defer b.Release()
		mem, s = b.Bytes(), bulk.Buffer(b)
	} else {
		mem = make([]byte, one)
		s = bulk.Bytes(mem)
	}
	fillCounting(mem)
	r, err := ep.Expose(bulk.ReadOnly, slices.Repeat([]bulk.Segment{s}, size/one)...)
	if err != nil {
		return err
	}
	text, err := r.Handle().MarshalText()
	if err == nil {
		_, err = c.Register(ctx, rocl.Attrs{"origin": args[3], "handle": string(text), "address": strconv.FormatUint(uint64(uintptr(unsafe.Pointer(&mem[0]))), 10)})
	}
	if err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	return err
}

func fillCounting(p []byte) {
	for i := range p {
		p[i] = byte(i)
	}
}

// rate returns how many bytes a second f moves, n bytes each time, as the median over the rounds.
// bare runs before f in each round, and raw is its median.
func (b *bulkRun) rate(n int, bare func() (float64, error), f func() error) (ours, raw float64, err error) {
	var mine, its []float64
	for round := range b.o.rounds + 1 {
		r, err := bare()
		if err != nil {
			return 0, 0, err
		}
		start := time.Now()
		if err := f(); err != nil {
			return 0, 0, err
		}
		if round > 0 { // the first round warms up
			mine, its = append(mine, float64(n)/time.Since(start).Seconds()), append(its, r)
		}
	}
	return median(mine), median(its), nil
}

// bestBare returns a function that measures the best bare loop or, over shared memory, how fast the
// memory is read in place. It also returns what the function measures.
func (b *bulkRun) bestBare() (func() (float64, error), string, error) {
	p := make([]byte, bulkLarge)
	fillCounting(p)
	if b.o.transport == "shm" {
		return func() (float64, error) {
			start := time.Now()
			b.summed += sum(p)
			return bulkLarge / time.Since(start).Seconds(), nil
		}, "reading local memory", nil
	}
	best, err := b.p.bestStream(p, 1)
	return func() (float64, error) { return b.p.moved(best, intoBlock, p, b.o.count) }, best.what(), err
}

func (b *bulkRun) pull(h bulk.Handle, dst []byte) func() error {
	return func() error {
		for range b.o.count {
			if _, err := b.ep.Pull(b.p.ctx, h, 0, dst); err != nil {
				return err
			}
		}
		return nil
	}
}

// pullTCP measures a pull of 64 MiB of plain memory into plain memory.
func (b *bulkRun) pullTCP() ([]*Result, error) {
	p := make([]byte, bulkLarge)
	fillCounting(p)
	best, err := b.p.bestStream(p, 1)
	if err != nil {
		return nil, err
	}
	o, err := b.origin(bulkLarge, false)
	if err != nil {
		return nil, err
	}
	defer func() { _ = o.Stop() }()
	var whole []float64
	bare := func() (float64, error) {
		rate, err := b.p.moved(best, intoMemory, p, b.o.count)
		if err != nil {
			return 0, err
		}
		whole = append(whole, rate)
		return b.p.moved(best, intoBlock, p, b.o.count)
	}
	r := b.result("pull", bulkLarge)
	r.What, r.Target = best.what(), bulkLeast
	r.Rate, r.Raw, err = b.rate(bulkLarge*b.o.count, bare, b.pull(o.handle, make([]byte, bulkLarge)))
	if err != nil {
		return nil, err
	}
	r.Ratio = r.Rate / r.Raw
	r.Extra = fmt.Sprintf("the pull writes 64 MiB of memory, the bare loop the same 1 MiB all the time; a bare loop that writes 64 MiB: %.2f GB/s", median(whole[1:])/1e9)
	return []*Result{r}, nil
}

// pullShared measures pulls of 64 MiB into plain memory, from registered and from plain memory.
func (b *bulkRun) pullShared() (all []*Result, err error) {
	source, to := make([]byte, bulkLarge), make([]byte, bulkLarge)
	fillCounting(source)
	for _, isRegistered := range []bool{true, false} {
		o, err := b.origin(bulkLarge, isRegistered)
		if err != nil {
			return nil, err
		}
		r := b.result("pull of registered memory", bulkLarge)
		r.What, r.Target = "memcpy, of one goroutine", bulkCopyLeast
		bare := func() (float64, error) { return copyRate(to, source, b.o.count), nil }
		if !isRegistered {
			r.Bench = "bulk pull of plain memory"
			if _, err := o.readRate(to, 1); err == nil { // the system allows process_vm_readv
				r.What = "a bare loop of process_vm_readv, of one goroutine"
				r.Extra = fmt.Sprintf("memcpy: %.1f GB/s", copyRate(to, source, b.o.count)/1e9)
				bare = func() (float64, error) { return o.readRate(to, b.o.count) }
			}
		}
		r.Rate, r.Raw, err = b.rate(bulkLarge*b.o.count, bare, b.pull(o.handle, to))
		_ = o.Stop()
		if err != nil {
			return nil, err
		}
		r.Ratio = r.Rate / r.Raw
		all = append(all, r)
	}
	return all, nil
}

// readRate returns how many bytes a second process_vm_readv reads of an origin's memory.
func (o *origin) readRate(to []byte, count int) (float64, error) {
	start := time.Now()
	for range count {
		for part := range slices.Chunk(to, bulkPart) {
			from := o.address + uintptr(unsafe.Pointer(&part[0])) - uintptr(unsafe.Pointer(&to[0]))
			local := []unix.Iovec{{Base: &part[0]}}
			local[0].SetLen(len(part))
			if n, err := unix.ProcessVMReadv(o.Cmd.Process.Pid, local, []unix.RemoteIovec{{Base: from, Len: len(part)}}, 0); err != nil || n != len(part) {
				return 0, fmt.Errorf("reading %d bytes of process %d: %d, %w", len(part), o.Cmd.Process.Pid, n, err)
			}
		}
	}
	return float64(len(to)) * float64(count) / time.Since(start).Seconds(), nil
}

// views measures the time to a view of 64 MiB, beside that of a view of 64 KiB.
func (b *bulkRun) views() ([]*Result, error) {
	o, err := b.origin(bulkLarge, true)
	if err != nil {
		return nil, err
	}
	defer func() { _ = o.Stop() }()
	small, large := newTimes(), newTimes()
	view := func(n int) func() error {
		return func() error {
			m, err := b.ep.View(b.p.ctx, o.handle, 0, n)
			if err == nil {
				m.Release()
			}
			return err
		}
	}
	const each = 2000
	for range b.o.rounds {
		if err := small.round(each, view(64<<10)); err != nil {
			return nil, err
		}
		if err := large.round(each, view(bulkLarge)); err != nil {
			return nil, err
		}
	}
	r := b.result("view", bulkLarge)
	r.Unit, r.AtLeast, r.What, r.Target, r.Count = "µs", false, "a view of 64 KiB", bulkViewMost, each*b.o.rounds
	r.P50, r.P99, r.Raw, r.RawP99 = large.p50(), large.p99(), small.p50(), small.p99()
	r.Ratio = r.P50 / r.Raw
	return []*Result{r}, nil
}

// table measures pipelines with pieces of 16 KiB to 4 MiB. Over shared memory the loop reads every
// byte.
func (b *bulkRun) table() (all []*Result, err error) {
	isShared := b.o.transport == "shm"
	bare, what, err := b.bestBare()
	if err != nil {
		return nil, err
	}
	o, err := b.origin(bulkTable, isShared)
	if err != nil {
		return nil, err
	}
	defer func() { _ = o.Stop() }()
	for piece := 16 << 10; piece <= 4<<20; piece *= 2 {
		r := b.result("pipeline", piece)
		r.What = what
		if piece >= bulkTableFrom {
			r.Target = bulkLeast
		}
		r.Rate, r.Raw, err = b.rate(bulkTable, bare, func() error {
			for p, err := range bulk.Pipeline(b.p.ctx, b.ep, o.handle, bulk.PieceSize(piece)) {
				if err != nil {
					return err
				}
				if isShared {
					b.summed += sum(p.Bytes())
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		r.Ratio, r.Count = r.Rate/r.Raw, b.o.rounds*bulkTable/piece
		all = append(all, r)
	}
	return all, nil
}

// clients measures how fast one process pulls from several at the same time, the same number of
// bytes from each. It compares that with pulling as many bytes from one.
func (b *bulkRun) clients() (all []*Result, err error) {
	counts, size := []int{4, 16}, bulkLarge
	if b.o.full {
		counts, size = []int{4, 16, 64}, bulkTable
	}
	var origins []*origin
	defer func() {
		for _, o := range origins {
			_ = o.Stop()
		}
	}()
	for range counts[len(counts)-1] {
		o, err := b.originOf(size, bulkLarge, b.o.transport == "shm")
		if err != nil {
			return nil, err
		}
		origins = append(origins, o)
	}
	for _, n := range counts {
		r := b.result("clients", size)
		r.Senders, r.What, r.Target, r.Count = n, "one client", bulkCopyLeast, b.o.rounds
		r.Extra = "each client's bytes come through a pipeline of 4 x 1 MiB, and are read"
		one := func() (float64, error) {
			start := time.Now()
			for range max(n/4, 1) {
				if err := b.consume(origins[:1]); err != nil {
					return 0, err
				}
			}
			return float64(max(n/4, 1)*size) / time.Since(start).Seconds(), nil
		}
		if r.Rate, r.Raw, err = b.rate(n*size, one, func() error { return b.consume(origins[:n]) }); err != nil {
			return nil, err
		}
		r.Ratio = r.Rate / r.Raw
		all = append(all, r)
	}
	return all, nil
}

// consume reads the memory of several processes at the same time.
func (b *bulkRun) consume(origins []*origin) error {
	failed := make(chan error, len(origins))
	for _, o := range origins {
		go func() {
			var summed uint64
			for p, err := range bulk.Pipeline(b.p.ctx, b.ep, o.handle) {
				if err != nil {
					failed <- err
					return
				}
				summed += sum(p.Bytes())
			}
			atomic.AddUint64(&b.summed, summed)
			failed <- nil
		}()
	}
	var errs []error
	for range origins {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}

// memory measures how much more memory this process uses while it pulls 1 GiB through a pipeline of
// 4 x 1 MiB.
func (b *bulkRun) memory() ([]*Result, error) {
	const total, piece, depth = 1 << 30, 1 << 20, 4
	o, err := b.origin(total, false)
	if err != nil {
		return nil, err
	}
	defer func() { _ = o.Stop() }()
	var before, most int64
	for i, p := range [2]int{1, piece} { // the first bytes make the connection
		h, err := o.handle.Slice(0, int64(p))
		if i == 1 {
			h, err = o.handle, nil
			if before, err = resident(b.p.ctx); err != nil {
				return nil, err
			}
			most = before
		}
		if err != nil {
			return nil, err
		}
		for _, err := range bulk.Pipeline(b.p.ctx, b.ep, h, bulk.PieceSize(p), bulk.Depth(depth)) {
			if err != nil {
				return nil, err
			}
			now, err := pss()
			if err != nil {
				return nil, err
			}
			most = max(most, now)
		}
	}
	r := b.result("memory", total)
	r.Unit, r.AtLeast, r.What, r.Target, r.Count = "bytes", false, "the allowed 16 MiB", 1, 1
	r.Rate, r.Raw = float64(max(most-before, 0)), bulkMemoryMost
	r.Ratio = r.Rate / r.Raw
	r.Extra = fmt.Sprintf("through a pipeline of %d x 1 MiB; resident before: %.1f MiB, and at most %.1f", depth, float64(before)/(1<<20), float64(most)/(1<<20))
	return []*Result{r}, nil
}
