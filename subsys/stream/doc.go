// SPDX-License-Identifier: Apache-2.0

// Package stream is what transports over byte streams share: a socket of the
// context's own, frames out of bytes, addresses.
//
// A [Socket] is not in the Go runtime's poller but in the context's
// [subsys.Poller], so that the goroutine that waits for a message reads the
// socket itself. A [Reader] puts what was read into registered blocks, of which
// small payloads are slices; a payload that is large and not yet here whole gets
// the buffer that the sink's Room gives, after its length was judged there.
package stream
