// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/internal/lock"
	"golang.org/x/sys/unix"
)

// A Source is something with a descriptor in a Poller.
type Source interface {
	// Ready is called by the goroutine that makes progress. A source reads
	// until nothing is left and reports how much came, in frames, of which a part
	// counts as one, and whether it stopped early for fairness and wants to be called
	// again.
	Ready(on Readiness) (frames int, again bool)
}

// A Ring is a Source whose news lie in memory, where a look costs no system call:
// each Poll looks. Its descriptor is the bell that others ring when they have
// been told that nobody looks.
type Ring interface {
	Source
	// Look works on what is there, and returns how many frames it delivered. It
	// may leave something for the next.
	Look() (frames int)
	// Doze tells who rings that nobody looks until the next Look, and what to do then.
	// After that it returns whether there is something for which nobody may have
	// rung.
	Doze(how Rest) (news bool)
}

// Rest is how one rests from looking at rings, and so what those do who have
// something for him.
type Rest uint8

// Kinds of Rest.
const (
	Awake   Rest = iota // nothing: he looks
	Asleep              // they ring the bell's descriptor
	Napping             // they change the word of the Poller's NapPage, and wake who sleeps on it
)

// levelPoller is that of Poller.mu.
type levelPoller struct{}

func (levelPoller) Place() (int, string) { return 140, "poller" }

// Readiness is what is known of a descriptor.
type Readiness uint8

// Bits of a Readiness.
const (
	Readable Readiness = 1 << iota
	Writable
	Ended // the peer has sent its last: behind a short read there is the end, of which no event will tell
)

// direct is the number of sources up to which Poll tries each of them rather
// than asking epoll which are ready: one read that finds nothing costs as much
// as the question, and one that finds something saves it.
const direct = 3

// Of more sources Poll tries those that had something lately, at most as many, and
// asks epoll about the others once in askCold times. One that has had nothing for
// coldAfter Polls is one of the others again.
const (
	askCold   = 4
	coldAfter = 256
)

// A Poller watches the descriptors of one context. Two epoll sets are nested:
// the inner one holds the sources, edge-triggered; the outer one, the gate,
// holds only the inner and is what the Go runtime's poller watches. The gate
// is armed only while nobody else makes progress, so that a message that a
// polling or sleeping waiter is about to read does not wake a runtime thread
// as well.
//
// Poll, Settle, Rest, Sleep, Naps, Nap, More, Arm and Park are called by one goroutine at a time (the dispatcher's
// progress token sees to it); Add, Remove, WantWrite, NapPage, Wake and EndNap by any.
type Poller struct {
	count *Counters
	set   int
	wake  int // eventfd in the set
	gate  *os.File
	gateC syscall.RawConn

	mu       lock.Mutex[levelPoller]
	isClosed bool
	sources  map[int32]*entry
	list     atomic.Pointer[[]Source] // of the same those that Poll tries, without the lock
	rings    atomic.Pointer[[]Ring]   // and those at which it looks
	quiet    atomic.Int32             // and how many it leaves to epoll

	polls uint // of rings
	nap   nap

	again []Source

	hot      [direct]hot
	asked    uint          // Polls since epoll was asked
	changes  atomic.Uint64 // of sources
	hotSince uint64        // changes when hot was true

	revived   []Source // see Again; guarded by mu
	isRevived atomic.Bool
	stuck     atomic.Int32  // sources waiting to be writable
	rests     atomic.Uint32 // how the thread that makes progress does; see nap
	events    [128]unix.EpollEvent

	// What the runtime's poller calls, made once: closures would be garbage.
	arm        func(fd uintptr)
	fired      func(fd uintptr) bool
	gateEvents [1]unix.EpollEvent
}

// hot is a source that had something lately.
type hot struct {
	Source      // nil: none
	misses uint // Polls in which it had nothing, since
}

type entry struct {
	Source
	quiet bool // not tried by Poll
	stuck bool // waits to be writable
}

// Of so many Polls that look at rings, one asks epoll about the rest as well: of
// those that found frames, and of those that did not.
const (
	askBusy = 16
	askIdle = 2048
	askNap  = 64 // of naps that were slept
)

