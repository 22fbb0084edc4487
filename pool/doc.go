// SPDX-License-Identifier: Apache-2.0

// Package pool runs units of work under the control of the program: how many at a time, in which
// order, with how many waiting, and apart from other work. Plain goroutines do not limit each
// other; a pool does.
//
//	s := pool.New()
//	defer s.Close(ctx) // waits until all units have run
//	err := s.Default().Submit(ctx, pool.Unit{Run: func(ctx context.Context) { … }})
//
// # Pools
//
// A [Pool] is a queue of units with a name. Its policy is the order: [FIFO], [Priority],
// [EarliestFirst], or [Keyed], in which units of one key run one after another. The pool starts a
// goroutine for a unit, up to the number of its workers, which may be [Unbounded]. Further units
// wait in the queue. A queue may be bounded: Submit then fails with [ErrFull], or waits.
//
//	{"pools": [
//	  {"name": "reads",  "workers": "unbounded"},
//	  {"name": "writes", "policy": "keyed", "workers": 8, "queue": 1000, "when_full": "wait"},
//	  {"name": "scans",  "workers": 1, "queue": 10}
//	]}
//
// Any number of scans delays neither reads nor writes, except for their share of the processors.
// Writes of one key keep their order. The eleventh scan that would have to wait is refused.
//
// Units may block. The right number of workers follows from what the units do:
//
//   - They compute: as many workers as there are processors, which is the default.
//
//   - They wait for other machines, disks or locks: [Unbounded], or the number of units that should
//     wait at a time. A unit that waits for another unit of the same pool needs a free worker, and
//     a unit that submits to its own pool with [WaitWhenFull] waits for room that only other units
//     make.
//
//   - They do neither, and take less than a microsecond: policy [Inline], without a queue.
//
// Submit does not wait for the unit. A program waits with a sync.WaitGroup, whose Done the unit
// calls in a deferred call. [Pool.SubmitTicket] returns a [Ticket] of the unit. While the unit
// waits, the program can use the ticket to cancel it or to move it to another pool. [Pool.MoveAll]
// moves all waiting units of a pool. [Set.ReplacePool] removes a pool and moves its units.
//
// # Streams
//
// Most programs need pools only. A [Stream] is one worker with a name that serves several pools.
// Its [Scheduler] chooses the next pool: the first that has a unit, each in turn, at random by
// weight, or by a program's own rule. The scheduler may be replaced at any time. A stream may have
// an operating system thread and cores of its own.
//
//	{"pools":   [{"name": "urgent"}, {"name": "rest"}],
//	 "streams": [{"pools": ["urgent", "rest"]}, {"pools": ["rest", "urgent"]}]}
//
// [Config.Validate] warns of layouts in which units can wait without end, such as a pool that no
// stream serves first.
//
// # Sets
//
// A [Set] has the pools and streams of a program or of a part of it; nothing is global. It is made
// by [New], from a [Config], or from JSON by [Load]. Pools and streams can be added and removed,
// and pools resized, while units run. [Set.Dump] writes the current configuration for Load.
//
// [Pool.Stats] has figures of a pool, which package rpc/promrpc exports to Prometheus. In profiles
// (package runtime/pprof) each goroutine that runs a unit has the label "pool".
//
// # Guarantees
//
// A unit that Submit has accepted runs exactly once, even if pools are resized, moved or removed
// meanwhile, and also after Close. The only exception is a unit that was cancelled ([Ticket.Cancel]
// reports true): it never runs. Neither does a unit that Submit has refused. A panic in a unit ends
// only that unit and is reported to [OnPanic]. runtime.Goexit in a unit ends only that unit. To
// submit a unit and to run it allocates nothing if the queue does not grow, and costs up to twice
// as much as a goroutine behind a buffered channel.
//
// docs/ARGOBOTS.md maps the terms of Argobots and Margo to those of this package.
package pool
