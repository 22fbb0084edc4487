// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"container/list"
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Unit is one piece of work.
type Unit struct {
	// Run does the work. It is called once, with the context given to Submit, which may have ended
	// by then, and perhaps before Submit or SubmitTicket has returned. Run may block, except in a
	// pool of policy [Inline].
	Run func(context.Context)
	// Key selects, in a pool of policy [Keyed], the units that run one after another.
	Key uint64
	// Priority orders the units of a pool of policy [Priority]: the highest number first.
	Priority int
	// Deadline orders the units of a pool of policy [EarliestFirst]. A unit whose deadline has
	// passed runs too. Units without a deadline come last.
	Deadline time.Time
}

// Pool is a queue of units with a name. Its own workers run them, up to [PoolConfig].Workers at a
// time, and so do the streams that serve it. A worker of the pool is a goroutine that the pool
// starts for a unit and that ends when the queue is empty. An idle pool has none.
//
// All methods may be called by several goroutines at a time.
type Pool struct {
	config  PoolConfig // as given; limit and bound replace Workers and Queue
	number  uint64     // unique; two pools are locked in the order of their numbers
	epoch   time.Time  // start of the set's clock
	onPanic func(Panic)
	labels  context.Context // of the goroutines that run units, for profiles
	ready   atomic.Int64    // units that a worker could take now, for schedulers

	mu       sync.Mutex
	q        queue
	bound    int     // most units in the queue; 0: no limit
	limit    Workers // most own workers
	own      Workers // own workers that have a unit
	spare    []*worker
	seats    []*seat    // of the streams that serve the pool
	parked   []*seat    // seats of streams that wait for a unit; a stream may have got one from another pool since
	waiting  *list.List // of *waiter: the calls of Submit that wait
	users    map[string]int
	closed   bool
	drained  chan struct{} // closed when the pool is closed and has no unit
	figures  PoolStats
	errFull  error
	errClose error
}

// lastNumber is the number of the last pool that was made.
var lastNumber atomic.Uint64

// waiter is a call of Submit that waits until the queue has room.
type waiter struct {
	item item
	done chan error
}

// PoolStats has the figures of a pool. A unit's waiting time lasts from the beginning of Submit
// until a worker runs it. Times are those of units that have ended; a pool of policy [Inline] has
// none.
type PoolStats struct {
	Name        string        `json:"name"`
	Queued      int           `json:"queued"`       // units in the queue
	MostQueued  int           `json:"most_queued"`  // most units in the queue so far
	Waiting     int           `json:"waiting"`      // calls of Submit that wait until the queue has room
	Running     int           `json:"running"`      // units that run
	Done        uint64        `json:"done"`         // units that have ended in any way
	Rejected    uint64        `json:"rejected"`     // calls of Submit that failed with ErrFull
	Panicked    uint64        `json:"panicked"`     // units that ended with a panic
	Cancelled   uint64        `json:"cancelled"`    // units that were cancelled while they waited
	MovedIn     uint64        `json:"moved_in"`     // units that came from other pools
	MovedOut    uint64        `json:"moved_out"`    // units that went to other pools
	LongestWait time.Duration `json:"longest_wait"` // nanoseconds in JSON, like the next two
	WaitTime    time.Duration `json:"wait_time"`    // the sum over all units
	RunTime     time.Duration `json:"run_time"`     // the sum over all units
}

// Panic describes a panic for the function of [OnPanic].
type Panic struct {
	Pool   string // the name of the unit's pool
	Stream string // the name of the stream if its scheduler panicked; then Pool and Unit are empty
	Unit   Unit
	Value  any
	Stack  []byte
}

func newPool(c PoolConfig, epoch time.Time, onPanic func(Panic)) *Pool {
	p := &Pool{
		config:   c,
		number:   lastNumber.Add(1),
		epoch:    epoch,
		onPanic:  onPanic,
		labels:   pprof.WithLabels(context.Background(), pprof.Labels("pool", c.Name)),
		q:        newQueue(c.Policy),
		limit:    c.Workers,
		waiting:  list.New(),
		users:    make(map[string]int),
		drained:  make(chan struct{}),
		errClose: fail("submit", c.Name, "closed", ErrClosed),
	}
	p.setBoundLocked(c.Queue)
	return p
}