// NewPoller makes a Poller. It fails only when descriptors run out.
func NewPoller(count *Counters) (*Poller, error) {
	p := &Poller{count: count, sources: map[int32]*entry{}}
	p.list.Store(new([]Source))
	p.rings.Store(new([]Ring))
	var err error
	if p.set, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("subsys: making an epoll set: %w", err)
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(p.set)
		return nil, fmt.Errorf("subsys: making an eventfd: %w", err)
	}
	gate, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		unix.Close(p.set)
		unix.Close(p.wake)
		return nil, fmt.Errorf("subsys: making an epoll set: %w", err)
	}
	_ = unix.SetNonblock(gate, true)
	_ = unix.EpollCtl(p.set, unix.EPOLL_CTL_ADD, p.wake, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(p.wake)})
	_ = unix.EpollCtl(gate, unix.EPOLL_CTL_ADD, p.set, &unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: int32(p.set)})
	p.gate = os.NewFile(uintptr(gate), "rocl-gate")
	if p.gateC, err = p.gate.SyscallConn(); err != nil {
		p.Close()
		return nil, fmt.Errorf("subsys: watching an epoll set: %w", err)
	}
	p.arm = func(fd uintptr) {
		_ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, p.set, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(p.set)})
	}
	p.fired = func(fd uintptr) bool {
		n, err := unix.EpollWait(int(fd), p.gateEvents[:], 0)
		return n > 0 || (err != nil && err != unix.EINTR)
	}
	return p, nil
}

// Add starts watching fd for input. The descriptor must be non-blocking.
func (p *Poller) Add(fd int, s Source) error { return p.add(fd, &entry{Source: s}) }

// AddQuiet is Add for a descriptor from which little comes, and nothing that
// hurries: Poll does not try it. If the source is a Ring, Poll looks at it.
func (p *Poller) AddQuiet(fd int, s Source) error {
	return p.add(fd, &entry{Source: s, quiet: true})
}

func (p *Poller) add(fd int, e *entry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sources[int32(fd)] = e
	p.relist()
	if err := unix.EpollCtl(p.set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(fd)}); err != nil {
		delete(p.sources, int32(fd))
		p.relist()
		return fmt.Errorf("subsys: watching a descriptor: %w", err)
	}
	return nil
}

// Remove stops watching fd. Its source may be called once more if a Poll is
// under way.
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
	_ = unix.EpollCtl(p.set, unix.EPOLL_CTL_DEL, fd, nil)
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

// Again lets the source of fd be called as if fd were readable. Any goroutine may call
// it.
func (p *Poller) Again(fd int) {
	p.mu.Lock()
	if e := p.sources[int32(fd)]; e != nil {
		p.revived = append(p.revived, e.Source)
		p.isRevived.Store(true)
	}
	p.mu.Unlock()
	p.Wake()
}

// WantWrite says whether the source of fd waits to be writable.
func (p *Poller) WantWrite(fd int, want bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.sources[int32(fd)]
	if e == nil || e.stuck == want {
		return
	}
	e.stuck = want
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(fd)}
	if want {
		ev.Events |= unix.EPOLLOUT
		p.stuck.Add(1)
	} else {
		p.stuck.Add(-1)
	}
	_ = unix.EpollCtl(p.set, unix.EPOLL_CTL_MOD, fd, &ev)
}

// Len is the number of sources.
func (p *Poller) Len() int { return len(*p.list.Load()) + int(p.quiet.Load()) }

// Poll makes what progress can be made without waiting and returns the number
// of frames delivered.
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

// PollAll is Poll that leaves out no source, as Poll does where there are many.
func (p *Poller) PollAll() (frames int) {
	p.rest(Awake) // a ring looks at everything after it
	frames = p.look(*p.rings.Load())
	if len(*p.list.Load()) > direct {
		frames += p.harvest(0)
	}
	return frames
}

