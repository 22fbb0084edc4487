// SPDX-License-Identifier: Apache-2.0

// Package subsystest is the conformance suite that every transport must pass. A transport's own
// test is one call:
//
//	func TestConformance(t *testing.T) {
//		subsystest.Test(t, subsystest.Options{New: tcp.New})
//	}
//
// The suite checks the contract of package subsys: order, sizes, batches, both directions at once,
// back-pressure, which goroutine calls what and when not, ends of every kind, and that no buffer is
// leaked. If a transport uses a [subsys.Poller], the suite drives it in each of the ways of the
// dispatcher: polling, sleeping and parked.
//
// A node of the suite stands for a context: it has a pool, a port, and a goroutine that makes
// progress. Its sinks fail the test if a connection breaks the contract, such as a call after Down
// or two calls at once. A failure names the part of the contract. [Split] is for connections of
// tests that keep the frames that they are given.
package subsystest
