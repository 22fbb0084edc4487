// SPDX-License-Identifier: Apache-2.0

// Package bulk moves large data between processes, when the process that needs it wants it: what
// Mercury calls bulk transfers.
//
// The process that has the memory, the origin, exposes it as a [Region] and sends the region's
// [Handle] to another process, the target, in a message or in the arguments of a call. The target
// moves all the data: it pulls bytes from the memory and pushes bytes to it, at any offsets, in any order, as
// often as it likes. The origin's program does nothing meanwhile.
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
// A region is one or more segments, which targets see as one piece of memory. A segment is
// plain memory ([Bytes]) or a registered buffer ([Buffer], from rocl.Context.Buffer). What a transfer costs
// depends on the kind of memory and on the transport between the two contexts:
//
//	                    registered buffer         plain memory
//	the same process    read where it lies        read where it lies
//	shared memory       read where it lies        read where it lies, see below
//	TCP, TLS            written from where it lies, for a range within one segment
//
// Over shared memory Pull and Push of 256 KiB and more copy plain memory once, from the other process into this one, by
// process_vm_readv. Where the system does not allow that (ptrace, see [Stats.Denied]), where the segments have less
// than 4 KiB on average, and for View and Pipeline, the origin copies plain memory.
//
// A range across segments is copied by the origin, piece by piece, and so are up to 8 KiB. The target has the
// bytes in a message: [Endpoint.Pull] and [Endpoint.Push] copy from and to the program's slices;
// [Endpoint.View] and [Pipeline] give the program the message itself. Any other push is copied into a message at
// the target, and from there into the memory of the origin.
//
// # Large transfers
//
// Pull and Push split what they move into pieces, some of which are under way at a time ([PieceSize], [Depth]).
// There is no limit of the size. For what does not fit into memory, or is worked on as it comes, there is Pipeline:
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
// [Region.Argument] puts small memory into the request itself, so that the target needs no transfer: see [Eager]. An [Argument]
// is a field of the arguments of a call instead of the Handle.
//
// # Rights
//
// A handle says what may be done with which range, and has a key. Whoever has the handle may use it,
// and pass it on; [Handle.Slice] and [Handle.Narrow] make handles that allow less. The origin
// checks the key, the range and the rights of each request: a handle that was narrowed cannot be
// widened by those that it was passed on to, and keys cannot be guessed. The messages of a
// cluster without a key can be read by others on the network, and so can handles in them.
//
// # The end
//
// [Region.Revoke] refuses later transfers, and waits until those under way have ended and views are
// released. When it returns nil the memory is the program's alone. It takes some
// milliseconds after a transfer of plain memory over TCP, until that is acknowledged.
// When a process ends, transfers with its memory fail with rocl.ErrGone at once, and what it held of
// others' memory is given back. A connection that breaks is no end: rocl resumes it.
package bulk
