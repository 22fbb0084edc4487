// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/internal/lock"
)

// A Source is the handler of a descriptor in a Poller.
type Source interface {
	// Ready reads until nothing is left. The goroutine that makes progress calls it. It returns how
	// many frames came, where a part of a frame counts as one. again reports whether Ready stopped
	// early for fairness and must be called again.
	Ready(on Readiness) (frames int, again bool)
}

// A Ring is a Source that receives through memory, where a look costs no system call. Each Poll
// looks at it. Its descriptor is the bell, which peers ring after SetIdle has told them that no
// goroutine looks.
type Ring interface {
	Source
	// Look processes what has arrived, and returns how many frames it delivered. It may leave a
	// part for the next Look.
	Look() (frames int)
	// SetIdle tells the peers that no goroutine looks until the next Look, and how to wake one.
	// Then it reports whether something has arrived for which no peer may have rung.
	SetIdle(how IdleMode) (arrived bool)
}

// IdleMode is how a Poller waits while it does not look at rings. It tells peers how to wake the
// Poller.
type IdleMode uint8

// Idle modes.
const (
	Awake   IdleMode = iota // the Poller looks; a peer does nothing
	Asleep                  // a peer rings the bell's descriptor
	Napping                 // a peer changes the word of the Poller's NapPage and wakes the sleeper on it
)

// levelPoller is the lock level of Poller.mu.
type levelPoller struct{}

func (levelPoller) Depth() (int, string) { return 140, "poller" }

// Readiness is a set of conditions of a descriptor.
type Readiness uint8

// Bits of a Readiness.
const (
	Readable Readiness = 1 << iota
	Writable
	Ended // the peer has closed its direction: no event reports the end after a short read
)

// direct is the number of sources up to which Poll tries each one instead of asking the kernel. A
// read that finds nothing costs as much as the question, and a read that finds something saves it.
const direct = 3

// If there are more than direct sources, Poll tries those that were active lately, at most direct
// of them. Once in askCold Polls it asks the kernel about the others. A source that had nothing in
// coldAfter Polls is no longer tried.
const (
	askCold   = 4
	coldAfter = 256
)

// A Poller watches the descriptors of one context. It asks the kernel through its set, of which
// each system has its own.
//
// One goroutine at a time calls Poll, PollAll, Drain, Idle, Sleep, Naps, Nap, More, Arm and Park:
// the holder of the dispatcher's progress token. Any goroutine may call Add, AddQuiet, Again,
// Remove, WantWrite, Len, NapPage, BoundNaps, Wake, Asleep and EndPark. One goroutine of its own
// calls EndNap at intervals.
type Poller struct {
	count *Counters
	set   set

	mu       lock.Mutex[levelPoller]
	isClosed bool
	sources  map[int32]*entry
	list     atomic.Pointer[[]Source] // the sources that Poll tries, read without the lock
	rings    atomic.Pointer[[]Ring]   // the rings, read without the lock
	quiet    atomic.Int32             // number of sources that Poll leaves to the set

	polls uint // Polls that looked at rings
	nap   nap

	again []Source
	// wasAgain has memory for again.
	wasAgain []Source

	hot      [direct]hot
	asked    uint          // Polls since the last question to epoll
	changes  atomic.Uint64 // changes of the set of sources
	hotSince uint64        // value of changes for which hot is valid

	revived   []Source // see Again; guarded by mu
	isRevived atomic.Bool
	stuck     atomic.Int32  // sources waiting to be writable
	mode      atomic.Uint32 // an IdleMode: how the progress goroutine waits; while it naps, also the nap's number
}

// hot is a source that was active lately.
type hot struct {
	Source      // nil: the place is free
	misses uint // consecutive Polls in which it had nothing
}

type entry struct {
	Source
	quiet bool // Poll does not try it
	stuck bool // waits until the descriptor is writable
}

// One in askBusy Polls that found frames in rings asks about the other sources as well, and
// one in askIdle of those that found none.
const (
	askBusy = 16
	askIdle = 2048
	askNap  = 64 // for naps
)

// NewPoller returns a Poller. It fails only if no descriptors are left.
func NewPoller(count *Counters) (*Poller, error) {
	p := &Poller{count: count, sources: map[int32]*entry{}}
	p.list.Store(new([]Source))
	p.rings.Store(new([]Ring))
	if err := p.set.open(); err != nil {
		return nil, fmt.Errorf("subsys: %w", err)
	}
	return p, nil
}

// Add starts watching fd for input. The descriptor must be non-blocking.
func (p *Poller) Add(fd int, s Source) error { return p.add(fd, &entry{Source: s}) }

// AddQuiet is Add for a descriptor with rare and less urgent input: Poll does not try it. If the
// source is a Ring, Poll looks at it.
func (p *Poller) AddQuiet(fd int, s Source) error {
	return p.add(fd, &entry{Source: s, quiet: true})
}

