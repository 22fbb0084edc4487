// SPDX-License-Identifier: Apache-2.0

package credit

import (
	"errors"
	"slices"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
)

// ErrTooLarge is returned for a message that the memory never holds.
var ErrTooLarge = errors.New("dispatch: the memory never holds the message")

// A Receiver is what a mailbox has promised to its senders.
type Receiver struct {
	budget      *Budget
	rules       rules
	limit       uint64     // of what is promised
	accounts    int        // open ones
	window      uint64     // the share of each of them in the limit
	stored      uint64     // charged bytes of the stored messages
	promise     uint64     // charged bytes granted and not yet consumed, including stored ones
	budgeted    int64      // the part of promise that the budget counts
	outstanding int64      // the part of budgeted that has not arrived
	queue       []*Account // those of senders that wait for more credit, in order
	oversize    *Account   // the one account with a grant beyond the limit; nil: none
	oversizeEnd uint64     // the end of that grant: oversize becomes nil when as much is consumed, or what is left of it fits
	isClosed    bool
}

// Init makes r a Receiver with a limit in charged bytes, at least First.
func (r *Receiver) Init(b *Budget, limit uint64) {
	*r = Receiver{budget: b, rules: rules{first: First}, limit: max(limit, First)}
	r.divide(0)
}

// InitBounded makes r a Receiver that grants no first credit. Its limit is in charged bytes, and in
// messages unless that is 0.
func (r *Receiver) InitBounded(b *Budget, limit, messages uint64) {
	*r = Receiver{budget: b, limit: limit}
	if messages > 0 {
		if b.memory > 0 { // otherwise fewer messages would fill the memory
			r.limit = min(r.limit, b.memory/4)
		}
		r.rules.unit = min(max(r.limit/messages, Overhead), Charge(MaxMessage)) // a sender asks for no more credit at a time
		r.limit = messages * r.rules.unit
	}
	r.divide(0)
}

// IsBounded reports whether no sender has first credit.
func (r *Receiver) IsBounded() bool { return r.rules.first == 0 }

// Limit returns the limit.
func (r *Receiver) Limit() uint64 { return r.limit }

// Stored returns the charged bytes of the stored messages.
func (r *Receiver) Stored() uint64 { return r.stored }

// Promised returns the charged bytes that are granted and not yet consumed, including stored ones.
func (r *Receiver) Promised() uint64 { return r.promise }

// Share returns how many accounts are open, and the share of each of them in the limit.
func (r *Receiver) Share() (accounts int, window uint64) { return r.accounts, r.window }

// Waiting returns the accounts of the senders that wait for credit, in order. The caller must not
// change them.
func (r *Receiver) Waiting() []*Account { return r.queue }

// Oversize returns the account with a grant beyond the limit, or nil. The grant's end is in charged
// bytes of the account, and hasCome says that all of it has arrived.
func (r *Receiver) Oversize() (a *Account, end uint64, hasCome bool) {
	a = r.oversize
	return a, r.oversizeEnd, a != nil && a.received >= r.oversizeEnd
}

// divide divides the limit among a number of accounts.
func (r *Receiver) divide(accounts int) {
	r.accounts, r.window = accounts, r.limit/uint64(accounts+1)
	if !r.IsBounded() {
		r.window = max(r.window, First)
	} else {
		r.window -= r.window % max(r.rules.unit, 1)
	}
}

// Open opens an account: its first message is on its way. A context that may only wait for the end
// of a resource has none open, and is promised nothing.
func (r *Receiver) Open(a *Account) {
	a.rules, a.isOpen = r.rules, true
	a.setGranted(a.first)
	r.promised(a, int64(a.first))
	r.divide(r.accounts + 1)
}

// Close closes an account, and takes back its unused credit. What is stored is consumed later.
func (r *Receiver) Close(a *Account) {
	r.promised(a, -int64(a.granted-a.received))
	a.setGranted(a.received)
	a.isClosed = true
	r.Withdraw(a)
	if r.oversize == a {
		r.endOversize()
	}
	if a.isOpen {
		r.divide(r.accounts - 1)
	}
}

