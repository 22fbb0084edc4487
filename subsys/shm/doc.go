// SPDX-License-Identifier: Apache-2.0

// Package shm carries frames between processes of one node through memory that
// both have mapped. A large payload does not travel: the receiver reads the
// sender's pages where they lie, and the time does not depend on the size.
//
//	      process A                                      process B
//	┌─────────────────────┐                       ┌─────────────────────┐
//	│ arenas of its pool  │◄────── reads ─────────│ messages it holds   │
//	│ segment of the conn │                       │ segment of the conn │
//	│   ring ─────────────┼── frames, loans ─────►│                     │
//	│                     │◄─ returns, head ──────┼─ returns            │
//	│   …                 │   and the other way   │   …                 │
//	│ bell of the port ◄──┼── rung if asleep ─────│                     │
//	└─────────┬───────────┘                       └──────────┬──────────┘
//	          └──────── Unix socket: descriptors, the end ───┘
//
// # Who writes what
//
// Everything shared is a sealed memfd (package memfd) that one process writes
// and others map for reading, which the kernel enforces: arenas, one segment for
// each end of a conn, one bell for each port; but for the page on which naps are
// slept (below). So there are no locks, nothing can
// be half taken over from who died, and a process that runs wild harms what it
// says, not what others have. What it says is copied to private memory and
// checked before it is used; nonsense closes the conn with subsys.ErrProtocol.
//
// A segment has its writer's ring of records, how far the writer has read the
// other's ring, and the loans that it gives back. A record becomes visible by one
// atomic store of its first word, whole or not at all. docs/PROTOCOL.md has the
// layout.
//
// What costs is to get a line of memory from the other processor, some 100 ns. So
// each line has one writer, who writes it while the other does not wait for it where
// that can be: the lines of the next records are made ours, and their first words 0,
// when a record has gone (sender.prepare), and a return that is one word says all
// there is to say.
//
// # Payloads
//
// Frames with up to 2 KiB are copied into the ring and out of it, as are payloads
// that do not lie in a shared arena, piece by piece. Of larger ones a descriptor
// travels: arena, place, length and the number of the loan. The receiver's buffer
// wraps the sender's pages; after its last Release the number goes into the list of
// returns, and then the sender drops its reference. The list is written when there
// is time, not while somebody waits for an answer, and at the latest when the
// context rests. Long runs of small frames
// are lent too, but copied out at once: a run would keep 64 KiB for the sake of
// one message.
//
// What is lent can be read, not written ([buffers.Buffer.ReadOnly]): who writes to
// it is stopped by the kernel, and with it the process.
//
// # Passing on
//
// A process passes on what was lent to it without a copy, whole or in part, as long as it
// holds the loan:
//
//	A ──lends──► B ──announces A's arena as one of its own, lends──► C
//	  ◄──────────   sends A its own loan back: no arena, no mapping
//
// To a third process B announces the arena of A under a number of its own, with the
// descriptor that came from A. C maps it like any other arena, with the same checks, and
// within what C grants B. B holds A's loan until C has given its own back. The arena is
// withdrawn when A has withdrawn it and B holds no loan in it. To A itself B sends the number
// of A's loan: A delivers its own memory, read-only, and gives B's loan back at once.
//
// The pages stay readable as with any loan. That A does not write to them while C reads is
// B's part, so A has to know when B ends without having heard from C:
//
//   - Before B lends a loan of A's on, it sets the bit of that loan in its segment. If B's
//     socket ends and the bit is set, A does not use this memory again.
//   - If B has to let go without knowing whether C still reads, it gives the loan back as
//     lost, with the same effect. B does so when its port closes, and when C has ended
//     that way itself.
//
// Memory that is not used again goes back to the system when the last process unmaps it
// ([buffers.Buffer.Abandon]).
//
// A payload is copied instead where C grants no more arenas, B may keep no more descriptors (a
// quarter of RLIMIT_NOFILE), or the arena was passed on 8 times already.
//
// # Ends
//
// Close says so in the segment. The socket stays as long as either end reads the
// other's pages; its end says that this process reads none any more, whether it
// closed it or was killed, and brings every loan back. Pages of a process that has
// died stay readable for who holds messages in them.
//
// # Sleeping
//
// A port's bell is a word that says how its context rests, and an eventfd that is in
// the context's poller. Who has published something rings if nobody looks, once a
// rest: the eventfd, or for a short rest the futex on which the context's one
// waiter naps. A process of another user could make its eventfd blocking and full, so
// a port of a group is rung by a note on the conn's socket, sent with MSG_DONTWAIT. While the other side polls, nothing is paid. The futex is in the one
// page that all write who are handed it: a Wait that has not begun yet must see that
// somebody has rung. Nothing is read from it but that, so who runs wild in it ends a
// nap, or keeps one that is bounded: by the keeper, and in a group by the kernel.
//
// # Members of a group
//
// A process of another user is trusted with reading what is sent, and with nothing
// else. No call that a peer can make wait is made on a descriptor from a peer; no
// access to a peer's memory can fail (it is sealed, and all there); and a peer has few
// arenas mapped before the handshake, and then a part of what the port can map
// (budget.go). Notes and records are read in turns with those of other conns.
//
// Memory is passed on only by a process of its owner's user, because the owner must believe
// which loans were passed on: a member that lied could have the owner give up memory
// without end. What a process of another user lends is copied to third processes, and sent
// back without a copy. A port for a group passes on nothing that came over another port, of
// whatever context: its members may read what is sent to the group only. What came
// over the port itself each member may read already.
//
// # The memory model
//
// Words written by one process and read by another are sync/atomic ones, aligned,
// sequentially consistent. Bytes behind a record's first word are plain, published
// by it and not written again before the other end has said that it is past them. The race detector sees
// neither mapped memory nor other processes: it says nothing about this package
// but what its locks do; the tests with real processes and checksums do.
package shm
