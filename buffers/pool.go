// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/internal/memfd"
	"github.com/rocl-go/rocl/internal/sentinel"
)

// Errors of this package.
var (
	ErrLimit    = errors.New("buffers: memory limit reached")
	ErrTooLarge = sentinel.New("buffers: buffer too large", sentinel.ErrTooLarge)
	ErrClosed   = errors.New("buffers: pool closed")
	ErrLeaked   = errors.New("buffers: buffers still held")
	ErrNoShare  = errors.New("buffers: memory cannot be shared here")
	ErrMoved    = errors.New("buffers: the lender has taken the memory back")
	ErrReadOnly = errors.New("buffers: the memory can only be read")

	errNegative = sentinel.New("buffers: negative buffer size", ErrTooLarge)
)

const (
	minShift  = 6  // 64 B, the smallest class
	maxShift  = 20 // 1 MiB, the largest; above it extents are mapped one by one
	classes   = maxShift - minShift + 1
	arenaSize = 1 << 20   // bytes mapped at once for small classes
	maxCached = 256 << 20 // bytes of large extents kept for reuse, beside the one released last
	maxBuffer = 1<<31 - 1 // bytes of the largest buffer
	pageSize  = 4096
)

// An Arena is a stretch of page-backed memory that buffers are cut from.
type Arena struct {
	ID  uint32 // never used again in the process
	Mem []byte
	FD  int // a sealed file that another process may map, or -1; closed with the arena
}

// Offset returns where in the arena data begins. ok is false if data is empty, or not
// within the arena.
func (a *Arena) Offset(data []byte) (off int, ok bool) {
	if len(data) == 0 {
		return 0, false
	}
	at, base := uintptr(unsafe.Pointer(&data[0])), uintptr(unsafe.Pointer(&a.Mem[0]))
	if at < base || at-base > uintptr(len(a.Mem)-len(data)) {
		return 0, false
	}
	return int(at - base), true
}

var lastArenaID atomic.Uint32

// NewArenaID returns an ID for an arena. A transport that maps other processes' arenas may
// number them with it, beside those of pools.
func NewArenaID() uint32 { return lastArenaID.Add(1) }

// A Registrar is told of each arena once, when it is mapped, and once more
// before it is unmapped: a transport that must register memory does so there.
type Registrar interface {
	RegisterArena(Arena) error
	UnregisterArena(Arena)
}

// An Option changes one default of New.
type Option func(*Pool)

// WithLimit bounds the bytes mapped. Get returns ErrLimit beyond it.
func WithLimit(bytes int64) Option { return func(p *Pool) { p.limit = bytes } }

// A home is an arena and the buffers cut from it, of one class.
type home struct {
	Arena
	class int
	bufs  []Buffer
	idle  int // of them in the free list, while forgo counts
	lost  int // of them that are not handed out again; guarded by the pool's mu
}

// A Pool hands out buffers. Its methods may be called concurrently.
type Pool struct {
	limit int64
	free  [classes]stack

	waits  waits  // of goroutines in Buffer.Wait
	waiter Waiter // guarded by mu

	hot     slot          // a released extent for whoever wants such a one next; it counts in largeOut
	doubles atomic.Uint64 // releases of free buffers
	late    atomic.Uint64 // retains of free buffers

	mu         sync.Mutex
	closed     bool
	homes      map[uint32]*home
	mapped     int64
	large      []*Buffer // released extents above the largest class
	largeBytes int64
	registrars []Registrar
	shared     bool // arenas are mapped so that other processes can read them
	largeOut   int
	returned   chan struct{} // closed and replaced when memory comes back to waiting getters
	waiting    int
	awaiting   map[any]func() // see Await
	used       atomic.Int64   // bytes of the buffers out; counted where there is a limit
	reserved   atomic.Int64   // bytes that Get leaves to GetReserved,
	forGood    atomic.Int64   // and those of them that it always will
	heed       atomic.Int32   // getters waiting, and one when closed: put must look closer
	debug      debugPool
}

// New makes an empty pool.
func New(opts ...Option) *Pool {
	p := &Pool{homes: map[uint32]*home{}, returned: make(chan struct{})}
	for _, o := range opts {
		o(p)
	}
	return p
}

func class(n int) int {
	if n <= 1<<minShift {
		return 0
	}
	return bits.Len(uint(n-1)) - minShift
}