func (p *Pool) setBoundLocked(n int) {
	p.bound = n
	p.errFull = fail("submit", p.config.Name, p.fullCauseLocked(), ErrFull)
}

func (p *Pool) fullCauseLocked() string { return fmt.Sprintf("the queue is full (limit %d)", p.bound) }

// Name returns the pool's name.
func (p *Pool) Name() string { return p.config.Name }

// Policy returns the order in which the pool runs units.
func (p *Pool) Policy() Policy { return p.config.Policy }

// Streams returns the streams that serve the pool.
func (p *Pool) Streams() []*Stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*Stream
	for _, s := range p.seats {
		all = append(all, s.stream)
	}
	return all
}

// now returns the time since the epoch of the set. It reads one clock; time.Now reads two.
func (p *Pool) now() time.Duration { return time.Since(p.epoch) }

// Ready returns how many units a worker could take now. In a pool of policy [Keyed] these are fewer
// than the queued ones if several have the same key.
func (p *Pool) Ready() int { return int(p.ready.Load()) }

// Submit gives the pool a unit, which will run once, with ctx. It fails with ErrClosed, and with
// ErrFull if the pool has a bounded queue that is full. With [WaitWhenFull] Submit waits until
// there is room. If ctx ends first, the error matches ErrFull and ctx.Err(). Waiting calls are
// admitted in the order in which they came. Otherwise Submit does not check whether ctx has ended.
//
// In a pool of policy [Inline] Submit returns when the unit has run.
func (p *Pool) Submit(ctx context.Context, u Unit) error { return p.submit(ctx, u, nil) }

func (p *Pool) submit(ctx context.Context, u Unit, t *Ticket) error {
	if u.Run == nil {
		return fail("submit", p.config.Name, "the unit has no function Run")
	}
	if p.config.Policy == Inline {
		return p.runInline(ctx, u)
	}
	it := item{Unit: u, ctx: ctx, at: p.now(), ticket: t}
	p.mu.Lock()
	switch {
	case p.closed:
		p.mu.Unlock()
		return p.errClose
	case !p.fullLocked():
		p.pushLocked(it)
		p.dispatchLocked()
		return nil
	case p.submitFreeLocked(it):
		return nil
	case p.config.WhenFull == WaitWhenFull:
		return p.submitLaterLocked(it)
	}
	p.figures.Rejected++
	err := p.errFull
	p.mu.Unlock()
	return err
}

// submitFreeLocked submits a unit although the queue is full, if the unit need not wait. That is so
// in a pool of policy [Keyed] if all queued units wait for others of their keys, and a worker is
// free. mu must be held. submitFreeLocked releases it if it reports true.
func (p *Pool) submitFreeLocked(it item) bool {
	if p.waiting.Len() > 0 || p.q.ready() > 0 || p.q.busy(it.Key) {
		return false
	}
	w, s := p.hireLocked()
	if w == nil && s == nil {
		return false
	}
	p.pushLocked(it)
	p.giveLocked(w, s)
	p.unlock()
	start(w, s)
	return true
}

// firstIsFreeLocked reports whether the first waiting call of Submit has a unit that a free worker
// could run, as in submitFreeLocked.
func (p *Pool) firstIsFreeLocked() bool {
	e := p.waiting.Front()
	return e != nil && p.q.ready() == 0 && !p.q.busy(e.Value.(*waiter).item.Key)
}

// submitLaterLocked waits until the queue has room for a unit. mu must be held, and is released.
func (p *Pool) submitLaterLocked(it item) error {
	w := &waiter{item: it, done: make(chan error, 1)}
	e := p.waiting.PushBack(w)
	p.unlock()
	select {
	case err := <-w.done:
		return err
	case <-it.ctx.Done():
	}
	p.mu.Lock()
	defer p.dispatchLocked() // the next waiting call may have a unit that need not wait
	select {
	case err := <-w.done:
		return err
	default:
	}
	p.waiting.Remove(e)
	p.figures.Rejected++
	err := it.ctx.Err()
	return fail("submit", p.config.Name, fmt.Sprintf("%s: %v", p.fullCauseLocked(), err), ErrFull, err)
}

