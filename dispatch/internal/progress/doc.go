// SPDX-License-Identifier: Apache-2.0

// Package progress has the goroutines of a context wait, and make progress while they do. It knows
// no frame, link or mailbox: an [Engine] polls a [subsys.Poller], whose sources deliver what has
// arrived, and calls [Work] for what has to be written. A [Waiter] is fired by a source, or by
// another goroutine.
//
// A waiting goroutine reads what has arrived for all of its context. So a message wakes only its
// receiver. If the receiver made progress until then, it wakes another waiter to continue. One
// goroutine at a time makes progress, the holder of the progress token. The other waiters are
// parked on channels. The holder polls first. Then the holder naps or sleeps, for some milliseconds
// at a time. After 10 ms without news the holder parks like the other waiters. Then the keeper
// makes progress, which holds no thread (docs/BENCHMARKS.md, Waiting):
//
//	step      file        where                      costs meanwhile   is woken by
//	poll      poll.go     a loop                     a processor       everything
//	nap       poll.go     futex, up to 2 ms          a thread          rings, its own process
//	sleep     poll.go     epoll_wait, up to 10 ms    a thread          everything
//	parked    park.go     a channel                  nothing           its event, or the token
//	keeper    keeper.go   the runtime's poller       nothing           everything
//
// Each turn of the holder ends in one of three ways (nextStep):
//
//	             the event is there, ctx has ended, or a goroutine waits in Lock
//	turn ───┬──► retries ───────► the token is offered to a parked waiter; Wait checks again
//	        │    woken goroutines have not run
//	        ├──► parksForWoken ─► parks; the last of them to run offers the token
//	        │    10 ms without news; at once with one processor
//	        └──► pollingEnded ──► parks; the keeper makes progress
//
// # For how long a waiter polls
//
// Package spin decides that. By default it adapts to whether polling has paid: the time doubles
// each time that it has, up to the budget, and falls to a quarter when it has not. It also adapts
// to whether other goroutines want the processor, which a Gosched that takes long shows. Then the
// next 8, 16, … 1024 waits do not poll.
//
// If polling for 2 µs has found nothing thousands of times, as many waits do not poll. If waiters
// sleep, and not for long, some waits explore whether polling for the whole budget would pay. Two
// processes that sleep wake each other on one processor, and only polling makes the kernel separate
// them.
//
// On one processor no goroutine polls, naps or sleeps: a thread that the kernel holds would hold
// the processor with it. The number of goroutines in a process that poll is limited, so that a
// processor remains for other goroutines. [spin.Always] polls in any case.
//
// Without a connection a goroutine may poll memory of its own process ([Engine.BeginLocal]).
//
// # Naps
//
// A nap is for memory that is shared with other processes: its rings are looked at, not read.
// [subsys.Poller.Naps] chooses it if the last sleeps were short and ended by a ring, and no socket
// has lately had data. A socket with data waits until the nap ends: after 50 µs, or, if there are
// only rings, when the keeper ends it, within 2 ms.
//
// # When other goroutines go first
//
// The token holder lets other goroutines run first in two cases. Before polling, the holder does so
// if a message that the program received is not released yet ([Engine.Hold]), since another
// goroutine may be about to answer the message. While polling, the holder does so after a poll that
// has woken parked goroutines (yieldToWoken). The woken goroutines then leave the requests of their
// calls unwritten ([Engine.Yields]), and the holder writes all of these requests in one batch.
//
// A woken goroutine may not have run after some polls that find nothing. Then another thread of the
// process has taken it and waits for a processor. The goroutine that polls parks (parkForWoken), so
// that its own thread takes the other goroutine back.
package progress
