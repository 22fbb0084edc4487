// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"encoding/binary"
	"fmt"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
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
	return credit.First
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
	return d.publish(newMailbox(d, serial, bytes, messages))
}

// setUnitLocked notes the least that messages to a bounded mailbox are charged, which a Credit
// frame tells. It reports false if the payload is no valid unit. mu must be held.
func (l *link) setUnitLocked(f *subsys.Frame) bool {
	if f.Dst&Bounded == 0 || len(f.Data) != 8 {
		return false
	}
	unit := binary.LittleEndian.Uint64(f.Data)
	if fl := l.flows[f.Dst]; fl != nil {
		return fl.credit.SetUnit(unit)
	}
	return unit <= credit.Charge(MaxMessage)
}
