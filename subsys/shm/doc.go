// SPDX-License-Identifier: Apache-2.0

// Package shm carries frames between processes of one node through memory that both have mapped. A
// large payload does not travel: the receiver reads the sender's pages where they lie, and the time
// does not depend on the size.
//
//	      process A                                      process B
//	┌─────────────────────┐                       ┌─────────────────────┐
//	│ arenas of its pool  │◄────── reads ─────────│ messages it holds   │
//	│ segment of the conn │                       │ segment of the conn │
//	│   ring ─────────────┼── frames, loans ─────►│                     │
//	│                     │◄─ returns, head ──────┼─ returns            │
//	│   …                 │  and in reverse       │   …                 │
//	│ bell of the port ◄──┼── rung if asleep ─────│                     │
//	└─────────┬───────────┘                       └──────────┬──────────┘
//	          └──────── Unix socket: descriptors, the end ───┘
//
// # Which process writes what
//
// All shared memory is in sealed memfds (package memfd; below for other systems). One process
// writes each of them and others map it for reading, which the kernel enforces. There are arenas,
// one segment for each end of a connection, and one bell for each port. The only exception is the
// page on which naps are slept (below). So there are no locks, a process that dies leaves nothing
// half written that others would have to repair, and a faulty process can only damage what it says
// itself. Records and notes of a peer are copied to private memory and checked before use. Invalid
// content closes the connection with subsys.ErrProtocol. Lent payloads are not copied: their owner
// can change them while they are read. A receiver that does not trust the owner calls
// Message.Writable first, which copies.
//
// A segment has its writer's ring of records, the position up to which the writer has read the
// other ring, and the loans that the writer gives back. A record becomes visible by one atomic
// store of its first word, completely or not at all. docs/PROTOCOL.md has the layout.
//
// The main cost is to fetch a cache line from the other processor, some 100 ns. So each line has
// one writer, which writes it while the other end does not wait for it, where possible. The writer
// fetches the lines of the next records and sets their first words to 0 after it has published a
// record (sender.prepare). A return of a loan is a single word.
//
// # Payloads
//
// Frames with up to 2 KiB are copied into the ring and out of it, and so, piece by piece, are
// payloads that do not lie in a shared arena. For a larger payload an extent travels: arena,
// offset, length and the number of the loan. The receiver's buffer wraps the sender's pages. After
// its last Release, the receiver puts the number into the list of returns, and then the sender
// drops its reference. The list is written when there is time, not while a peer waits for an
// answer, and at the latest when the context becomes idle. Long batches of small frames are lent
// too, but the receiver copies them at once. Otherwise one message would keep a batch of 64 KiB in
// use.
//
// Lent memory can be read, not written ([buffers.Buffer.ReadOnly]). A write to it is a fault that
// ends the process.
//
// # Passing on
//
// A process can lend on memory that was lent to it, whole or in part and without a copy, as long as
// it holds the loan:
//
//	A ──lends──► B ──announces A's arena as one of its own, lends──► C
//	  ◄──────────   sends A its own loan back: no arena, no mapping
//
// To a third process C, B announces the arena of A under a number of its own, with the descriptor
// that came from A. C maps it like any other arena, with the same checks, and within what C grants
// B. B holds A's loan until C has given its own back. B withdraws the arena when A has withdrawn it
// and B holds no loan in it. To A itself B sends the number of A's loan. A delivers its own memory,
// read-only, and gives B's loan back at once.
//
// The pages stay readable as with any loan. B makes sure that A does not write to them while C
// reads. So A has to know if B ends before C has given its loan back:
//
//   - Before B lends a loan of A's on, it sets the bit of that loan in its segment. If B's socket
//     ends and the bit is set, A does not use this memory again.
//
//   - If B has to release a loan without knowing whether C still reads, it gives the loan back as
//     lost, with the same effect. B does so when its port closes, and when C has ended in the same
//     way.
//
// Memory that is not used again goes back to the system when the last process unmaps it
// ([buffers.Buffer.Abandon]).
//
// A payload is copied instead if C grants no more arenas, if B may keep no more descriptors (a
// quarter of RLIMIT_NOFILE), or if the arena was passed on 8 times already.
//
// # Where processes meet
//
// A port listens at an abstract name, which exists only in one network namespace. It has a second
// socket in the folder of the directory's socket (folder.go), where processes of all namespaces
// meet that can reach the directory. Nothing depends on numbers of processes, which differ between
// namespaces. Root's processes and those of the directory's user meet only in the folder.
//
// # Ends
//
// Close is recorded in the segment. The socket stays open as long as either end reads the other's
// pages. The end of the socket means that this process reads none any more, whether it closed the
// socket or was killed, and it returns every loan. Pages of a process that has died stay readable
// for the processes that hold messages in them.
//
// # Goroutines and locks
//
//	part of a connection       used by
//	sender                     the goroutine that calls Send; the progress goroutine while the ring is full
//	sender.loans, announced    any goroutine, with sender.mu held
//	receiver, Ready, Look      the progress goroutine
//	returns                    any goroutine: the last Release of a lent buffer
//	bell, notes                any goroutine: each is one atomic store or one system call
//
// A connection and its memory are counted (conn.tryRetain), and freed by the last user: Close, the
// port's list, each arena in which messages lie, and each call in progress.
//
// Locks are taken in this order: Config.Progress, sender.mu (level 120), followMu, the lock of a
// pool, port.mu, Poller.mu (level 140). A pool's lock comes after sender.mu and followMu, because
// buffers are released and pools registered with them held. It comes before port.mu and unmappedMu,
// because the pool announces with its lock held that an arena is unmapped. returns.mu (level 130)
// may be taken with sender.mu held. No lock is taken under announcedMu, unmappedMu and budget.mu.
// Config.Progress is held while the progress goroutine calls the sink. No other lock is held then.
//
// # Sleeping
//
// A port's bell is a word with the idle mode of its context, and an eventfd in the context's
// poller. A process that has published something rings the bell if no goroutine of the other
// context looks, once for each idle period. It writes to the eventfd, or, for a short one, wakes
// the futex on which the context's only waiter naps. While the other side polls, ringing costs
// nothing.
//
// A process of another user could make its eventfd blocking and full. So a port of a group, and a
// peer of another user, are rung by a note on the connection's socket, sent with MSG_DONTWAIT.
//
// The futex is in the one page that all processes with its descriptor may write, because a Wait
// that has not begun yet must see that a peer has rung. Nothing else is read from the page. A
// faulty process can end a nap, or keep one from ending, but the nap is bounded: by the keeper, and
// in a group by the kernel.
//
// # Members of a group, and other users
//
// A process of another user may read what is sent, and is trusted with nothing else. It can change
// a payload that it has lent while a receiver reads it, so the receiver calls Message.Writable
// before it checks the payload. No call that a peer can make block is made on a descriptor from a
// peer. No access to a peer's memory can fail, because the memory is sealed and allocated. A peer
// has few arenas mapped before the handshake, and then a share of what the port can map
// (budget.go). Notes and records are read in turns with those of other connections.
//
// Memory is passed on only by a process of its owner's user, because the owner must believe which
// loans were passed on: a false statement could make the owner give up memory without limit.
// Payloads that a process of another user lends are copied for third processes, and sent back to
// that process without a copy. A port for a group passes on nothing that came over another port of
// any context, because its members may read only what is sent to the group. What came over the port
// itself may be read by every member already.
//
// # Other systems
//
// On macOS and the BSDs, and on Linux with the build tag portable, these calls are replaced:
//
//	Linux                       other systems
//	memfd_create, fallocate     a file in TMPDIR, mode 0600, filled with zeros, its name removed
//	seals                       the descriptor for peers is for reading
//	SCM_RIGHTS                  the same; macOS sets close-on-exec afterwards
//	eventfd                     the note that also groups use; the poller watches the conn's socket
//	futex                       none: a context does not nap
//	abstract SEQPACKET socket   a stream socket in the folder rocl-shm-UID in TMPDIR, mode 0700
//	boot id, namespaces         a random number, made with that folder, and the machine's name
//	SO_PEERCRED                 package peercred
//	the directory's folder      not used: there are no namespaces
//
// Nothing keeps a process from truncating a file that it has made, and a reader would end by
// SIGBUS. A process of the same user could as well end the reader by a signal, so it is trusted not
// to. Processes of other users share nothing, and ForGroup is not available.
//
// # The memory model
//
// Words written by one process and read by another are aligned, and are accessed with sync/atomic,
// sequentially consistent. The one exception is the first word that a sender sets to 0 in advance
// (sender.wipe): the peer reads it only after the next atomic store. The bytes after a record's
// first word are plain memory. The first word publishes them, and they are not written again before
// the other end has reported a position after them. The race detector sees neither mapped memory
// nor other processes, so it checks only the locks of this package. The tests with real processes
// and checksums check the shared memory.
package shm
