// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/internal/sentinel"
)

// Errors of this package.
var (
	// Cause: the context uses all that `WithMemory` allows. Remedy: release messages, or raise it.
	ErrLimit    = errors.New("buffers: memory limit reached")
	ErrTooLarge = sentinel.New("buffers: buffer too large", sentinel.ErrTooLarge)
	ErrClosed   = errors.New("buffers: pool closed")
	ErrLeaked   = errors.New("buffers: buffers still held")
	ErrNoShare  = errors.New("buffers: memory cannot be shared here")
	ErrMoved    = errors.New("buffers: the lender has taken the memory back")
	// Cause: the buffer lies in another process. Remedy: copy it with `Message.Writable`.
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

	mostOfClass = 16 // with a limit, a buffer of a class has at most this part of it
)

// An Arena is a stretch of page-backed memory from which buffers are cut.
type Arena struct {
	ID  uint32 // unique in the process, never reused
	Mem []byte
	FD  int // a sealed file that another process may map, or -1; closed with the arena
}

// Offset returns the offset of data in the arena. ok is false if data is empty, or not within the
// arena.
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

// NewArenaID returns an unused ID for an arena. A transport that maps arenas of other processes may
// take IDs for them from it.
func NewArenaID() uint32 { return lastArenaID.Add(1) }

// A Registrar registers memory for a transport. The pool calls RegisterArena once for each arena,
// when it is mapped, and UnregisterArena once before it is unmapped.
type Registrar interface {
	RegisterArena(Arena) error
	UnregisterArena(Arena)
}

// An Option changes one default of New.
type Option func(*Pool)

// WithLimit bounds the bytes that the pool maps. Get returns ErrLimit beyond the limit.
func WithLimit(bytes int64) Option { return func(p *Pool) { p.limit = bytes } }

// A home is an arena and the buffers of one class that are cut from it.
type home struct {
	Arena
	class int
	bufs  []Buffer
	idle  int // buffers in the free list, while forgo counts
	lost  int // buffers that are never handed out again; guarded by the pool's mu
}

// A Pool provides buffers. Its methods may be called concurrently.
type Pool struct {
	limit int64
	own   int // the first class whose buffers are extents
	free  [classes]stack

	waits  waits  // of goroutines in Buffer.Wait
	waiter Waiter // guarded by mu

	hot     slot          // the extent released last, for the next Get of its size; largeOut counts it
	doubles atomic.Uint64 // releases of free buffers
	late    atomic.Uint64 // retains of free buffers

	mu         sync.Mutex
	closed     bool
	homes      map[uint32]*home
	mapped     int64
	large      []*Buffer // released extents above the largest class
	largeBytes int64
	registrars []Registrar
	shared     bool // new arenas are mapped so that other processes can read them
	largeOut   int
	returned   chan struct{} // closed and replaced when memory is returned while getters wait
	waiting    int
	awaiting   map[any]func() // see Await
	used       atomic.Int64   // bytes of the buffers handed out; counted only with a limit
	largeUsed  atomic.Int64   // bytes of those that Get has handed out and isLarge reports true for
	discounted atomic.Int64   // bytes of the buffers handed out for which Discount was called
	reserved   atomic.Int64   // bytes that only GetReserved may use, including forGood
	forGood    atomic.Int64   // bytes that ReserveForGood has reserved
	heed       atomic.Int32   // getters waiting and calls of Await, plus one once closed; unless 0, put takes mu
	debug      debugPool
}

// New returns an empty pool.
func New(opts ...Option) *Pool {
	p := &Pool{own: classes, homes: map[uint32]*home{}, returned: make(chan struct{})}
	for _, o := range opts {
		if o != nil {
			o(p)
		}
	}
	if p.limit > 0 { // a buffer of a class may be twice as long as what it is for
		for p.own > 1 && int64(1)<<(p.own-1+minShift) > p.limit/mostOfClass {
			p.own--
		}
	}
	return p
}

func class(n int) int {
	if n <= 1<<minShift {
		return 0
	}
	return bits.Len(uint(n-1)) - minShift
}