// Get returns a buffer of n bytes, which the caller owns. Its bytes are those its
// last user left. It fails with ErrLimit, ErrClosed, or ErrTooLarge, which a negative
// n matches too.
func (p *Pool) Get(n int) (*Buffer, error) {
	if kept := p.reserved.Load(); kept > 0 && int64(n) <= p.limit {
		if used := p.used.Load(); n > 0 && used+int64(n) > p.limit-kept {
			if most := p.limit - p.forGood.Load(); int64(n) > most {
				return nil, fmt.Errorf("%w: %w: %d bytes, at most %d of the limit of %d", ErrLimit, ErrTooLarge, n, most, p.limit)
			}
			return nil, fmt.Errorf("%w: %d of %d bytes used and %d reserved, %d more wanted", ErrLimit, used, p.limit, kept, n)
		}
	}
	return p.GetReserved(n)
}

// ReserveForGood is Reserve for as long as the pool exists. A Get of what does not fit
// beside it fails with ErrTooLarge too.
func (p *Pool) ReserveForGood(bytes int64) {
	p.forGood.Add(bytes)
	p.Reserve(bytes)
}

// Reserve changes by how many bytes less than the limit Get may use. The others are for
// GetReserved.
func (p *Pool) Reserve(more int64) {
	p.reserved.Add(more)
	if more < 0 && p.heed.Load() != 0 {
		p.mu.Lock()
		p.attend()
		p.mu.Unlock()
	}
}

// Unused is how many bytes of the limit are not in buffers out.
func (p *Pool) Unused() int64 { return p.limit - p.used.Load() }

// GetReserved is Get for what memory was reserved for.
func (p *Pool) GetReserved(n int) (*Buffer, error) {
	switch {
	case n < 0:
		return nil, fmt.Errorf("%w: %d bytes", errNegative, n)
	case n > maxBuffer:
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, n, maxBuffer)
	}
	var b *Buffer
	if c := class(n); c < classes {
		if b = p.free[c].pop(); b == nil || p.heed.Load() != 0 && p.refuse(b) {
			var err error
			if b, err = p.cut(c); err != nil {
				return nil, err
			}
		}
	} else if b = p.warm(n); b == nil {
		var err error
		if b, err = p.extent(n); err != nil {
			return nil, err
		}
	}
	b.n, b.at = n, 0
	if p.limit > 0 {
		p.used.Add(int64(len(b.mem)))
	}
	if b.state.Load() != uint32(Owned) {
		b.state.Store(uint32(Owned))
	}
	p.debugGet(b)
	return b, nil
}

// refuse puts b back if the pool has been closed, and says so.
func (p *Pool) refuse(b *Buffer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.free[b.home.class].push(b)
		if p.out() == 0 {
			p.finish()
		}
	}
	return p.closed
}

// IsTemporary reports whether err says that memory is lacking for now: what was asked
// for can be had when enough buffers are released.
func IsTemporary(err error) bool {
	return err != nil && errors.Is(err, ErrLimit) && !errors.Is(err, ErrTooLarge)
}

// GetWait is Get that waits, until ctx ends or the pool is closed, while the limit is
// reached. What can never fit is refused at once with ErrTooLarge.
func (p *Pool) GetWait(ctx context.Context, n int) (*Buffer, error) {
	for {
		p.mu.Lock()
		if p.closed { // Get may say instead that the limit is reached
			p.mu.Unlock()
			return nil, ErrClosed
		}
		ch := p.returned
		p.waiting++
		p.heed.Add(1)
		p.mu.Unlock()
		b, err := p.Get(n)
		full := IsTemporary(err)
		if full {
			select {
			case <-ch:
			case <-ctx.Done():
				err, full = context.Cause(ctx), false
			}
		}
		p.mu.Lock()
		p.waiting--
		p.heed.Add(-1)
		p.mu.Unlock()
		if !full {
			return b, err
		}
	}
}

// settle maps size bytes, announces them and makes count buffers of them. mu
// is held.
func (p *Pool) settle(size, class, count int) (*home, error) {
	if p.closed {
		return nil, ErrClosed
	}
	if p.limit > 0 && p.mapped+int64(size) > p.limit {
		p.shrink()
		switch {
		case int64(size) > p.limit:
			return nil, fmt.Errorf("%w: %w: %d bytes, the limit is %d", ErrLimit, ErrTooLarge, size, p.limit)
		case p.mapped+int64(size) > p.limit:
			return nil, fmt.Errorf("%w: %d of %d bytes mapped, %d more wanted", ErrLimit, p.mapped, p.limit, size)
		}
	}
	a := Arena{FD: -1}
	var err error
	if p.shared {
		a.FD, a.Mem, err = memfd.Create("rocl-arena", size)
	}
	if a.FD < 0 { // also where files have run out: what lies there is copied to other processes
		a.Mem, err = mapMemory(size)
	}
	if err != nil {
		return nil, fmt.Errorf("buffers: mapping %d bytes: %w", size, err)
	}
	mem := a.Mem
	a.ID = NewArenaID()
	for i, r := range p.registrars {
		if err := r.RegisterArena(a); err != nil {
			for _, r := range p.registrars[:i] {
				r.UnregisterArena(a)
			}
			a.unmap()
			return nil, fmt.Errorf("buffers: registering an arena: %w", err)
		}
	}
	p.mapped += int64(size)
	h := &home{Arena: a, class: class, bufs: make([]Buffer, count)}
	for i := range h.bufs {
		b, each := &h.bufs[i], size/count
		b.pool, b.home, b.mem = p, h, mem[i*each:(i+1)*each:(i+1)*each]
		b.refs.Store(1)
	}
	p.homes[a.ID] = h
	return h, nil
}