func (p *Poller) add(fd int, e *entry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sources[int32(fd)] = e
	p.relist()
	if err := p.set.add(fd); err != nil {
		delete(p.sources, int32(fd))
		p.relist()
		return fmt.Errorf("subsys: watching a descriptor: %w", err)
	}
	return nil
}

// Remove stops watching fd. A Poll in progress may call its source once more.
func (p *Poller) Remove(fd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.sources[int32(fd)]
	if e == nil {
		return
	}
	if e.stuck {
		p.stuck.Add(-1)
	}
	delete(p.sources, int32(fd))
	p.relist()
	p.set.remove(fd)
}

func (p *Poller) relist() {
	var l []Source
	var rings []Ring
	for _, e := range p.sources {
		if r, ok := e.Source.(Ring); ok {
			rings = append(rings, r)
		} else if !e.quiet {
			l = append(l, e.Source)
		}
	}
	p.list.Store(&l)
	p.rings.Store(&rings)
	p.quiet.Store(int32(len(p.sources) - len(l)))
	p.changes.Add(1)
}

// Again makes the Poller call the source of fd as if fd were readable. Any goroutine may call it.
func (p *Poller) Again(fd int) {
	p.mu.Lock()
	if e := p.sources[int32(fd)]; e != nil {
		p.revived = append(p.revived, e.Source)
		p.isRevived.Store(true)
	}
	p.mu.Unlock()
	p.Wake()
}

// WantWrite sets whether the source of fd waits until fd is writable.
func (p *Poller) WantWrite(fd int, want bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.sources[int32(fd)]
	if e == nil || e.stuck == want {
		return
	}
	e.stuck = want
	if want {
		p.stuck.Add(1)
	} else {
		p.stuck.Add(-1)
	}
	p.set.want(fd, want)
}

// Len returns the number of sources.
func (p *Poller) Len() int { return len(*p.list.Load()) + int(p.quiet.Load()) }

// Poll makes the progress that is possible without waiting, and returns the number of frames
// delivered.
func (p *Poller) Poll() int {
	n, l := 0, *p.list.Load()
	if rings := *p.rings.Load(); len(rings) > 0 {
		n = p.look(rings)
		p.polls++
		if n > 0 && p.polls%askBusy != 0 || len(l) == 0 && p.polls%askIdle != 0 {
			return n
		}
		if p.polls%askIdle == 0 {
			return n + p.harvest(0)
		}
	}
	if len(l) <= direct && p.stuck.Load() == 0 {
		others := 0
		for _, s := range l {
			f, _ := s.Ready(Readable)
			others += f
		}
		if others > 0 {
			p.nap.streak = 0
		}
		return n + others
	}
	others, asks := p.tryHot()
	n += others
	if asks {
		n += p.harvest(0)
	}
	return n
}

// PollAll is Poll that leaves out no source. Poll may leave some out if there are many.
func (p *Poller) PollAll() (frames int) {
	p.setIdle(Awake) // after it, a ring's Look looks at everything
	frames = p.look(*p.rings.Load())
	if len(*p.list.Load()) > direct {
		frames += p.harvest(0)
	}
	return frames
}

// tryHot calls the sources that were active lately, and reports whether the kernel must be asked
// about the others.
func (p *Poller) tryHot() (frames int, asks bool) {
	if now := p.changes.Load(); now != p.hotSince { // some sources may have been removed
		p.hot, p.hotSince = [direct]hot{}, now
	}
	tries := len(*p.rings.Load()) > 0
	for i := range p.hot {
		h := &p.hot[i]
		if h.Source == nil {
			continue
		}
		tries = true
		f, again := h.Ready(Readable)
		if again {
			p.again = append(p.again, h.Source)
		}
		if frames += f; f > 0 {
			h.misses = 0
		} else if h.misses++; h.misses == coldAfter {
			*h = hot{}
		}
	}
	if frames > 0 {
		p.nap.streak = 0
	}
	p.asked++
	return frames, !tries || p.asked >= askCold || len(p.again) > 0 || p.isRevived.Load() || p.stuck.Load() > 0
}

// heat records that s was active. s replaces the recorded source that has been inactive for
// longest.
func (p *Poller) heat(s Source) {
	at := &p.hot[0]
	for i := range p.hot {
		h := &p.hot[i]
		switch {
		case h.Source == s:
			h.misses = 0
			return
		case h.Source == nil || at.Source != nil && h.misses > at.misses:
			at = h
		}
	}
	*at = hot{Source: s}
}

// lookAndAsk is look that also asks about the other sources once in so many calls. Without
// that, rings that always have something would keep the other sources waiting for ever.
func (p *Poller) lookAndAsk(times uint) (frames int) {
	frames = p.look(*p.rings.Load())
	if p.polls++; p.polls%times == 0 {
		frames += p.harvest(0)
	}
	return frames
}

// look calls the rings to process what has arrived.
func (p *Poller) look(rings []Ring) (frames int) {
	for _, r := range rings {
		frames += r.Look()
	}
	return frames
}

