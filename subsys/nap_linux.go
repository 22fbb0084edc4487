// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/internal/futex"
	"github.com/rocl-go/rocl/internal/memfd"
	"golang.org/x/sys/unix"
)

// NapPageLen is the length of a Poller's NapPage.
const NapPageLen = 4096

// Sleeping on a futex is shorter than sleeping in epoll_wait by half, but who does
// hears no descriptor. So it is done where the last sleeps were short and were
// ended by rings, and not for long: a descriptor waits for its end.
const (
	napShort  = 200 * time.Microsecond // a sleep after which the next may be a nap
	napBeside = 50 * time.Microsecond  // how long a nap is where there are descriptors that hurry,
	napSure   = 16                     // and after how many sleeps that none of them ended
	napBound  = time.Millisecond       // how long a nap is where another user has the page
)

// nap is the part of a Poller that sleeps on a futex. The word is in a page that
// rings hand to those who ring: they write it. There is nothing in it to believe.
// One who runs wild can end naps and keep others from ending them, which is no more
// than he can do with the bell's descriptor, and the end of a nap is bounded.
type nap struct {
	word   atomic.Pointer[atomic.Uint32] // stored, and used by who has not the token, under Poller.mu
	mem    []byte
	fd     int
	number uint32      // of naps, but for those that the lower bits count
	seen   uint32      // by EndNap
	over   atomic.Bool // nobody will end one
	bound  atomic.Bool // the kernel ends each; see BoundNaps
	streak int         // short sleeps that rings have ended, one after another
}

// While a thread naps Poller.rests is Napping and, above that, the nap's number. Who
// ends it makes of that one of these.
const (
	woken    = 1 + uint32(Napping) // by Wake
	ended    = woken + 1           // by EndNap
	restBits = 7
)

// NapPage is the descriptor of a page of NapPageLen bytes, made with
// memfd.CreateShared on first use. A Ring hands it to those who ring for it: when it
// is Napping they change the page's first word, a u32, and wake who sleeps on it.
// It is the Poller's to close.
func (p *Poller) NapPage() (fd int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nap.word.Load() == nil {
		fd, mem, err := memfd.CreateShared("rocl-nap", NapPageLen)
		if err != nil {
			return -1, fmt.Errorf("subsys: making a page to nap on: %w", err)
		}
		p.nap.fd, p.nap.mem = fd, mem
		p.nap.word.Store((*atomic.Uint32)(unsafe.Pointer(&mem[0])))
	}
	return p.nap.fd, nil
}

// BoundNaps has the kernel end each nap after a millisecond, which costs a tenth of a
// round trip. A Ring calls it before it hands the NapPage to another user's process:
// whoever has mapped the page can move its sleepers to another word (FUTEX_REQUEUE),
// where neither Wake nor EndNap finds them.
func (p *Poller) BoundNaps() { p.nap.bound.Store(true) }

func (p *Poller) freeNapPage() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nap.word.Swap(nil) != nil {
		memfd.Unmap(p.nap.mem)
		memfd.Close(p.nap.fd)
	}
}

// slept notes a sleep that was no nap, and how many frames came at its end.
func (n *nap) slept(d time.Duration, frames int) {
	switch {
	case frames == 0: // woken, or for too long
	case d < napShort:
		n.streak++
	default:
		n.streak = 0
	}
}

// Naps says whether Nap is the way to sleep now, rather than Sleep.
func (p *Poller) Naps() bool {
	if p.nap.streak <= 0 || p.nap.over.Load() || len(p.again) > 0 || p.stuck.Load() > 0 || p.nap.word.Load() == nil {
		return false
	}
	return p.nap.streak >= napSure || len(*p.list.Load()) == 0
}

// Nap is Sleep that hears rings, Wake and EndNap only. If d is 0 somebody is sure to
// call EndNap now and then.
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
	n.number += restBits + 1
	p.rests.Store(n.number | uint32(Napping))
	slept := unless.Load() == 0 && !n.over.Load() && !p.rest(Napping)
	if slept {
		p.count.Sleeps.Add(1)
		futex.Wait(word, old, d)
	}
	how := p.rests.Swap(uint32(Awake))
	times := uint(askBusy)
	if slept {
		times = askNap
	}
	frames := p.lookAndAsk(times)
	switch {
	case frames > 0:
		n.streak++
	case how == ended, slept && word.Load() == old:
		n.streak = 0 // for too long
	}
	return frames
}

// rouse ends the nap during which rests is at.
func (p *Poller) rouse(at, how uint32) bool {
	p.mu.Lock() // the page stays
	defer p.mu.Unlock()
	word := p.nap.word.Load()
	if word == nil || !p.rests.CompareAndSwap(at, how) {
		return false
	}
	word.Add(1)
	futex.Wake(word)
	return true
}

func (p *Poller) napping() (at uint32, yes bool) {
	at = p.rests.Load()
	return at, at&restBits == uint32(Napping)
}

// EndNap ends a nap that is under way since the last call, so that who sleeps hears
// what else there is. It is for one goroutine, which calls it now and then until
// EndPark: a timer of the nap's own would cost a tenth of a round trip.
func (p *Poller) EndNap() {
	at, yes := p.napping()
	if yes && at == p.nap.seen {
		p.rouse(at, ended)
	}
	p.nap.seen = at
}

// Nap sleeps for d in the kernel, holding a thread: with a processor idle, the
// runtime rounds a short time.Sleep up to the millisecond that its epoll_wait
// can tell. A signal may end it early.
func Nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}
