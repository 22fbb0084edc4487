// SPDX-License-Identifier: Apache-2.0

// Package credit counts what contexts may send to a mailbox.
//
// A [Receiver] is the side of a mailbox: what it has promised to its senders. It has an [Account]
// of each sending context. A [Sender] is the other end of an account. All mailboxes of a context
// share a [Budget], which is a part of the context's memory. The numbers of an account are charged
// bytes since the session began:
//
//	0           consumed          received            granted             need
//	├──────────────┼─────────────────┼───────────────────┼──────────────────┤
//	│ has left the │ is stored in    │ the sender may    │ a sender waits   │
//	│ mailbox      │ the mailbox     │ send this         │ for this         │
//	               └─ promised: counts against the limit ┘
//
//	0             sent              limit              asked
//	├──────────────┼──────────────────┼──────────────────┤
//	│ was sent     │ may be sent      │ the first waiter │     the sender's side
//	               │ without waiting  │ needs this       │
//
// An account begins with granted = first, which is [First], or 0 for a bounded mailbox. need is 0
// while no sender waits. The numbers grow, with two exceptions: [Receiver.Return] lowers consumed,
// and a sender may give back what it was granted and does not use, which lowers granted.
//
// Credit is renewed when half of it is used ([Receiver.Renew]), so that a steady stream never
// waits. A sender that has too little asks for what it needs ([Receiver.Ask]), and waits in a queue
// until [Receiver.Next] returns its account: the first one whose need fits, unless a receiver waits
// for a message of another sender.
//
// # Beyond the limit
//
// While a receiver waits for a message that is not stored, the limit is twice as large for the
// senders that may send it. In addition, each account may always have First that is not consumed
// yet, and one account at a time gets the credit for a message that does not fit, the oversize
// grant: when nothing is stored, or when a receiver waits for a message of that context, of which
// none is stored. If a receiver names the context, the context need only wait until the message of
// the previous such context has arrived.
//
// Nothing here waits, and the package has no goroutine or clock. The lock of the mailbox guards a
// Receiver and its accounts, and the lock of the link guards a Sender. A Budget has a lock of its
// own.
package credit
