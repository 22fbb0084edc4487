// SPDX-License-Identifier: Apache-2.0

package credit

// Overhead is what a message counts against credit and the limits of mailboxes beyond its payload.
// So empty messages are bounded too.
const Overhead = 64

// First is what a context may send to a resource before it has been granted anything, in charged
// bytes.
const First = 64 << 10

// MaxMessage is the longest payload in bytes.
const MaxMessage = 3 << 29

// Charge returns what a payload of n bytes counts against credit.
func Charge(n int) uint64 { return uint64(n) + Overhead }

// rules are the rules of an account. They do not change once it is open.
type rules struct {
	first uint64 // what the sender may have sent before it was granted anything
	unit  uint64 // the least that a message is charged
}

// Charge returns what a message of n bytes is charged.
func (r *rules) Charge(n int) uint64 { return max(Charge(n), r.unit) }

// Unit returns the least that a message is charged, or 0 if that is Overhead.
func (r *rules) Unit() uint64 { return r.unit }

// step returns the number that credit for no waiting sender is a multiple of: less is of no use.
func (r *rules) step() uint64 { return max(r.unit, 1) }

// An Outgoing names the message for which a sender waits for credit.
type Outgoing struct {
	Src  uint32 // the serial of the sending resource
	Tag  uint64
	Size uint32 // of the payload
}
