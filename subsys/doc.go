// SPDX-License-Identifier: Apache-2.0

// Package subsys is the contract between the dispatcher and a transport, and
// the little machinery transports share.
//
// A Transport opens a Port for a context; a port accepts and dials Conns; a
// conn carries Frames, whole and in order, until it goes down, which it says
// once. Everything that has to survive a broken conn (sequence numbers,
// acknowledgement, credit) lies above, in package dispatch, so a transport
// stays small: it moves frames and tells the truth about when it cannot.
//
// # The frame
//
// Every frame starts with the same 32 bytes, little-endian. Stream transports
// put them on the wire as drawn; others may carry the struct.
//
//	 0       4    5     6        8      12     16           24      28      32
//	+-------+----+-----+--------+------+------+------------+-------+-------+
//	|  len  |type|flags|reserved| seq  | ack  |    tag     |  src  |  dst  |
//	+-------+----+-----+--------+------+------+------------+-------+-------+
//	  u32    u8   u8     u16      u32    u32       u64        u32     u32
//
// len counts the payload bytes that follow. seq and ack are modulo 2³². src
// and dst are the serials of the origin and the target resource: a conn joins
// two contexts, so the rest of their identifiers never travels, and a peer
// cannot speak for a context that is not its own.
//
// # Who calls what, when
//
// The dispatcher calls Conn.Send from one goroutine at a time and holds no
// lock of its own while it does. A conn calls its Sink from one goroutine at a
// time: the one that makes progress ([Poller]). A sink may call Send of any conn. Nobody calls a sink after
// Down. Payload bytes handed to Send stay readable until the frame is
// acknowledged or the conn is closed; payload bytes handed to a sink belong to
// the frame's Buf, which the sink retains if it keeps them.
//
// # Progress
//
// On Linux the descriptors of a context's stream conns are in one epoll set,
// the [Poller], and whoever waits for a message drives it: by polling, by
// sleeping in epoll_wait, or, when nobody waits, by a goroutine parked in the
// runtime's own poller. Transports whose news lie in memory are [Ring]s there: each
// poll looks, and who waits for them may sleep on a futex, shortly, which is sooner
// over.
package subsys
