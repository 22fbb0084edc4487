// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
)

// Stream is a worker that serves one or several pools until it is removed. Its scheduler chooses
// the next pool. Most pools have workers of their own. A stream is for pools that share a worker,
// and for a worker with a thread or cores of its own ([StreamConfig]).
type Stream struct {
	name      string
	config    StreamConfig
	pools     []*Pool
	shown     []*Pool // a copy for schedulers, which they may change
	seats     []*seat
	scheduler atomic.Pointer[Scheduler]
	onPanic   func(Panic)
	stopping  atomic.Bool
	ended     func() // called at the end of the goroutine

	// The stream changes state from running to parked, and back to running. The goroutine that
	// gives the stream a unit, or stops it, changes state from parked to handed and then sends to
	// wake.
	state atomic.Int32
	wake  chan struct{}

	// The unit that runs or was given to the stream, and when it began to run.
	pool  *Pool
	item  item
	start time.Duration
	clock time.Duration // a recent reading of the clock, or 0
}

const (
	running = iota
	parked
	handed
)

// seat connects a stream with one of its pools. The pool's lock guards it.
type seat struct {
	stream *Stream
	pool   *Pool
	parked bool // in the pool's list of parked seats
	left   bool // the stream no longer serves the pool
}

func newStream(c StreamConfig, pools []*Pool, onPanic func(Panic), ended func()) *Stream {
	s := &Stream{name: c.Name, config: c, pools: pools, shown: slices.Clone(pools), onPanic: onPanic, ended: ended, wake: make(chan struct{}, 1)}
	s.SetScheduler(c.scheduler())
	for _, p := range pools {
		s.seats = append(s.seats, &seat{stream: s, pool: p})
	}
	return s
}

// open starts the stream. It returns an error if the stream cannot have its cores.
func (s *Stream) open() error {
	for _, seat := range s.seats {
		p := seat.pool
		p.mu.Lock()
		p.seats = append(p.seats, seat)
		p.mu.Unlock()
	}
	ready := make(chan error)
	go s.work(ready)
	err := <-ready
	if err != nil {
		s.leave()
	}
	return err
}

// Name returns the stream's name.
func (s *Stream) Name() string { return s.name }

// Pools returns the pools that the stream serves.
func (s *Stream) Pools() []*Pool { return slices.Clone(s.pools) }

// SetScheduler changes the stream's scheduler, from its next unit on. nil stands for [InOrder].
func (s *Stream) SetScheduler(sch Scheduler) {
	if sch == nil {
		sch = InOrder()
	}
	s.scheduler.Store(&sch)
}

// Scheduler returns the stream's scheduler.
func (s *Stream) Scheduler() Scheduler { return *s.scheduler.Load() }

// current returns the stream's configuration as it is now.
func (s *Stream) current() StreamConfig {
	c := s.config
	c.Scheduler, c.Weights = describe(s.Scheduler(), len(s.pools))
	return c
}

// work runs units until the stream is stopped. If a unit ends the goroutine, work starts another
// one.
func (s *Stream) work(ready chan<- error) {
	isEnded := false
	defer func() {
		if isEnded {
			s.ended()
			return
		}
		s.finish()
		go s.work(nil)
	}()
	err := s.lockThread()
	if ready != nil {
		ready <- err
		isEnded = err != nil
	}
	for !isEnded && s.next() {
		s.pool.run(&s.item)
		s.finish()
	}
	isEnded = true
}

// lockThread gives the stream its thread and its cores. The thread ends with the goroutine, because
// it is not unlocked.
func (s *Stream) lockThread() error {
	if !s.config.LockThread {
		return nil
	}
	runtime.LockOSThread()
	if len(s.config.Cores) == 0 {
		return nil
	}
	return bindThread(s.config.Cores)
}

// next waits for a unit to run. It reports false when the stream is stopped.
func (s *Stream) next() bool {
	for !s.stopping.Load() {
		if s.choose() || s.park() {
			return true
		}
	}
	return false
}

// choose takes a unit from the pool that the scheduler chooses, or from the first pool that has
// one.
func (s *Stream) choose() bool {
	if i := s.ask(); i >= 0 && i < len(s.pools) && s.take(s.pools[i]) {
		return true
	}
	return slices.ContainsFunc(s.pools, s.take)
}

// ask calls the scheduler. A scheduler that panics or ends the goroutine is replaced by [InOrder].
func (s *Stream) ask() (i int) {
	var v any = ErrGoexit
	defer func() {
		if v == nil {
			return
		}
		if p := recover(); p != nil {
			v, i = p, -1
		}
		s.SetScheduler(InOrder())
		tell(s.onPanic, Panic{Stream: s.name, Value: v, Stack: debug.Stack()})
	}()
	i = s.Scheduler().Next(s.shown)
	v = nil
	return i
}

func (s *Stream) take(p *Pool) bool {
	if p.Ready() == 0 {
		return false
	}
	if s.clock == 0 {
		s.clock = p.now()
	}
	p.mu.Lock()
	if !p.hasNextLocked() {
		p.mu.Unlock()
		return false
	}
	s.pool, s.item = p, p.popLocked()
	s.start = max(s.clock, s.item.at) // the clock was read before the scheduler was asked
	p.unlock()
	return true
}

// finish accounts for the unit that has run, if there is one. The end of the unit may let another
// unit of the same key run, and the stream may continue with another pool.
func (s *Stream) finish() {
	p := s.pool
	if p == nil {
		return
	}
	s.clock = p.now()
	p.mu.Lock()
	p.endedLocked(&s.item, s.start, s.clock)
	s.pool, s.item = nil, item{}
	p.dispatchLocked()
}

// park waits until the stream is given a unit, and reports whether it was. It reports false at once
// if a pool has a unit. A pool gives a parked stream a unit before its queue gets longer, so no
// unit waits while a stream that serves its pool is parked.
func (s *Stream) park() bool {
	s.clock = 0
	s.state.Store(parked)
	for _, seat := range s.seats {
		if !seat.park() && s.state.CompareAndSwap(parked, running) {
			return false
		}
	}
	<-s.wake
	s.state.Store(running)
	if s.pool == nil {
		return false // stopped
	}
	s.start = s.pool.now()
	return true
}

// park puts the seat into its pool's list of parked seats. It reports false, without doing so, if
// the pool has a unit to run or the stream has left the pool.
func (t *seat) park() bool {
	p := t.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.left || p.hasNextLocked() {
		return false
	}
	if !t.parked {
		t.parked = true
		p.parked = append(p.parked, t)
	}
	return true
}

// unparkLocked returns a parked stream, which must then be given a unit, or nil.
func (p *Pool) unparkLocked() *Stream {
	for last := len(p.parked) - 1; last >= 0; last-- {
		t := p.parked[last]
		p.parked = p.parked[:last]
		t.parked = false
		if t.stream.state.CompareAndSwap(parked, handed) {
			return t.stream
		}
	}
	return nil
}

// stop ends the stream after the unit that it runs. It does not wait.
func (s *Stream) stop() {
	s.stopping.Store(true)
	s.leave()
	if s.state.CompareAndSwap(parked, handed) {
		s.wake <- struct{}{}
	}
}

// leave removes the stream's seats from its pools.
func (s *Stream) leave() {
	for _, t := range s.seats {
		p := t.pool
		is := func(other *seat) bool { return other == t }
		p.mu.Lock()
		t.left = true
		p.seats = slices.DeleteFunc(p.seats, is)
		p.parked = slices.DeleteFunc(p.parked, is)
		p.mu.Unlock()
	}
}