// Get returns a buffer of n bytes, which the caller owns. Its contents are undefined. It fails with
// ErrLimit, ErrClosed or ErrTooLarge. The error for a negative n matches ErrTooLarge.
func (p *Pool) Get(n int) (*Buffer, error) { return p.GetWithin(context.Background(), n) }

// GetWithin is Get that fails with the cause of ctx's end if ctx ends while new memory is mapped.
// Memory that one step allocates (package memfd) is mapped even if ctx has ended: a caller that
// does not want to wait has such a ctx. GetWithin does not wait for the limit.
func (p *Pool) GetWithin(ctx context.Context, n int) (*Buffer, error) {
	if kept := p.reserved.Load(); kept > 0 && n > 0 && int64(n) <= p.limit {
		forGood, used := p.forGood.Load(), p.used.Load()
		if most := p.limit - 2*forGood; int64(n) > most {
			return nil, fmt.Errorf("%w: %w: %d bytes, at most %d of the limit of %d", ErrLimit, ErrTooLarge, n, most, p.limit)
		}
		isLarge, beside := p.isLarge(n), used
		if kept <= p.limit/2 {
			beside -= p.largeUsed.Load()
		}
		if isFull := beside+int64(n) > p.limit-kept && (kept > p.limit/2 || !isLarge); isFull || used+int64(n) > p.limit-forGood {
			return nil, fmt.Errorf("%w: %d of %d bytes used and %d reserved, %d more wanted", ErrLimit, used, p.limit, kept, n)
		}
	}
	b, err := p.getReserved(ctx, n)
	if err == nil && p.isLarge(n) {
		b.isLarge = true
		p.largeUsed.Add(int64(len(b.mem)))
	}
	return b, err
}

// isLarge reports whether a Get of n bytes may use the reservation. If so, the buffer is an extent.
func (p *Pool) isLarge(n int) bool { return p.limit > 0 && int64(n) > p.limit/4 }

// ReserveForGood is Reserve for the lifetime of the pool. As much again is left for buffers that
// the library holds for long, such as those of connections. A Get that cannot fit beside both fails
// with ErrTooLarge as well as ErrLimit.
func (p *Pool) ReserveForGood(bytes int64) {
	p.forGood.Add(bytes)
	p.Reserve(bytes)
}

// Reserve adds more bytes, which may be negative, to those that Get must leave free under the
// limit. Only GetReserved may use them. An exception is a Get of more than a quarter of the limit:
// it may use a reservation of up to half of the limit, while enough of it is not in use. Otherwise
// it might wait for as long as the reservation lasts, beside buffers that nothing releases. Beside
// it, smaller ones may use as much of the reservation, except for what is reserved for good.
func (p *Pool) Reserve(more int64) {
	p.reserved.Add(more)
	if more < 0 {
		p.notify()
	}
}

// notify calls notifyLocked if a goroutine may wait for memory.
func (p *Pool) notify() {
	if p.heed.Load() != 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.notifyLocked()
	}
}

// Unused returns how many bytes of the limit are not in buffers handed out.
func (p *Pool) Unused() int64 { return p.limit - p.used.Load() }

// Left is Unused, and the bytes of the buffers for which Discount was called.
func (p *Pool) Left() int64 { return p.Unused() + p.discounted.Load() }

// Discount lets GetReserved use as many bytes beyond the limit as b has, until b is free. It is for
// a message that waits until its receiver has memory. If the receiver waits for memory of this pool
// in turn, neither would go on.
func (b *Buffer) Discount() {
	b = b.root()
	p := b.pool
	if b.lender != nil || p.limit <= 0 || !b.isDiscounted.CompareAndSwap(false, true) {
		return
	}
	p.discounted.Add(int64(len(b.mem)))
	p.notify()
}

// GetReserved is Get that may use the bytes of Reserve, ReserveForGood and Discount too.
func (p *Pool) GetReserved(n int) (*Buffer, error) { return p.getReserved(context.Background(), n) }

