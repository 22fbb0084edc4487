// SPDX-License-Identifier: Apache-2.0

// Package bulk moves large data between processes at the time when the receiving process needs it.
// Mercury calls this bulk transfers.
//
// The process that has the memory, the origin, exposes it as a [Region]. It sends the region's
// [Handle] to another process, the target, in a message or in the arguments of a call. The target
// moves all data: it pulls bytes from the memory and pushes bytes to it, at any offsets, in any
// order, any number of times. The program of the origin does nothing meanwhile.
//
//	origin                                               target
//	------                                               ------
//	ep, err := bulk.Open(ctx, c)                         ep, err := bulk.Open(ctx, c)
//	r, err := ep.Expose(bulk.ReadOnly,
//		bulk.Bytes(head), bulk.Buffer(b))
//	h := r.Handle()            ── in a call ──────────►  n, err := ep.Pull(ctx, h, 0, dst)
//	                           ◄─ bytes asked for ─────
//	                           ── bytes ──────────────►
//	err = r.Revoke(ctx)        ◄─ the call returns ────
//
// # Memory
//
// A region is one or more segments, which targets see as one piece of memory. A segment is plain
// memory ([Bytes]) or a registered buffer ([Buffer], from rocl.Context.Buffer). The cost of a
// transfer depends on the kind of memory and on the transport between the two contexts:
//
//	                    registered buffer         plain memory
//	the same process    read where it lies        read where it lies
//	shared memory       read where it lies        read where it lies, see below
//	TCP, TLS            sent from where it lies, and received where it belongs
//
// Over shared memory, Pull and Push of 256 KiB and more copy plain memory once, from the other
// process into this one, by process_vm_readv. The origin copies plain memory for View and Pipeline,
// where the system does not allow process_vm_readv (ptrace, see [WithLogger]), and where the
// segments have less than 4 KiB on average.
//
// Over TCP and TLS, Pull of 64 KiB and Push of 1 MiB and more scatter and gather without a copy:
// each segment and each of the program's slices of 64 KiB or more has messages of its own. The
// target of such a push sends an offer, and the origin reads the bytes from the target as a pull
// does. A smaller push has its bytes in the request: two copies cost less than the messages of an
// offer. Smaller segments and slices are gathered into messages and copied, and so is a range
// across segments for View and Pipeline, which return one message. Small ranges are copied too.
// [Stats.CopiedBytes] counts.
//
// Over a transport that accesses remote memory, such as package ofi, the target reads and writes
// the region itself, by a few bytes of keys that it asks for at its second transfer with a handle
// or before a large one. The later transfers send no message. [Stats.OneSided] counts. More than 16
// segments of a handle are moved by messages.
//
// # Large transfers
//
// Pull and Push split a transfer into pieces, several of which are in progress at a time
// ([PieceSize], [Depth]). The size of a transfer is not limited. Pipeline serves data that does not
// fit into memory, or that the program works on as it arrives:
//
//	for p, err := range bulk.Pipeline(ctx, ep, h, bulk.PieceSize(1<<20), bulk.Depth(4)) {
//		if err != nil {
//			return err
//		}
//		if _, err := file.Write(p.Bytes()); err != nil {
//			return err
//		}
//	}
//
// [Region.Argument] puts small memory into the request itself, so that the target needs no
// transfer: see [Eager]. An [Argument] is a field of the arguments of a call instead of the Handle.
//
// # Rights
//
// A handle names a range and what a target may do with it, and has a key. Any process that has the
// handle may use it and pass it on. [Handle.Slice] and [Handle.Narrow] make handles that allow
// less. The origin checks the key, the range and the rights of each request. A process that
// receives a narrowed handle cannot widen it, and keys cannot be guessed. In a cluster without a
// key, other programs on the network can read messages, and so the handles in them.
//
// # The end
//
// [Region.Revoke] refuses later transfers. It waits until the transfers in progress have ended and
// views are released. When it returns nil, the library does not use the memory any more. After a
// transfer of plain memory over TCP this takes some milliseconds, until the transfer is
// acknowledged. When a process ends, transfers with its memory fail with rocl.ErrGone at once, and
// the memory of other processes that it held is released. A connection that breaks does not end a
// transfer: rocl resumes it.
package bulk
