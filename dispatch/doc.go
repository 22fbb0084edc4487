// SPDX-License-Identifier: Apache-2.0

// Package dispatch carries messages between contexts: links that outlive their
// connections, mailboxes, and the progress of both.
//
// A [Dispatcher] is the message half of a context. [Dispatcher.Flow] leads to a
// resource, wherever it is; [Flow.Send] puts a message into the session of a link,
// and whoever finds the link idle writes. [Dispatcher.Mailbox] is where messages to
// a resource wait for [Mailbox.Recv].
//
// # Waiting
//
// Whoever waits makes progress: it reads what has come for all of its context and
// hands it out, so that a message wakes nobody but the one it is for. Of several one
// does so, who holds the token; the others are parked. It goes down these steps, each
// cheaper for the machine and dearer for the message (docs/BENCHMARKS.md, Waiting):
//
//	step      where                      costs meanwhile   hears
//	poll      a loop                     a processor       all
//	nap       futex, up to 2 ms          a thread          rings, its own process
//	sleep     epoll_wait, up to 10 ms    a thread          all
//	parked    the keeper, in the         nothing           all
//	          runtime's poller
//
// [Polling] says whether and how long there is polling. By default it adapts: to
// whether it has paid, which is twice as long each time it has, up to the budget, and a
// quarter when it has not; and to whether other goroutines want the processor, of
// which a Gosched tells that takes long: then the next 8, 16, … 1024 waits do not poll.
// Where 2 µs are in vain too, thousands of times, as many waits do not.
// On one processor nobody polls, nor naps or sleeps: a thread that the kernel holds
// would hold the processor with it. And of a process no more poll than leave
// a processor to others.
//
// A nap is for memory shared with other processes, whose rings are looked at, not
// read: [subsys.Poller.Naps] chooses it where the last sleeps were short and ended by
// a ring, and where no socket has lately had anything. A socket that has waits until
// it ends: 50 µs, or where there are only rings until the keeper ends it, within 2 ms.
package dispatch
