// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/list"
	"github.com/rocl-go/rocl/dispatch/internal/progress"
)

// A waiter stands for a goroutine that waits for one event: a message, credit or room. Package
// progress has what the goroutine does meanwhile; the waiter adds what it waits for.
type waiter struct {
	progress.Waiter
	sel     Select
	msg     *Message        // the message handed to a receiver, or sent by a sender within the process
	grantee *inflow         // the account whose sender a receiver tells of new credit
	grant   uint64          // the new credit of that sender
	passage *passageEnd     // the end that counts msg; nil: msg goes to the sender's own context
	charge  uint64          // the credit that a sender over a link needs
	sends   credit.Outgoing // the message of that sender
	held    *held           // the message that waits for credit, in place of a goroutine; nil: a goroutine waits
	cause   error           // why a receiver gets no message, a caller no reply, or a sender no credit; nil: the mailbox was closed
	number  uint64          // tells the waiter from others in snapshots; 0: no snapshot has seen it
	origins *originWatch    // the watch for a receiver that has waited for long
	isOld   bool            // the receiver was in the mailbox when checkOrigins looked last
	seen    bool            // the receiver waited already when checkStuck looked last

	// Place in a waitlist; the lock of the list's owner guards it.
	place    list.Place[waiter]
	queuePos queuePos       // the position of a receiver in the chains of the mailbox
	group    *receiverGroup // the group of a receiver of RecvAny; nil: none
}

// waiter returns an unused waiter. doneWaiting gives it back.
func (d *Dispatcher) waiter() *waiter { return d.waiters.Get().(*waiter) }

// doneWaiting gives w back for reuse. w must be in no list.
func (d *Dispatcher) doneWaiting(w *waiter) {
	w.Reset()
	w.msg, w.grantee, w.grant, w.passage, w.sel = nil, nil, 0, nil, Select{}
	w.number, w.cause, w.origins, w.isOld, w.seen, w.held, w.sends = 0, nil, nil, false, false, nil, credit.Outgoing{}
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
		w.Fire()
	}
}