// CloseAll drops all that is promised and stored: the mailbox closes.
func (r *Receiver) CloseAll() {
	r.promise, r.stored, r.queue = 0, 0, nil
	if b := r.budget; b.memory > 0 {
		b.promised.Add(-r.budgeted)
		b.reserve(-r.outstanding)
		r.budgeted, r.outstanding = 0, 0
		b.free()
	}
	r.endOversize()
	r.isClosed = true
}

// promised adds more, which may be negative, to what is promised to an account and has not arrived.
func (r *Receiver) promised(a *Account, more int64) {
	r.addPromised(a, more)
	r.addOutstanding(a, more)
}

// addPromised adds more, which may be negative, to what is promised to an account.
func (r *Receiver) addPromised(a *Account, more int64) {
	if r.isClosed {
		return
	}
	more = take(&a.posted, more)
	r.promise += uint64(more)
	if b := r.budget; b.counts(a) {
		r.budgeted += more
		b.promised.Add(more)
		if more < 0 {
			b.free()
		}
	}
}

// addOutstanding adds more, which may be negative, to what may still come from an account.
func (r *Receiver) addOutstanding(a *Account, more int64) {
	more = take(&a.postedOut, more)
	if b := r.budget; b.counts(a) && !r.isClosed {
		r.outstanding += more
		b.reserve(more)
	}
}

// Check returns wire.ErrProtocol if a message charged c exceeds what its sender was granted.
func (r *Receiver) Check(a *Account, c uint64) error {
	granted := a.granted
	if !a.isOpen {
		granted = r.rules.first // of a mailbox that has just been closed, which the sender does not know yet
	}
	if a.received+a.expected+c > granted {
		return wire.ErrProtocol
	}
	return nil
}

// Arrive accounts for messages that have arrived. It fails with wire.ErrProtocol if they exceed
// what their sender was granted.
func (r *Receiver) Arrive(a *Account, c uint64) error {
	if a.received+c > a.granted {
		return wire.ErrProtocol
	}
	r.ArriveTaken(a, c)
	r.addOutstanding(a, -int64(c))
	return nil
}

// ArriveTaken accounts for messages of this process, whose sender has taken their credit.
func (r *Receiver) ArriveTaken(a *Account, c uint64) {
	a.received += c
	r.stored += c
}

// Drop accounts for a message that has arrived and is not stored.
func (r *Receiver) Drop(a *Account, c uint64) {
	a.received += c
	r.addOutstanding(a, -int64(c))
	r.stored += c
	r.Consume(a, c)
}

// Consume accounts for messages that leave the mailbox.
func (r *Receiver) Consume(a *Account, c uint64) {
	r.stored -= c
	a.consumed += c
	r.addPromised(a, -int64(c))
	if o := r.oversize; o != nil && (o.consumed >= r.oversizeEnd || o.granted-o.consumed <= o.first || r.promise <= r.limit && !r.budget.isOver(o)) {
		r.endOversize() // what is left of the grant fits
	}
}

// Return undoes Consume, except for the credit that the sender was given.
func (r *Receiver) Return(a *Account, c uint64) {
	r.stored += c
	a.consumed -= c
	r.addPromised(a, int64(c))
}

// Renew decides whether a sender that does not wait gets more credit, and returns its new limit or
// 0. Credit is renewed when half of it is used. The credit of each account shrinks as more share
// the mailbox.
func (r *Receiver) Renew(a *Account) uint64 {
	out := a.granted - a.consumed // promised to this sender
	want := a.consumed + r.window
	if a.need != 0 || want <= a.granted || out > r.window/2 {
		return 0
	}
	more := want - a.granted
	free := uint64(0)
	if r.promise < r.limit {
		free = min(r.limit-r.promise, r.budget.unpromised(a))
	}
	if more > free {
		more = free
		if out+more < a.first {
			more = a.first - out
		}
		if more -= more % a.step(); more == 0 {
			return 0
		}
	}
	r.Grant(a, more)
	return a.granted
}