// tryHot lets those sources work that had something lately, and reports whether epoll
// is to be asked about the others.
func (p *Poller) tryHot() (frames int, asks bool) {
	if now := p.changes.Load(); now != p.hotSince { // some may be gone
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

// heat notes that s had something: it takes the place of the one that has had nothing
// for longest.
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

// lookAndAsk is look that asks epoll about the rest once in so many times: rings that
// always have something would keep the others from being heard.
func (p *Poller) lookAndAsk(times uint) (frames int) {
	frames = p.look(*p.rings.Load())
	if p.polls++; p.polls%times == 0 {
		frames += p.harvest(0)
	}
	return frames
}

// look lets the rings work on what is there.
func (p *Poller) look(rings []Ring) (frames int) {
	for _, r := range rings {
		frames += r.Look()
	}
	return frames
}

// Rest tells the rings that nobody looks at them until the next Poll, Settle or
// Sleep. It returns whether there is something for which nobody may have rung.
func (p *Poller) Rest() (news bool) { return p.rest(Asleep) }

func (p *Poller) rest(how Rest) (news bool) {
	for _, r := range *p.rings.Load() {
		if r.Doze(how) {
			news = true
		}
	}
	return news
}

// Settle is Poll that leaves no source marked ready in the epoll set, as Poll,
// which may not have asked it, does: an armed gate would fire for old news. It
// says whether a source has more, which no gate would tell of.
func (p *Poller) Settle() (more bool) {
	p.look(*p.rings.Load())
	p.harvest(0)
	return p.More()
}

// More says whether a source stopped early and is to be called again, of which
// no event will tell.
func (p *Poller) More() bool { return len(p.again) > 0 || p.isRevived.Load() }

// Sleep is Poll, but sleeps in the kernel for up to d when there is nothing to
// do. It holds an operating-system thread meanwhile.
//
// It does not sleep when unless is not 0 already; who changes it afterwards must
// call Wake if Asleep.
func (p *Poller) Sleep(d time.Duration, unless *atomic.Uint32) int {
	ms := int((d + time.Millisecond - 1) / time.Millisecond)
	p.rests.Store(uint32(Asleep))
	if unless.Load() != 0 {
		p.rests.Store(uint32(Awake))
		return 0
	}
	if p.Rest() {
		p.rests.Store(uint32(Awake))
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

// harvest asks epoll which sources are ready, waiting up to ms milliseconds,
// and lets them work.
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
		p.again = nil
		p.rests.Store(uint32(Awake))
		for _, s := range again {
			n += p.run(s, Readable|Ended)
		}
		ms = 0
	}
	p.count.Polls.Add(1)
	var got int
	if ms == 0 {
		r, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(p.set), addr(&p.events[0]), uintptr(len(p.events)), 0, 0, 0)
		if e != 0 {
			return n
		}
		got = int(r)
	} else {
		p.count.Sleeps.Add(1)
		r, err := unix.EpollWait(p.set, p.events[:], ms)
		p.rests.Store(uint32(Awake))
		if err != nil { // EINTR: the caller looks again anyway
			return n
		}
		got = r
	}
	for i := range got {
		ev := &p.events[i]
		if ev.Fd == int32(p.wake) {
			p.drainWake()
			continue
		}
		p.mu.Lock()
		s := p.sources[ev.Fd]
		p.mu.Unlock()
		if s != nil {
			f := p.run(s.Source, readiness(ev.Events))
			if f > 0 && !s.quiet {
				p.heat(s.Source)
			}
			n += f
		}
	}
	return n
}

func readiness(events uint32) (on Readiness) {
	if events&^unix.EPOLLOUT != 0 {
		on |= Readable
	}
	if events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		on |= Writable
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		on |= Ended
	}
	return on
}

func (p *Poller) run(s Source, on Readiness) int {
	f, again := s.Ready(on)
	if again {
		p.again = append(p.again, s)
	}
	if f > 0 {
		if _, ring := s.(Ring); !ring {
			p.nap.streak = -1 // and none for the sleep that this ended
		}
	}
	return f
}

func (p *Poller) drainWake() {
	var b [8]byte
	_, _ = unix.Read(p.wake, b[:])
}

// Wake ends a Sleep, a Nap or a Park under way, or the next Sleep or Park.
func (p *Poller) Wake() {
	p.count.Wakeups.Add(1)
	if at, yes := p.napping(); yes && p.rouse(at, woken) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isClosed { // else the descriptor may be another's by now
		one := [8]byte{1}
		_, _ = unix.Write(p.wake, one[:])
	}
}

// Asleep says whether a thread is in Sleep or in Nap.
func (p *Poller) Asleep() bool { return p.rests.Load() != uint32(Awake) }

// Arm opens the gate: from here until it fires, once, readiness of a source lets Park return.
func (p *Poller) Arm() {
	_ = p.gateC.Control(p.arm)
	if p.Rest() {
		p.Wake()
	}
}

// Park waits, holding no thread, until the armed gate fires or the Poller is
// closed; then it returns false.
func (p *Poller) Park() bool {
	p.count.Sleeps.Add(1)
	return p.gateC.Read(p.fired) == nil
}

// EndPark ends a Park under way and every later one, and a Nap: there are none
// afterwards.
func (p *Poller) EndPark() {
	p.gate.Close()
	p.nap.over.Store(true)
	if at, yes := p.napping(); yes {
		p.rouse(at, ended)
	}
}

// Close frees the descriptors. Sources are the business of their ports.
func (p *Poller) Close() {
	p.gate.Close()
	p.mu.Lock()
	p.isClosed = true
	unix.Close(p.set)
	unix.Close(p.wake)
	p.mu.Unlock()
	p.freeNapPage()
}
