// SPDX-License-Identifier: Apache-2.0

package credit

import "sync/atomic"

// An Owner is who an account belongs to: a sending context, and the receivers of the mailbox that
// wait for its messages.
type Owner interface {
	// IsAwaited reports whether a receiver waits for a message that the context may send. With
	// byName, only receivers that name this context alone count.
	IsAwaited(byName bool) bool
	// HasMemory reports whether the message that the account needs credit for comes to memory of
	// the program's own. The sender needs credit for more charged bytes.
	HasMemory(o Outgoing, more uint64) bool
	// HasReceivers reports whether any receiver waits.
	HasReceivers() bool
}

// mostPosted limits the credit that an account has at a time for messages that come to the
// program's own memory: the sender only says that it has such a message. One message may be longer.
const mostPosted = 64 << 20

// An Account is what one context may send to a mailbox, in charged bytes since the session began.
type Account struct {
	rules
	owner     Owner
	local     *atomic.Uint64 // where a sender of this process reads granted; nil: the sender is another process
	isOpen    bool           // the context's first message is on its way, or was
	isClosed  bool           // the context sends no more
	granted   uint64         // what the sender may have sent
	announced uint64         // the last limit that the sender was told; it lowers that when it gives credit back
	received  uint64         // what has arrived
	expected  uint64         // the charge of a message in pieces that is arriving
	consumed  uint64         // what has left the mailbox
	need      uint64         // the sender waits for credit up to this; 0: it does not wait
	needFor   Outgoing       // the message for which the sender waits, if the sender has told
	posted    uint64         // the part of granted-consumed for messages that come to the program's own memory: nothing counts it
	postedOut uint64         // the part of posted that has not arrived
}

// NewAccount returns the account of an owner. A sender of this process reads at local what it was
// granted; for others local is nil.
func NewAccount(o Owner, local *atomic.Uint64) Account { return Account{owner: o, local: local} }

// Owner returns who the account belongs to.
func (a *Account) Owner() Owner { return a.owner }

// IsOpen reports whether the account was opened.
func (a *Account) IsOpen() bool { return a.isOpen }

// IsClosed reports whether the account was closed.
func (a *Account) IsClosed() bool { return a.isClosed }

// First returns what the sender may have sent before it was granted anything. The account is open.
func (a *Account) First() uint64 { return a.first }

// Granted returns what the sender may have sent.
func (a *Account) Granted() uint64 { return a.granted }

// Received returns what has arrived.
func (a *Account) Received() uint64 { return a.received }

// Posted returns what was granted for messages that come to the program's own memory and are not
// consumed.
func (a *Account) Posted() uint64 { return a.posted }

// Stored returns how much of the sender the mailbox keeps.
func (a *Account) Stored() uint64 { return a.received - a.consumed }

// Moved returns a number that grows with everything that comes, leaves, or may come. isComing
// reports whether a message is arriving in pieces.
func (a *Account) Moved() (sum uint64, isComing bool) {
	return a.received + a.consumed + a.granted, a.expected > 0
}

// Need returns the message for which the sender waits, if it has told, and how many bytes it lacks.
func (a *Account) Need() (o Outgoing, lacks uint64) {
	return a.needFor, a.need - min(a.granted, a.need)
}

// IsWaiting reports whether the sender waits for credit.
func (a *Account) IsWaiting() bool { return a.need != 0 }

// WaitsFor reports whether the sender waits for credit up to total.
func (a *Account) WaitsFor(total uint64) bool { return a.need == total }

// Announce returns the credit that the sender is to be told. It reports false if the sender knows
// that already.
func (a *Account) Announce() (granted uint64, isNew bool) {
	isNew = a.granted != a.announced
	a.announced = a.granted
	return a.granted, isNew
}

// setGranted sets what the sender may have sent.
func (a *Account) setGranted(total uint64) {
	a.granted = total
	if a.local != nil {
		a.local.Store(total)
	}
}

// needsOnlyFirst reports whether a waiting sender needs no more than what each may always have.
func (a *Account) needsOnlyFirst() bool { return a.need-a.consumed <= a.first }

// sentBefore returns what a waiting sender had sent when it asked. Over a link, the question may
// overtake a message that has got its credit.
func (a *Account) sentBefore() uint64 {
	if a.needFor == (Outgoing{}) {
		return a.received
	}
	return a.need - a.Charge(int(a.needFor.Size))
}

// lands reports whether a waiting sender gets credit now for a message that comes to the program's
// own memory.
func (a *Account) lands() bool {
	more := a.need - a.granted
	return (a.postedOut == 0 || a.postedOut+more <= mostPosted) && a.owner.HasMemory(a.needFor, more)
}

// take takes from posted, one of the two counts of a, as much of a negative number more as it has,
// and returns the rest of more.
func take(posted *uint64, more int64) int64 {
	if more >= 0 || *posted == 0 {
		return more
	}
	n := min(uint64(-more), *posted)
	*posted -= n
	return more + int64(n)
}

// Expect notes that a message charged c is arriving in pieces, or with 0 that none is.
func (a *Account) Expect(c uint64) { a.expected = c }
