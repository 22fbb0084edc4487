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
package stream
