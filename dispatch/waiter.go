// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync/atomic"

	"github.com/rocl-go/rocl/dispatch/internal/list"
)

// This file has the waiter, which stands for a goroutine that waits for one event, and lists of
// waiters. progress.go has what the goroutine does meanwhile.

// A waiter is one goroutine that waits for one event: a message, credit or room.
//
// A waiting goroutine makes progress. Of all waiters, one holds the progress token, reads the
// connections, and delivers to the other waiters too. It polls first, then sleeps in the kernel on
// all connections at once, and only after that parks like the other waiters. The holder must not
// let another goroutine be woken for a message that the holder is about to read itself.
//
//	            token free                 10 ms
//	waiting ─────────────► polling, sleeping ───► parked ──► (fired) done
//	   │                         │ fired             ▲
//	   └──── token taken ────────┼───────────────────┘
//	                             └► done; the token passes to a parked waiter
type waiter struct {
	sel     Select
	msg     *Message     // the message handed to a receiver, or sent by a sender within the process
	grantee *inflow      // the account whose sender a receiver tells of new credit
	grant   uint64       // the new credit of that sender
	passage *passageEnd  // the end that counts msg; nil: msg goes to the sender's own context
	charge  uint64       // the credit that a sender over a link needs
	sends   outgoing     // the message of that sender
	held    *held        // the message that waits for credit, in place of a goroutine; nil: a goroutine waits
	cause   error        // why a receiver gets no message, a caller no reply, or a sender no credit; nil: the mailbox was closed
	origins *originWatch // the watch for a receiver that has waited for long
	isOld   bool         // the receiver was in the mailbox when checkOrigins looked last
	seen    bool         // the receiver waited already when checkStuck looked last
	state   atomic.Uint32
	ch      chan struct{}
	d       *Dispatcher

	// Place in a waitlist; the lock of the list's owner guards it.
	place    list.Place[waiter]
	queuePos queuePos       // the position of a receiver in the chains of the mailbox
	group    *receiverGroup // the group of a receiver of RecvAny; nil: none

	// Place among the parked waiters, guarded by Dispatcher.parkedMu.
	parkedPlace list.Place[waiter]
}

// States of a waiter.
const (
	awake  = iota
	parked // to be woken through ch
	fired
)

// ready reports whether w has been fired.
func (w *waiter) ready() bool { return w.state.Load() == fired }

// fire tells w that its event has happened. It is called once.
func (w *waiter) fire() {
	was := w.state.Swap(fired)
	if was == parked {
		w.d.fired.Add(1)
	}
	w.wake(was)
}

// nudge makes w check again what it waits for.
func (w *waiter) nudge() { w.wake(w.state.Load()) }

// wake wakes the goroutine of w, whose state was was: through its channel if it is parked, else
// through the poller if the poller sleeps.
func (w *waiter) wake(was uint32) {
	if was == parked {
		select {
		case w.ch <- struct{}{}: // the goroutine that wakes counts this in ran or nudged
		default:
		}
		return
	}
	if p := w.d.poller.Load(); p != nil && p.Asleep() {
		p.Wake()
	}
}

// waiter returns an unused waiter. doneWaiting gives it back.
func (d *Dispatcher) waiter() *waiter {
	return d.waiters.Get().(*waiter)
}

// doneWaiting gives w back for reuse. w must be in no list. A nudge may still come: it makes the
// next user of w only check again.
func (d *Dispatcher) doneWaiting(w *waiter) {
	w.msg, w.grantee, w.grant, w.passage, w.sel = nil, nil, 0, nil, Select{}
	w.cause, w.origins, w.isOld, w.seen, w.held, w.sends = nil, nil, false, false, nil, outgoing{}
	w.state.Store(awake)
	if len(w.ch) > 0 { // no other goroutine receives from ch
		<-w.ch
	}
	d.waiters.Put(w)
}

// A waitlist is a list of waiters, first come first served.
type waitlist struct{ list.List[waiter] }

// push appends w to the list.
func (l *waitlist) push(w *waiter) { l.PushBack(w, &w.place) }

// remove takes w, which is in the list, out of it.
func (l *waitlist) remove(w *waiter) { l.Remove(&w.place) }

// fireAll removes all waiters and fires them.
func (l *waitlist) fireAll() {
	for w := l.First(); w != nil; w = l.First() {
		l.remove(w)
		w.fire()
	}
}