// IsHalfUsed reports whether half of a sender's share is free.
func (r *Receiver) IsHalfUsed(a *Account) bool { return a.granted-a.consumed <= r.window/2 }

// aheadMost is the most that an account is granted beyond its window at a time.
const aheadMost = 16 << 10

// Ahead grants a sender more than the message that it sends needs, if there is room for much more:
// a sender of this process far ahead of its receiver need not ask for each message.
func (r *Receiver) Ahead(a *Account) {
	if r.promise < r.limit && len(r.queue) == 0 && !a.isClosed && !r.IsBounded() {
		r.Grant(a, min(aheadMost, min(r.limit-r.promise, r.budget.unpromised(a))/8))
	}
}

// Grant grants an account more.
func (r *Receiver) Grant(a *Account, more uint64) {
	r.promised(a, int64(more))
	a.setGranted(a.granted + more)
}

// Opens reports whether a sender that asks for credit up to total needs an open account. Another
// one waits for the end of the resource, and may never send.
func (r *Receiver) Opens(total uint64) bool { return total > r.rules.first }

// Ask notes that a sender waits for credit up to total, for the message o. It returns the grant
// that the sender can have at once, or 0, and reports whether other senders may get credit now.
//
// Ask fails with wire.ErrProtocol if the sender asks for too much, and with ErrTooLarge if the
// memory is too small for the message.
func (r *Receiver) Ask(a *Account, total uint64, o Outgoing) (grant uint64, others bool, err error) {
	if !a.isOpen {
		return 0, false, nil
	}
	if total > a.granted+Charge(MaxMessage) { // received may be less than granted: other senders of the context may be about to use their grants
		return 0, false, wire.ErrProtocol
	}
	if o != (Outgoing{}) || total != a.need { // otherwise the sender repeats its last question
		a.needFor = o
	}
	if total > a.granted && r.budget.counts(a) && r.budget.NeverHolds(int(a.needFor.Size)) && !a.owner.HasMemory(a.needFor, total-a.granted) {
		r.Withdraw(a)
		return 0, true, ErrTooLarge
	}
	grant, others = r.Wait(a, total)
	return grant, others, nil
}

// Wait is Ask for an open account whose sender asks for what it may.
func (r *Receiver) Wait(a *Account, total uint64) (grant uint64, others bool) {
	wasFirst := len(r.queue) > 0 && r.queue[0] == a
	if total <= a.granted { // the sender has been told already, or waits no longer
		r.Withdraw(a)
	} else {
		if a.need == 0 {
			r.queue = append(r.queue, a)
		}
		a.need = max(total, a.received+a.expected+a.unit) // the sender may not know the unit yet
		if r.Next() == a || r.fits(a) && a.needsOnlyFirst() {
			grant = r.GrantNeed(a)
		} else {
			r.budget.Queue()
		}
	}
	return grant, wasFirst && (len(r.queue) == 0 || r.queue[0] != a)
}

// Withdraw notes that a sender does not wait.
func (r *Receiver) Withdraw(a *Account) {
	if a.need != 0 {
		a.need, a.needFor = 0, Outgoing{}
		r.queue = slices.DeleteFunc(r.queue, func(o *Account) bool { return o == a })
	}
}

// limitFor returns the limit for the grants of an account.
func (r *Receiver) limitFor(a *Account) uint64 {
	if r.stored > 0 && a.owner.IsAwaited(false) {
		return 2 * r.limit
	}
	return r.limit
}

// fits reports whether a waiting sender may be promised the credit it needs. A message that has its
// credit may still come behind the sender's question; see Account.sentBefore.
func (r *Receiver) fits(a *Account) bool {
	more, out := a.need-a.granted, a.need-a.consumed
	switch {
	case a.lands(), a.needsOnlyFirst(), r.promise+more <= r.limitFor(a) && more <= r.budget.unpromised(a):
		return true
	case r.oversize != nil && r.oversize != a && !(r.oversize.received >= r.oversizeEnd && a.owner.IsAwaited(true)):
		return false
	case out > max(r.limit, Charge(MaxMessage)), !r.budget.fits(r, a):
		return false
	}
	return r.stored == 0 || a.owner.IsAwaited(false) && (a.Stored() == 0 || out <= r.limit)
}