func (p *Pool) unmap(h *home) {
	for _, r := range p.registrars {
		r.UnregisterArena(h.Arena)
	}
	p.mapped -= int64(len(h.Mem))
	delete(p.homes, h.ID)
	h.Arena.unmap()
}

func (a *Arena) unmap() {
	if a.FD < 0 {
		unmapMemory(a.Mem)
		return
	}
	memfd.Unmap(a.Mem)
	memfd.Close(a.FD)
}

// cut maps an arena for class c, keeps one of its buffers and frees the rest.
func (p *Pool) cut(c int) (*Buffer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	if b := p.free[c].pop(); b != nil { // somebody else has just cut
		return b, nil
	}
	size := 1 << (c + minShift)
	// The first arenas of a class are small: few programs use every class.
	total := max(min(arenaSize, size*16), 16<<10)
	if p.limit > 0 { // other classes need some too
		for total > max(size, 16<<10) && int64(total) > p.limit/32 {
			total /= 2
		}
	}
	if p.limit > 0 && p.mapped+int64(total) > p.limit {
		p.shrink()
		for total > size && p.mapped+int64(total) > p.limit {
			total /= 2
		}
		total = max(total, size, pageSize)
	}
	h, err := p.settle(total, c, total/size)
	if err != nil {
		return nil, err
	}
	mine, rest := &h.bufs[0], h.bufs[1:]
	for i := range rest {
		rest[i].free = true
		if i > 0 {
			rest[i-1].next = &rest[i]
		}
	}
	p.free[c].handed()
	if len(rest) > 0 {
		p.free[c].pushChain(&rest[0], &rest[len(rest)-1])
	}
	return mine, nil
}

// shrink unmaps what is not in use: extents, and arenas whose every buffer is
// free. mu is held.
func (p *Pool) shrink() {
	p.cool()
	for _, b := range p.large {
		p.unmap(b.home)
	}
	p.large, p.largeBytes = nil, 0
	for i := range p.free {
		for _, h := range p.free[i].forgo() {
			p.unmap(h)
		}
	}
}

