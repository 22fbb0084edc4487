// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"encoding/binary"
	"fmt"

	"github.com/rocl-go/rocl/subsys"
)

// A context may send FirstCredit to a resource before it has been granted anything. That saves a
// round trip, and a mailbox may hold as much of each sending context beyond its limit. For a
// mailbox of ten messages that is far too much. So a bounded mailbox grants no first credit: a
// sender asks before its first message. Both sides know that from the resource's serial, which has
// its highest bit set.
//
// A limit in messages becomes a limit in bytes. Each message is charged at least a unit, and as
// many units as messages allowed make the limit. The sender learns the unit with its first credit,
// which is the unit or more.

// Bounded is set in the serials of resources with bounded mailboxes; see
// [Dispatcher.BoundedMailbox].
const Bounded = 1 << 31

// firstCredit returns what a context may send to the resource with serial dst before it has
// been granted anything, in charged bytes.
func firstCredit(dst uint32) uint64 {
	if dst&Bounded != 0 {
		return 0
	}
	return FirstCredit
}

// BoundedMailbox makes the mailbox of the resource with the given serial, in which Bounded must be
// set. bytes limits the charged bytes that the mailbox holds; 0 means the default. messages limits
// the number of messages; 0 means no such limit. The limits are for all senders together. A
// message that does not fit waits at its sender.
//
// There are two exceptions. A message that is longer than the limit, or that does not fit because
// of credit that other senders have and do not use, is let in while the mailbox is empty. And while
// a receiver waits for a message that is not stored, the limit is doubled; see [Mailbox.Recv].
func (d *Dispatcher) BoundedMailbox(serial uint32, bytes, messages int) (*Mailbox, error) {
	if serial&Bounded == 0 {
		return nil, fmt.Errorf("dispatch: bounded mailbox %d: the serial lacks the bit", serial)
	}
	m := newMailbox(d, serial, bytes)
	if messages > 0 {
		m.limitMessages(uint64(messages))
	}
	return d.publish(m)
}

// limitMessages limits the new mailbox m, which is not published, to n messages.
func (m *Mailbox) limitMessages(n uint64) {
	if m.d.memory > 0 { // otherwise fewer messages would fill the memory
		m.limit = min(m.limit, m.d.memory/4)
	}
	m.unit = min(max(m.limit/n, overhead), charge(MaxMessage)) // a sender asks for no more credit at a time
	m.limit = n * m.unit
	m.divideLimitLocked(0)
}

// setUnitLocked notes the least that messages to a bounded mailbox are charged, which a Credit
// frame tells. It reports false if the payload is no valid unit. mu must be held.
func (l *link) setUnitLocked(f *subsys.Frame) bool {
	if f.Dst&Bounded == 0 || len(f.Data) != 8 {
		return false
	}
	unit := binary.LittleEndian.Uint64(f.Data)
	fl := l.flows[f.Dst]
	if unit > charge(MaxMessage) || fl != nil && fl.unit != 0 && fl.unit != unit {
		return false
	}
	if fl != nil {
		fl.unit = unit
	}
	return true
}

// creditRules are the credit rules of an inflow. They do not change once its account is open.
type creditRules struct {
	first     uint64 // what the sender may have sent before it was granted anything
	unit      uint64 // the least that a message is charged
	wasOpened bool   // first and unit are known
}

// creditRulesOfLocked returns the credit rules for a context that begins to send. mu must be held.
func (m *Mailbox) creditRulesOfLocked(in *inflow) creditRules {
	if m.serial&Bounded == 0 {
		return creditRules{first: FirstCredit}
	}
	return creditRules{unit: m.unit}
}

// charge returns what a message of n bytes is charged.
func (t *creditRules) charge(n int) uint64 { return max(charge(n), t.unit) }

// step returns the number that credit for no waiting sender is a multiple of: less is of no use.
func (t *creditRules) step() uint64 { return max(t.unit, 1) }