// roomLocked returns how many more units the queue may have.
func (p *Pool) roomLocked() int {
	if p.bound == 0 {
		return math.MaxInt
	}
	return max(0, p.bound-p.q.len())
}

func (p *Pool) fullLocked() bool { return p.roomLocked() == 0 }

// unlock releases mu after a change of the queue, and updates ready.
func (p *Pool) unlock() {
	p.figures.MostQueued = max(p.figures.MostQueued, p.q.len())
	n := int64(p.q.ready())
	if n == 0 && p.firstIsFreeLocked() {
		n = 1
	}
	if n != p.ready.Load() { // a store costs more than a load
		p.ready.Store(n)
	}
	p.mu.Unlock()
}

func (p *Pool) pushLocked(it item) {
	if it.ticket != nil {
		it.ticket.pool.Store(p)
		it.ticket.waits, it.ticket.key = true, it.Key
	}
	p.q.push(it)
}

// hasNextLocked reports whether a worker could take a unit.
func (p *Pool) hasNextLocked() bool { return p.q.ready() > 0 || p.firstIsFreeLocked() }

// popLocked takes the next unit to run from the queue. hasNextLocked must be true.
func (p *Pool) popLocked() item {
	if p.q.ready() == 0 {
		p.admitFirstLocked()
	}
	it := p.q.pop()
	p.figures.Running++
	if it.ticket != nil {
		it.ticket.waits = false
		it.ticket = nil
	}
	p.admitLocked()
	return it
}

// admitLocked admits waiting calls of Submit while the queue has room.
func (p *Pool) admitLocked() {
	for p.waiting.Len() > 0 && !p.fullLocked() {
		p.admitFirstLocked()
	}
}

func (p *Pool) admitFirstLocked() {
	w := p.waiting.Remove(p.waiting.Front()).(*waiter)
	p.pushLocked(w.item)
	w.done <- nil
}

// dispatchLocked gives units to parked streams and to own workers, as long as there are both. mu
// must be held, and is released.
func (p *Pool) dispatchLocked() {
	for {
		w, s := p.assignLocked()
		more := p.hasNextLocked()
		p.unlock()
		if !start(w, s) || !more {
			return
		}
		p.mu.Lock()
	}
}

// assignLocked gives the next unit to a stream or a worker of the pool. The caller must start it.
func (p *Pool) assignLocked() (w *worker, s *Stream) {
	if !p.hasNextLocked() {
		return nil, nil
	}
	w, s = p.hireLocked()
	p.giveLocked(w, s)
	return w, s
}

// hireLocked returns a stream or a worker of the pool that must be given a unit and started, or
// neither.
func (p *Pool) hireLocked() (*worker, *Stream) {
	if s := p.unparkLocked(); s != nil {
		return nil, s
	}
	if p.own >= p.limit {
		return nil, nil
	}
	p.own++
	return p.workerLocked(), nil
}

// giveLocked gives the next unit to w or s, if one of them is not nil.
func (p *Pool) giveLocked(w *worker, s *Stream) {
	switch {
	case w != nil:
		w.item = p.popLocked()
	case s != nil:
		s.pool, s.item = p, p.popLocked()
	}
}

// start starts a worker or a stream that was given a unit. It reports false if both are nil.
func start(w *worker, s *Stream) bool {
	switch {
	case w != nil:
		go w.loop()
	case s != nil:
		s.wake <- struct{}{}
	default:
		return false
	}
	return true
}

// endedLocked accounts for a unit that ran from start to now.
func (p *Pool) endedLocked(it *item, start, now time.Duration) {
	f := &p.figures
	f.LongestWait = max(f.LongestWait, start-it.at)
	f.WaitTime += start - it.at
	f.RunTime += now - start
	p.q.ended(it.Key)
	p.countLocked()
}

func (p *Pool) countLocked() {
	p.figures.Running--
	p.figures.Done++
	p.checkDrainedLocked()
}

func (p *Pool) emptyLocked() bool {
	return p.q.len() == 0 && p.figures.Running == 0 // calls of Submit wait only while the queue is full
}