// Next returns the account of the waiting sender that gets the credit it needs next, or nil. That
// is the first sender with a message that the memory can hold, unless a receiver waits for a
// message of another sender. A sender that has not used its grant beyond the limit, and waits,
// comes before all others: they have to wait for it.
func (r *Receiver) Next() *Account {
	if o := r.oversize; o != nil && o.need != 0 && o.sentBefore() < r.oversizeEnd && r.fits(o) {
		return o
	}
	isFirst := true
	for _, a := range r.queue {
		switch {
		case a.lands():
			return a
		case r.budget.isTooLarge(a): // the other senders do not wait for it
			continue
		case (isFirst || a.owner.IsAwaited(false)) && r.fits(a):
			return a
		case !a.owner.HasReceivers():
			return nil
		}
		isFirst = false
	}
	return nil
}

// NextAfter is Next when a message of a has been consumed: a gets what each may always have first.
func (r *Receiver) NextAfter(a *Account) *Account {
	if a.need != 0 && a.needsOnlyFirst() {
		return a
	}
	return r.Next()
}

// IsTooLarge reports whether the memory is too small for the message of a waiting sender, beside
// its stored messages.
func (r *Receiver) IsTooLarge(a *Account) bool { return r.budget.isTooLarge(a) }

// GrantNeed grants what a sender waits for, which then waits no longer, and returns its new limit.
func (r *Receiver) GrantNeed(a *Account) uint64 {
	more := a.need - a.granted
	if a.lands() {
		a.posted, a.postedOut = a.posted+more, a.postedOut+more
		a.setGranted(a.need)
		r.Withdraw(a)
		return a.granted
	}
	r.promised(a, int64(more))
	if !a.needsOnlyFirst() && (r.promise > r.limitFor(a) || r.budget.isOver(a)) {
		if b := r.budget; b.counts(a) {
			b.oversize.CompareAndSwap(nil, a)
			if r.oversize != nil {
				b.oversize.CompareAndSwap(r.oversize, a)
			}
			b.reserve(0)
		} else {
			r.endOversize() // of the sender before: its message has arrived
		}
		r.oversize, r.oversizeEnd = a, a.need
	}
	a.setGranted(a.need)
	r.Withdraw(a)
	if a.first == 0 || a.local != nil { // otherwise the sender would have to ask for each message
		r.Renew(a)
	}
	return a.granted
}

// endOversize notes that no account has a grant beyond the limit.
func (r *Receiver) endOversize() {
	if a := r.oversize; a != nil {
		r.oversize = nil
		if b := r.budget; b.memory > 0 && b.oversize.CompareAndSwap(a, nil) {
			b.reserve(0)
			b.free()
		}
	}
}

// GiveBack lowers to total what a sender was granted. The sender knew of a grant of held. If more
// has been granted since, the sender keeps that. It fails with wire.ErrProtocol if the sender has
// less.
func (r *Receiver) GiveBack(a *Account, total, held uint64) (err error) {
	switch {
	case held > a.granted || total > held || total < a.received+a.expected+a.first:
		return wire.ErrProtocol
	case held == a.granted:
		r.Withdraw(a)
		r.Lower(a, total)
	}
	return nil
}

// Lower lowers to total what a sender was granted: it has sent all but First of that.
func (r *Receiver) Lower(a *Account, total uint64) {
	r.promised(a, -int64(a.granted-total))
	a.setGranted(total)
	a.announced = total
	sent := total - a.first
	if r.oversize != a || sent >= r.oversizeEnd {
		return
	}
	if r.oversizeEnd = sent; a.received >= sent { // otherwise a message that has used a part of the grant is under way
		r.endOversize()
	}
}
