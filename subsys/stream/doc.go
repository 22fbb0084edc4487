// SPDX-License-Identifier: Apache-2.0

// Package stream has what transports over byte streams share: sockets, a reader of frames, and
// addresses.
//
// A [Socket] is not in the Go runtime's poller but in the context's [subsys.Poller], so that the
// goroutine that waits for a message reads the socket itself. A [Reader] reads into registered
// blocks, and small payloads are slices of these. A large payload that has not arrived as a whole
// is read into a buffer that the sink's Room returns. Room checks its length first.
package stream