// checkDrainedLocked closes drained if the pool is closed and has no unit. It is called after a
// unit has left the pool, and when the pool is closed. A closed pool gets no unit.
func (p *Pool) checkDrainedLocked() {
	if p.closed && p.emptyLocked() {
		close(p.drained)
	}
}

// call runs a unit and recovers from its panic. A unit that calls runtime.Goexit ends the caller's
// goroutine too. The caller must do what is left in deferred functions.
func (p *Pool) call(ctx context.Context, u *Unit) {
	defer func() {
		if v := recover(); v != nil {
			p.panicked(Panic{Pool: p.config.Name, Unit: *u, Value: v, Stack: debug.Stack()})
		}
	}()
	u.Run(ctx)
}

func (p *Pool) panicked(x Panic) {
	p.mu.Lock()
	p.figures.Panicked++
	p.mu.Unlock()
	tell(p.onPanic, x)
}

// run runs the unit of a worker or a stream.
func (p *Pool) run(it *item) {
	pprof.SetGoroutineLabels(p.labels) // the last unit may have changed them
	p.call(it.ctx, &it.Unit)
}

func (p *Pool) runInline(ctx context.Context, u Unit) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return p.errClose
	}
	p.figures.Running++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.countLocked()
		p.mu.Unlock()
	}()
	p.call(ctx, &u)
	return nil
}

// Stats returns the pool's figures.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.figures
	f.Name, f.Queued, f.Waiting = p.config.Name, p.q.len(), p.waiting.Len()
	return f
}

// Use records a user of the pool until release is called. Meanwhile [Set.RemovePool] fails with an
// error that names the user. Units can be submitted without Use.
func (p *Pool) Use(user string) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users[user]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.users[user]--; p.users[user] == 0 {
			delete(p.users, user)
		}
	})
}

// usersLocked describes what prevents the removal of the pool, besides its units.
func (p *Pool) usersLocked() []string {
	var by []string
	for _, s := range p.seats {
		by = append(by, fmt.Sprintf("stream %q serves it", s.stream.name))
	}
	for user := range p.users {
		by = append(by, fmt.Sprintf("%q uses it", user))
	}
	slices.Sort(by)
	return by
}

func (p *Pool) unitsLocked() string {
	left := fmt.Sprintf("%d queued, %d running", p.q.len(), p.figures.Running)
	if n := p.waiting.Len(); n > 0 {
		left += fmt.Sprintf(", %d calls of Submit waiting", n)
	}
	return left
}

func (p *Pool) isDrained() bool {
	select {
	case <-p.drained:
		return true
	default:
		return false
	}
}

// remove closes the pool if nothing uses it. Otherwise it returns an error that describes the uses.
func (p *Pool) remove() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	by := p.usersLocked()
	if !p.emptyLocked() {
		by = append(by, "it has units: "+p.unitsLocked())
	}
	if len(by) > 0 {
		return inUse("remove pool", p.Name(), by)
	}
	p.closeLocked()
	return nil
}

// close refuses units from now on. Those in the queue still run. If nothing else serves the pool, a
// worker is started for them.
func (p *Pool) close() {
	p.mu.Lock()
	p.closeLocked()
	if p.q.len() > 0 && p.limit < 1 && len(p.seats) == 0 {
		p.limit = 1
	}
	p.dispatchLocked()
}

func (p *Pool) closeLocked() {
	p.closed = true
	for e := p.waiting.Front(); e != nil; e = p.waiting.Front() {
		p.waiting.Remove(e).(*waiter).done <- p.errClose
	}
	p.checkDrainedLocked()
}

// resize changes how many own workers the pool may have.
func (p *Pool) resize(n Workers) {
	p.mu.Lock()
	p.limit = n
	p.dispatchLocked()
}

// resizeQueue changes how many units may wait.
func (p *Pool) resizeQueue(n int) {
	p.mu.Lock()
	p.setBoundLocked(n)
	p.admitLocked()
	p.dispatchLocked()
}

// Config returns the pool's configuration as it is now.
func (p *Pool) Config() PoolConfig {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.config
	c.Workers, c.Queue = p.limit, p.bound
	switch {
	case c.Queue == 0:
		c.WhenFull = ""
	case c.WhenFull == "":
		c.WhenFull = RejectWhenFull
	}
	return c
}
