// SPDX-License-Identifier: Apache-2.0

// Package stream has what transports over byte streams share: the [Port] that listens and dials,
// the [Conn], its socket, and a [Reader] that makes frames of bytes.
//
// A transport gives its [Protocol] to [Listen], and a [Writer] to each connection, which puts
// frames on the stream. If the Writer is an [Opener] too, the bytes of the socket pass through it
// before the Reader gets them.
//
//	       Send                       Ready
//	         │                          │
//	┌────────▼──────────────────────────▼────────┐
//	│ Conn: start, end, errors, the full socket  │
//	└────────┬──────────────────────────▲────────┘
//	      Writer                      Reader
//	         │                          │ (through the Opener)
//	         └────────► socket ─────────┘
//
// The socket is not in the Go runtime's poller but in the context's [subsys.Poller], so that the
// goroutine that waits for a message reads the socket itself. A Reader reads into registered
// blocks, and small payloads are slices of these. A large payload that has not arrived as a whole
// is read into a buffer that the sink's Room returns. Room checks its length first.
//
// If the socket is full, Send returns early, and the Writer passes to the goroutine that makes
// progress. That goroutine writes what is left when the poller reports room, and then gives the
// Writer back and calls the sink's Writable.
//
// # Goroutines and locks
//
//	runs on                         what
//	the accepting goroutine         Protocol.Accepted, which must not wait
//	a goroutine of Port.Go          the handshake of an accepted connection, then Port.Join
//	the caller of Port.Dial         Protocol.Dialled
//	the caller of Conn.Send         Writer.Send, while the socket is not full
//	the progress goroutine          Conn.Ready: Reader, Opener, and Writer.Resume while it is full
//	the last user of a connection   Reader.Free, Writer.Free
//
// The descriptor of a connection is counted (socket.tryRetain): each call of a method holds it, so
// Close never frees a descriptor or a buffer that another goroutine uses. Conn.mu guards the change
// of the Writer's owner together with [subsys.Poller.WantWrite], and is taken before Poller.mu.
// Port.mu guards the set of connections, and no other lock is taken while it is held. Port.Close
// returns when the goroutines of the port have ended and all its connections are closed.
//
// # When the peer ends
//
// The kernel reports the end of the peer behind the bytes that the peer has sent. So the Reader
// delivers all whole frames, and then the connection calls Down with [subsys.ErrPeerClosed]. If a
// write finds the end first, the Writer stops without an error, and the read that follows reports
// it. A frame of which only a part has arrived is dropped, and its buffer is released.
package stream