// getReserved is GetReserved that ends with ctx, as GetWithin does.
func (p *Pool) getReserved(ctx context.Context, n int) (*Buffer, error) {
	switch {
	case n < 0:
		return nil, fmt.Errorf("%w: %d bytes", errNegative, n)
	case n > maxBuffer:
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, n, maxBuffer)
	}
	var b *Buffer
	if c := class(n); c < p.own {
		if b = p.free[c].pop(); b == nil || p.heed.Load() != 0 && p.refuse(b) {
			var err error
			if b, err = p.newArenaBuffers(ctx, c); err != nil {
				return nil, err
			}
		}
	} else if b = p.warm(n); b == nil {
		var err error
		if b, err = p.extent(ctx, n); err != nil {
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

// refuse reports whether the pool has been closed, and puts b back if so.
func (p *Pool) refuse(b *Buffer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.free[b.home.class].push(b)
		if p.outLocked() == 0 {
			p.finishLocked()
		}
	}
	return p.closed
}

// IsTemporary reports whether err means that memory is lacking for now. The same Get can succeed
// when enough buffers have been released.
func IsTemporary(err error) bool {
	return err != nil && errors.Is(err, ErrLimit) && !errors.Is(err, ErrTooLarge)
}

// GetWait is Get that waits while the limit is reached, until ctx ends or the pool is closed. A
// size that can never fit fails at once with ErrTooLarge.
func (p *Pool) GetWait(ctx context.Context, n int) (*Buffer, error) {
	for {
		p.mu.Lock()
		if p.closed { // Get might report the limit instead
			p.mu.Unlock()
			return nil, ErrClosed
		}
		ch := p.returned
		p.waiting++
		p.heed.Add(1)
		p.mu.Unlock()
		b, err := p.GetWithin(ctx, n)
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

// mapArenaLocked maps an arena of size bytes, announces it to the registrars and cuts count buffers
// from it. It fails with the cause of ctx's end if ctx ends before. mu must be held. A mapping that
// takes more than one step of the kernel is made without mu, which is released meanwhile.
func (p *Pool) mapArenaLocked(ctx context.Context, size, class, count int) (*home, error) {
	if p.closed {
		return nil, ErrClosed
	}
	if p.limit > 0 && p.mapped+int64(size) > p.limit {
		p.shrinkLocked()
		switch {
		case int64(size) > p.limit:
			return nil, fmt.Errorf("%w: %w: %d bytes, the limit is %d", ErrLimit, ErrTooLarge, size, p.limit)
		case p.mapped+int64(size) > p.limit+p.discounted.Load():
			return nil, fmt.Errorf("%w: %d of %d bytes mapped, %d more wanted", ErrLimit, p.mapped, p.limit, size)
		}
	}
	p.mapped += int64(size)
	isShared, isLong := p.shared, size > arenaSize
	if isLong {
		p.mu.Unlock()
	}
	a, err := newArena(ctx, size, isShared)
	if isLong {
		p.mu.Lock()
	}
	if err == nil {
		if err = p.registerLocked(a); err != nil {
			a.unmap()
		}
	}
	if err != nil {
		p.mapped -= int64(size)
		p.notifyLocked() // a getter may have waited for the limit because of this mapping
		return nil, err
	}
	h := &home{Arena: a, class: class, bufs: make([]Buffer, count)}
	for i := range h.bufs {
		b, each := &h.bufs[i], size/count
		b.pool, b.home, b.mem = p, h, a.Mem[i*each:(i+1)*each:(i+1)*each]
		b.refs.Store(1)
	}
	p.homes[a.ID] = h
	return h, nil
}

// newArena maps an arena, shared with other processes if isShared. It needs no lock.
func newArena(ctx context.Context, size int, isShared bool) (a Arena, err error) {
	a = Arena{ID: NewArenaID(), FD: -1}
	if isShared {
		a.FD, a.Mem, err = memfd.Create(ctx, "rocl-arena", size)
		if err != nil && ctx.Err() != nil {
			return a, fmt.Errorf("buffers: mapping %d bytes: %w", size, err)
		}
	}
	if a.FD < 0 { // also if no file descriptor is left: transports copy what lies in such an arena
		a.Mem, err = mapPrivate(size)
	}
	if err != nil {
		return a, fmt.Errorf("buffers: mapping %d bytes: %w", size, err)
	}
	return a, nil
}

// registerLocked announces an arena to the registrars: to all, or to none if it fails. mu must be
// held.
func (p *Pool) registerLocked(a Arena) error {
	if p.closed { // while the arena was mapped
		return ErrClosed
	}
	for i, r := range p.registrars {
		if err := r.RegisterArena(a); err != nil {
			for _, r := range p.registrars[:i] {
				r.UnregisterArena(a)
			}
			return fmt.Errorf("buffers: registering an arena: %w", err)
		}
	}
	return nil
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
		unmapPrivate(a.Mem)
		return
	}
	memfd.Unmap(a.Mem)
	memfd.Close(a.FD)
}

// newArenaBuffers maps an arena for class c, returns one of its buffers and puts the others into
// the free list.
func (p *Pool) newArenaBuffers(ctx context.Context, c int) (*Buffer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	if b := p.free[c].pop(); b != nil { // another goroutine has just mapped an arena
		return b, nil
	}
	size := 1 << (c + minShift)
	// The first arenas of a class are small: few programs use every class.
	total := max(min(arenaSize, size*16), 16<<10)
	if p.limit > 0 { // leave memory for the other classes
		for total > max(size, 16<<10) && int64(total) > p.limit/32 {
			total /= 2
		}
	}
	if p.limit > 0 && p.mapped+int64(total) > p.limit {
		p.shrinkLocked()
		for total > size && p.mapped+int64(total) > p.limit {
			total /= 2
		}
		total = max(total, size, pageSize)
	}
	h, err := p.mapArenaLocked(ctx, total, c, total/size)
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

// shrinkLocked unmaps unused memory: cached extents, and arenas with no buffer in use. mu must be
// held.
func (p *Pool) shrinkLocked() {
	p.coolLocked()
	for _, b := range p.large {
		p.unmap(b.home)
	}
	p.large, p.largeBytes = nil, 0
	for i := range p.free {
		for _, h := range p.free[i].forgoLocked() {
			p.unmap(h)
		}
	}
}

// put takes back a buffer after its last reference was dropped.
func (p *Pool) put(b *Buffer) {
	if b.free {
		p.double(b)
		return
	}
	if parent := b.parent; parent != nil {
		b.mem, b.parent, b.view, b.free = nil, nil, false, true
		sliceBuffers.Put(b)
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
	size, wasDiscounted := int64(len(b.mem)), b.isDiscounted.Load() && b.isDiscounted.CompareAndSwap(true, false)
	if p.limit > 0 {
		if !wasDiscounted { // its memory counts until shrinkLocked can unmap it
			p.used.Add(-size)
		}
		if b.isLarge {
			b.isLarge = false
			p.largeUsed.Add(-size)
		}
	}
	extent := false // an extent that goes to the list of large extents, not into the slot
	switch {
	case b.abandoned.Load():
		p.writeOff(b)
	case b.home.class == classes:
		if extent = len(b.mem) > maxCached || !p.hot.put(b); !extent && p.heed.Load() == 0 && !wasDiscounted {
			return
		}
	default:
		if s := &p.free[b.home.class]; !s.hot.put(b) && !s.push(b) {
			switch {
			case wasDiscounted:
				p.discounted.Add(-size)
			case p.limit > 0:
				p.used.Add(size)
			}
			p.double(b)
			return
		}
		if p.heed.Load() == 0 && !wasDiscounted {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if extent {
		p.keepLocked(b)
	}
	if wasDiscounted {
		p.discounted.Add(-size)
		p.used.Add(-size)
		if p.mapped > p.limit {
			p.shrinkLocked()
		}
	}
	if p.heed.Load() != 0 {
		p.coolLocked()
	}
	p.notifyLocked()
}

// Limit returns the number of bytes that may be mapped, or 0 if it is not bounded.
func (p *Pool) Limit() int64 { return max(p.limit, 0) }

// Await calls f once, when a buffer next comes back to the pool. A Get that failed with ErrLimit
// may succeed then. f is called with the pool's lock held, so it must not use the pool. A second
// call with the same key replaces the first.
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

// Unawait cancels Await, if f has not been called yet.
func (p *Pool) Unawait(key any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.awaiting[key] != nil {
		p.heed.Add(-1)
		delete(p.awaiting, key)
	}
}

// notifyLocked calls the functions of Await and wakes waiting getters after memory has come back.
// It finishes a closed pool when no buffer is out. mu must be held.
func (p *Pool) notifyLocked() {
	for key, f := range p.awaiting {
		p.heed.Add(-1)
		delete(p.awaiting, key)
		f()
	}
	if p.waiting > 0 {
		close(p.returned)
		p.returned = make(chan struct{})
	}
	if p.closed && p.outLocked() == 0 {
		p.finishLocked()
	}
}

func (p *Pool) double(b *Buffer) {
	p.doubles.Add(1)
	p.debugDouble(b)
}

// writeOff counts b as returned and never hands it out again. If b lies in a shared arena, no
// buffer of the arena is handed out again. The arena is unmapped when its last buffer has been
// released. Mappings in other processes stay valid.
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
			return // the pool unmaps it at its end: the reader has no mapping of its own
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

// outLocked returns the number of buffers handed out. It counts the extent in the slot too, because
// the goroutine that put it there may be about to look whether the pool is closed. mu must be held.
func (p *Pool) outLocked() int {
	n := p.largeOut
	for i := range p.free {
		n += p.free[i].out()
	}
	return n
}

// Register announces every present and future arena to r.
func (p *Pool) Register(r Registrar) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	var announced []Arena
	for _, h := range p.homes {
		if err := r.RegisterArena(h.Arena); err != nil {
			for _, a := range announced {
				r.UnregisterArena(a)
			}
			return fmt.Errorf("buffers: registering an arena: %w", err)
		}
		announced = append(announced, h.Arena)
	}
	p.registrars = append(p.registrars, r)
	return nil
}

// Unregister ends what Register began. It does not call UnregisterArena for the arenas.
func (p *Pool) Unregister(r Registrar) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.registrars = slices.DeleteFunc(p.registrars, func(have Registrar) bool { return have == r })
}

// Share makes the pool map new arenas so that other processes can read them. A transport calls it
// before the pool is used. The error matches ErrNoShare and says why memory cannot be shared on
// this system.
func (p *Pool) Share() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shared {
		return nil
	}
	fd, mem, err := memfd.Create(context.Background(), "rocl-probe", pageSize)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoShare, err)
	}
	memfd.Unmap(mem)
	memfd.Close(fd)
	p.shared = true
	return nil
}

// Stats describes the memory and the use of a pool.
type Stats struct {
	Arenas         int    // arenas mapped
	Mapped         int64  // bytes of all arenas
	InUse          int64  // buffers handed out
	DoubleReleases uint64 // double releases that were detected
	LateRetains    uint64 // retains of free buffers that were detected
	Limit          int64  // the most that Mapped may be, beside what Discount adds; 0: it is not bounded
}

// Stats returns the current figures.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.outLocked()
	if p.hot.Load() != nil {
		out--
	}
	return Stats{len(p.homes), p.mapped, int64(out), p.doubles.Load(), p.late.Load(), p.Limit()}
}

// Close unmaps the pool's memory. Buffers that are still out stay valid: their memory is unmapped
// when the last of them is released. In that case Close returns ErrLeaked. In a rocldebug build,
// the error has the stacks of the Gets. A second Close does nothing.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.heed.Add(1)
	p.shrinkLocked()
	close(p.returned)
	p.returned = make(chan struct{})
	if n := p.outLocked(); n > 0 {
		return fmt.Errorf("%w: %d%s", ErrLeaked, n, p.debugLeaks())
	}
	p.finishLocked()
	return nil
}

// IsClosed reports whether Close has been called.
func (p *Pool) IsClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// finishLocked unmaps all arenas. mu must be held, and no buffer may be out.
func (p *Pool) finishLocked() {
	for i := range p.free {
		p.free[i].clear()
	}
	for _, h := range p.homes {
		p.unmap(h)
	}
}