// put takes back a buffer whose last reference is gone.
func (p *Pool) put(b *Buffer) {
	if b.free {
		p.double(b)
		return
	}
	if parent := b.parent; parent != nil {
		b.mem, b.parent, b.view, b.free = nil, nil, false, true
		slices.Put(b)
		parent.Release()
		return
	}
	if l := b.lender; l != nil {
		isAbandoned := b.abandoned.Load()
		if isAbandoned {
			b.abandoned.Store(false)
		}
		b.mem, b.lender, b.free = nil, nil, true
		l.Return(isAbandoned)
		return
	}
	p.debugPut(b)
	if p.limit > 0 {
		p.used.Add(-int64(len(b.mem)))
	}
	extent := false // that goes to the others, not into the slot
	switch {
	case b.abandoned.Load():
		p.writeOff(b)
	case b.home.class == classes:
		if extent = len(b.mem) > maxCached || !p.hot.put(b); !extent && p.heed.Load() == 0 {
			return
		}
	default:
		if s := &p.free[b.home.class]; !s.hot.put(b) && !s.push(b) {
			if p.limit > 0 {
				p.used.Add(int64(len(b.mem)))
			}
			p.double(b)
			return
		}
		if p.heed.Load() == 0 {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if extent {
		p.keep(b)
	}
	if p.heed.Load() != 0 {
		p.cool()
	}
	p.attend()
}

// Limit is the number of bytes that may be mapped, 0 if that is not bounded.
func (p *Pool) Limit() int64 { return max(p.limit, 0) }

// Await calls f once, when a buffer next comes back to the pool: a Get that failed
// with ErrLimit may succeed then. f must not use the pool. A second call with the same
// key replaces the first.
func (p *Pool) Await(key any, f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.awaiting == nil {
		p.awaiting = map[any]func(){}
	}
	if p.awaiting[key] == nil {
		p.heed.Add(1)
	}
	p.awaiting[key] = f
}

// Unawait undoes Await, if f has not been called yet.
func (p *Pool) Unawait(key any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.awaiting[key] != nil {
		p.heed.Add(-1)
		delete(p.awaiting, key)
	}
}

// attend tells those who wait that something came back, and ends a closed pool
// to which all has. mu is held.
func (p *Pool) attend() {
	for key, f := range p.awaiting {
		p.heed.Add(-1)
		delete(p.awaiting, key)
		f()
	}
	if p.waiting > 0 {
		close(p.returned)
		p.returned = make(chan struct{})
	}
	if p.closed && p.out() == 0 {
		p.finish()
	}
}

func (p *Pool) double(b *Buffer) {
	p.doubles.Add(1)
	p.debugDouble(b)
}

// writeOff counts b as returned and never hands it out again. Nor does the pool hand out
// any other buffer of a shared arena: the arena is unmapped when the last of them has been
// released, and other processes keep what they have mapped.
func (p *Pool) writeOff(b *Buffer) {
	h := b.home
	p.mu.Lock()
	defer p.mu.Unlock()
	b.free = true
	if h.class == classes {
		p.largeOut--
	} else {
		p.free[h.class].lose()
		if h.FD < 0 {
			return // it is unmapped with the pool: its reader has no mapping of its own
		}
		if h.lost == 0 {
			for i := range h.bufs {
				h.bufs[i].abandoned.Store(true)
			}
			h.lost += p.free[h.class].withdraw(h)
		}
	}
	if h.lost++; h.lost == len(h.bufs) {
		p.unmap(h)
	}
}

// out is the number of buffers handed out, with the hot extent: who left it there
// may be about to look whether the pool is closed. mu is held.
func (p *Pool) out() int {
	n := p.largeOut
	for i := range p.free {
		n += p.free[i].out()
	}
	return n
}

// Register announces every arena, present and to come, to r.
func (p *Pool) Register(r Registrar) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	var told []Arena
	for _, h := range p.homes {
		if err := r.RegisterArena(h.Arena); err != nil {
			for _, a := range told {
				r.UnregisterArena(a)
			}
			return fmt.Errorf("buffers: registering an arena: %w", err)
		}
		told = append(told, h.Arena)
	}
	p.registrars = append(p.registrars, r)
	return nil
}

// Unregister ends what Register began, without a word about the arenas.
func (p *Pool) Unregister(r Registrar) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, have := range p.registrars {
		if have == r {
			p.registrars = append(p.registrars[:i:i], p.registrars[i+1:]...)
			return
		}
	}
}

// Share lets the arenas that are mapped from here on lie where other processes
// can be given them to read. A transport asks for it before the pool is used;
// the error, which matches ErrNoShare, says why that cannot be had here.
func (p *Pool) Share() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shared {
		return nil
	}
	fd, mem, err := memfd.Create("rocl-probe", pageSize)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoShare, err)
	}
	memfd.Unmap(mem)
	memfd.Close(fd)
	p.shared = true
	return nil
}

// Stats describe a pool.
type Stats struct {
	Arenas         int    // mapped
	Mapped         int64  // bytes of them
	InUse          int64  // buffers out
	DoubleReleases uint64 // that were noticed
	LateRetains    uint64 // of free buffers, that were noticed
}

// Stats returns the present figures.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.out()
	if p.hot.Load() != nil {
		out--
	}
	return Stats{len(p.homes), p.mapped, int64(out), p.doubles.Load(), p.late.Load()}
}

// Close unmaps the pool's memory. Buffers still out stay valid: the memory
// goes when the last of them is released, and Close says so with ErrLeaked,
// in a rocldebug build with the places where they were got. Closing twice does
// nothing.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.heed.Add(1)
	p.shrink()
	close(p.returned)
	p.returned = make(chan struct{})
	if n := p.out(); n > 0 {
		return fmt.Errorf("%w: %d%s", ErrLeaked, n, p.debugLeaks())
	}
	p.finish()
	return nil
}

// IsClosed reports whether Close has been called.
func (p *Pool) IsClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// finish unmaps what small buffers were cut from. mu is held, nothing is out.
func (p *Pool) finish() {
	for i := range p.free {
		p.free[i].clear()
	}
	for _, h := range p.homes {
		p.unmap(h)
	}
}
