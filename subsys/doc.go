// SPDX-License-Identifier: Apache-2.0

// Package subsys defines the contract between the dispatcher (package dispatch) and a transport,
// and has the machinery that transports share.
//
// A [Transport] opens a [Port] for a context. A port accepts and dials connections ([Conn]). A
// connection carries frames ([Frame]), whole and in order, to a [Sink] until it goes down, which it
// reports once. Everything that has to survive a broken connection, such as sequence numbers,
// acknowledgements and credit, is in package dispatch. So a transport stays small: it moves frames,
// and reports when it cannot.
//
// # The frame
//
// Every frame starts with the same 32 bytes, little-endian. Stream transports put them on the wire
// as drawn. Other transports may carry the struct.
//
//	 0       4    5     6        8      12     16           24      28      32
//	+-------+----+-----+--------+------+------+------------+-------+-------+
//	|  len  |type|flags|reserved| seq  | ack  |    tag     |  src  |  dst  |
//	+-------+----+-----+--------+------+------+------------+-------+-------+
//	  u32    u8   u8     u16      u32    u32       u64        u32     u32
//
// len counts the payload bytes that follow. seq and ack are modulo 2³². src and dst are the serials
// of the origin and the target resource. A connection joins two contexts, so the rest of their
// identifiers never travels, and a peer cannot speak for a context that is not its own.
//
// # Which goroutine calls what
//
// The dispatcher calls Conn.Send from one goroutine at a time, and holds no lock of its own during
// the call. A connection calls its Sink from one goroutine at a time: the one that makes progress
// ([Poller]). A sink may call Send of any connection. A connection does not call its sink after
// Down. Payload bytes given to Send stay readable until the frame is acknowledged or the connection
// is closed. Payload bytes given to a sink belong to the frame's Buf, which the sink retains if it
// keeps them.
//
// # Progress
//
// On Linux the descriptors of a context's stream connections are in one epoll set, the [Poller]. A
// goroutine that waits for a message drives it, by polling or by sleeping in epoll_wait. If no
// goroutine waits, one is parked in the runtime's poller and watches the set. A transport that
// receives through memory registers as a [Ring]: each poll looks at the memory. A goroutine that
// waits for rings alone may sleep on a futex for a short time (Nap), which takes less time than
// epoll_wait.
package subsys
