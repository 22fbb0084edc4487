// SPDX-License-Identifier: Apache-2.0

//go:build linux && !portable

package subsys

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/internal/os/futex"
	"github.com/rocl-go/rocl/internal/os/memfd"
	"golang.org/x/sys/unix"
)

// NapPageLen is the length of a Poller's NapPage.
const NapPageLen = 4096

// To sleep on a futex takes half the time of a sleep in epoll_wait, but a futex does not report
// descriptors. So a goroutine naps only if its last sleeps were short and were ended by rings. A
// nap is short too, because the descriptors wait for its end.
const (
	napShort  = 200 * time.Microsecond // a sleep shorter than this may be followed by a nap
	napBeside = 50 * time.Microsecond  // length of a nap if there are descriptors that Poll tries
	napSure   = 16                     // consecutive sleeps that no descriptor has ended, before such a nap
	napBound  = time.Millisecond       // longest nap if a process of another user has the page
)

// nap is the part of a Poller that sleeps on a futex. The futex word is in a page that rings hand
// to their peers, which write it to wake the sleeper. The word carries no other information. A
// faulty peer can end naps, or keep other processes from ending them. It can do the same with the
// bell's descriptor, and the length of a nap is bounded.
type nap struct {
	word      atomic.Pointer[atomic.Uint32] // stored under Poller.mu; goroutines without the progress token use it under Poller.mu
	mem       []byte
	fd        int
	number    uint32      // of naps; the bits of modeMask are 0
	seen      uint32      // mode at the last EndNap
	isStopped atomic.Bool // no goroutine ends naps any more
	bound     atomic.Bool // the kernel bounds each nap; see BoundNaps
	streak    int         // consecutive short sleeps that rings ended
}

// While a thread naps, Poller.mode has Napping in its lower bits and the nap's number above. The
// goroutine that ends the nap replaces it by one of these.
const (
	woken = 1 + uint32(Napping) // by Wake
	ended = woken + 1           // by EndNap

	modeMask   = 7            // bits of Poller.mode that have the IdleMode, woken or ended
	modePeriod = modeMask + 1 // distance between the numbers of two naps
)

// NapPage returns the descriptor of a page of NapPageLen bytes, made with memfd.CreateShared on
// first use. A Ring hands the page to its peers. While the Ring is Napping, a peer that has
// something for it changes the page's first word, a u32, and wakes the sleeper on it. The Poller
// closes the descriptor.
func (p *Poller) NapPage() (fd int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nap.word.Load() == nil {
		fd, mem, err := memfd.CreateShared("rocl-nap", NapPageLen)
		if err != nil {
			return -1, fmt.Errorf("subsys: making a nap page: %w", err)
		}
		p.nap.fd, p.nap.mem = fd, mem
		p.nap.word.Store((*atomic.Uint32)(unsafe.Pointer(&mem[0])))
	}
	return p.nap.fd, nil
}

// BoundNaps makes the kernel end each nap after a millisecond, which costs a tenth of a round trip.
// A Ring calls it before it hands the NapPage to a process of another user. A process that has
// mapped the page can move its sleepers to another word (FUTEX_REQUEUE), where neither Wake nor
// EndNap reaches them.
func (p *Poller) BoundNaps() { p.nap.bound.Store(true) }

func (p *Poller) freeNapPage() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nap.word.Swap(nil) != nil {
		memfd.Unmap(p.nap.mem)
		memfd.Close(p.nap.fd)
	}
}

// slept accounts for a sleep that was no nap, at whose end some frames came.
func (n *nap) slept(d time.Duration, frames int) {
	switch {
	case frames == 0: // woken by Wake, or the time ran out
	case d < napShort:
		n.streak++
	default:
		n.streak = 0
	}
}

// Naps reports whether the next sleep should be Nap rather than Sleep.
func (p *Poller) Naps() bool {
	if p.nap.streak <= 0 || p.nap.isStopped.Load() || len(p.again) > 0 || p.stuck.Load() > 0 || p.nap.word.Load() == nil {
		return false
	}
	return p.nap.streak >= napSure || len(*p.list.Load()) == 0
}

// Nap is Sleep that only rings, Wake and EndNap end. If d is 0, a goroutine must call EndNap at
// intervals.
func (p *Poller) Nap(d time.Duration, unless *atomic.Uint32) int {
	if len(*p.list.Load()) > 0 {
		d = napBeside
	}
	n := &p.nap
	if n.bound.Load() && (d == 0 || d > napBound) {
		d = napBound
	}
	word := n.word.Load()
	old := word.Load()
	n.number += modePeriod
	p.mode.Store(n.number | uint32(Napping))
	slept := unless.Load() == 0 && !n.isStopped.Load() && !p.setIdle(Napping)
	if slept {
		p.count.Sleeps.Add(1)
		futex.Wait(word, old, d)
	}
	how := p.mode.Swap(uint32(Awake))
	times := uint(askBusy)
	if slept {
		times = askNap
	}
	frames := p.lookAndAsk(times)
	switch {
	case frames > 0:
		n.streak++
	case how == ended, slept && word.Load() == old:
		n.streak = 0 // the nap was too long
	}
	return frames
}

// rouse ends the nap that has the value at in mode, and stores how there. It reports whether it
// did.
func (p *Poller) rouse(at, how uint32) bool {
	p.mu.Lock() // keeps the page mapped
	defer p.mu.Unlock()
	word := p.nap.word.Load()
	if word == nil || !p.mode.CompareAndSwap(at, how) {
		return false
	}
	word.Add(1)
	futex.Wake(word)
	return true
}

func (p *Poller) napping() (at uint32, yes bool) {
	at = p.mode.Load()
	return at, at&modeMask == uint32(Napping)
}

// wakeNap ends a nap in progress for Wake. It reports false if there is none.
func (p *Poller) wakeNap() bool {
	at, yes := p.napping()
	return yes && p.rouse(at, woken)
}

// stopNaps ends a nap in progress, and lets none begin.
func (p *Poller) stopNaps() {
	p.nap.isStopped.Store(true)
	if at, yes := p.napping(); yes {
		p.rouse(at, ended)
	}
}

// EndNap ends a nap if it has lasted since the last call, so that the sleeper looks at the
// descriptors. One goroutine calls it at intervals until EndPark. A timer for each nap would cost a
// tenth of a round trip.
func (p *Poller) EndNap() {
	at, yes := p.napping()
	if yes && at == p.nap.seen {
		p.rouse(at, ended)
	}
	p.nap.seen = at
}

// SleepThread sleeps for d in the kernel and holds a thread meanwhile. If a processor is idle, the
// runtime rounds a short time.Sleep up to a millisecond, the resolution of its epoll_wait. A signal
// may end Nap early.
func SleepThread(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}