// Idle tells the rings that no goroutine looks at them until the next Poll, Drain or Sleep. It
// reports whether something has arrived for which no peer may have rung.
func (p *Poller) Idle() (arrived bool) { return p.setIdle(Asleep) }

func (p *Poller) setIdle(how IdleMode) (arrived bool) {
	for _, r := range *p.rings.Load() {
		if r.SetIdle(how) {
			arrived = true
		}
	}
	return arrived
}

// Drain is Poll that asks the kernel too, so that no source stays marked ready in the set. An armed
// gate would fire for a source that was handled without asking. Drain reports whether a source has
// more, for which the gate would not fire.
func (p *Poller) Drain() (more bool) {
	p.look(*p.rings.Load())
	p.harvest(0)
	return p.More()
}

// More reports whether a source stopped early and must be called again. No event reports that.
func (p *Poller) More() bool { return len(p.again) > 0 || p.isRevived.Load() }

// Sleep is Poll, but it sleeps in the kernel for up to d if there is nothing to do. It holds an
// operating-system thread meanwhile.
//
// It does not sleep if unless is not 0. A goroutine that changes unless afterwards must call Wake
// if Asleep reports true.
func (p *Poller) Sleep(d time.Duration, unless *atomic.Uint32) int {
	ms := int((d + time.Millisecond - 1) / time.Millisecond)
	p.mode.Store(uint32(Asleep))
	if unless.Load() != 0 {
		p.mode.Store(uint32(Awake))
		return 0
	}
	if p.Idle() {
		p.mode.Store(uint32(Awake))
		return p.lookAndAsk(askBusy)
	}
	if len(*p.rings.Load()) == 0 {
		return p.harvest(max(ms, 1))
	}
	start := time.Now()
	n := p.harvest(max(ms, 1))
	p.nap.slept(time.Since(start), n)
	return n
}

// harvest asks the kernel which sources are ready, waits up to ms milliseconds for one, and calls
// them.
func (p *Poller) harvest(ms int) int {
	n := 0
	p.asked = 0
	if p.isRevived.Load() {
		p.mu.Lock()
		p.isRevived.Store(false)
		p.again = append(p.again, p.revived...)
		p.revived = nil
		p.mu.Unlock()
	}
	if len(p.again) > 0 {
		again := p.again
		p.again, p.wasAgain = p.wasAgain[:0], nil
		p.mode.Store(uint32(Awake))
		for i, s := range again {
			again[i] = nil
			n += p.run(s, Readable|Ended)
		}
		p.wasAgain = again // its memory serves the next time
		ms = 0
	}
	p.count.Polls.Add(1)
	var got int
	if ms == 0 {
		got = p.set.ready()
	} else {
		p.count.Sleeps.Add(1)
		got = p.set.await(ms)
		p.mode.Store(uint32(Awake))
	}
	for i := range got {
		fd, on := p.set.event(i)
		if p.set.isWake(fd) {
			p.set.drainWake()
			continue
		}
		p.mu.Lock()
		s := p.sources[fd]
		p.mu.Unlock()
		if s != nil {
			f := p.run(s.Source, on)
			if f > 0 && !s.quiet {
				p.heat(s.Source)
			}
			p.set.handled(fd, on, f)
			n += f
		}
	}
	return n
}

func (p *Poller) run(s Source, on Readiness) int {
	f, again := s.Ready(on)
	if again {
		p.again = append(p.again, s)
	}
	if f > 0 {
		if _, ring := s.(Ring); !ring {
			p.nap.streak = -1 // -1: the sleep that this source ended does not count as short
		}
	}
	return f
}

// Wake ends a Sleep, a Nap or a Park in progress, or the next Sleep or Park.
func (p *Poller) Wake() {
	p.count.Wakeups.Add(1)
	if p.wakeNap() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isClosed { // else another file may have the descriptor by now
		p.set.wake()
	}
}

// Asleep reports whether a thread is in Sleep or in Nap.
func (p *Poller) Asleep() bool { return p.mode.Load() != uint32(Awake) }

// Arm opens the gate. Until it fires once, readiness of a source ends Park.
func (p *Poller) Arm() {
	p.set.arm()
	if p.Idle() {
		p.Wake()
	}
}

// Park waits until the armed gate fires. On Linux it holds no thread meanwhile. It reports false if
// the Poller is closed or EndPark was called.
func (p *Poller) Park() bool {
	p.count.Sleeps.Add(1)
	return p.set.park()
}

// EndPark ends a Park or a Nap in progress, and every later one at once.
func (p *Poller) EndPark() {
	p.set.endPark()
	p.stopNaps()
}

// Close frees the descriptors of the Poller. Ports close those of the sources.
func (p *Poller) Close() {
	p.set.endPark()
	p.mu.Lock()
	p.isClosed = true
	p.set.close()
	p.mu.Unlock()
	p.freeNapPage()
}
