// SPDX-License-Identifier: Apache-2.0

// Package pool runs units of work where a program says: so many at a time, in this order, with this
// many waiting, and apart from other work. Plain goroutines do not limit each other; a pool does.
//
//	s := pool.New()
//	defer s.Close(ctx) // waits until all units have run
//	err := s.Default().Submit(ctx, pool.Unit{Run: func(ctx context.Context) { … }})
//
// # Pools
//
// A [Pool] is a queue of units with a name. Its policy is the order: [FIFO], [Priority],
// [EarliestFirst], or [Keyed], in which units of one key run one after another. The pool starts a
// goroutine for a unit up to the number of its workers, which may be [Unbounded]. What is more
// waits in the queue. A queue may be bounded: Submit then fails with [ErrFull], or waits.
//
//	{"pools": [
//	  {"name": "reads",  "workers": "unbounded"},
//	  {"name": "writes", "policy": "keyed", "workers": 8, "queue": 1000, "when_full": "wait"},
//	  {"name": "scans",  "workers": 1, "queue": 10}
//	]}
//
// Scans, however many, delay neither reads nor writes, except for their share of the processors;
// writes of one key keep their order; the eleventh scan that would have to wait is refused.
//
// Units may block. How many workers a pool should have follows from what its units do:
//
//   - They compute: as many as there are processors, which is the default.
//   - They wait for other machines, disks or locks: [Unbounded], or the number of those that are to
//     wait at a time. A unit that waits for another unit of the same pool needs a free worker, and one
//     that submits to its own pool with [WaitWhenFull] waits for room that only other units make.
//   - They do neither, and take less than a microsecond: policy [Inline], without a queue.
//
// Submit does not wait for the unit: a sync.WaitGroup does, of which the unit calls Done in a deferred call.
// [Pool.SubmitTicket] returns a [Ticket] of the unit, with which a program cancels the unit or moves it to
// another pool, as long as it waits. [Pool.MoveAll] moves all units of a pool that wait,
// [Set.ReplacePool] removes a pool and moves them.
//
// # Streams
//
// Most programs need pools only. A [Stream] is one worker with a name that serves several pools.
// Its [Scheduler] says which pool is next: the first that has a unit, each in turn, at random by
// weight, or as a program's own scheduler says. It may be replaced at any time. A stream may have an
// operating system thread and cores of its own.
//
//	{"pools":   [{"name": "urgent"}, {"name": "rest"}],
//	 "streams": [{"pools": ["urgent", "rest"]}, {"pools": ["rest", "urgent"]}]}
//
// [Config.Validate] warns of layouts in which units can wait without end, such as a pool that no
// stream serves first.
//
// # Sets
//
// A [Set] is the pools and streams of a program or of a part of it; nothing is global. It comes from
// [New], from a [Config], or from JSON by [Load]. Pools and streams are added and removed, and pools
// resized, while units run. [Set.Dump] writes what there is at the time, for Load.
//
// [Pool.Stats] has figures of a pool, which package rpc/promrpc shows in Prometheus. Profiles (package runtime/pprof) have the label "pool" at each
// goroutine that runs a unit.
//
// # What is promised
//
// A unit that Submit has accepted runs exactly once, whatever is resized, moved or removed meanwhile, also
// after Close. A unit that Submit has refused never runs, and neither does one that was cancelled
// ([Ticket.Cancel] reports true). A panic in a unit ends that unit only and
// is told to [OnPanic]; runtime.Goexit in a unit ends that unit only. Submitting a unit and running
// it allocates nothing where the queue does not grow, and costs up to twice what a goroutine behind a
// buffered channel costs.
//
// docs/ARGOBOTS.md maps the words of Argobots and Margo to those of this package.
package pool
