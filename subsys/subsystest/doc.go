// SPDX-License-Identifier: Apache-2.0

// Package subsystest is the conformance suite that every transport must pass. A transport's own
// test is one call:
//
//	func TestConformance(t *testing.T) {
//		subsystest.Test(t, subsystest.Options{New: tcp.New})
//	}
//
// The suite checks the contract of package subsys: order, sizes, runs, both directions at once,
// back-pressure, which goroutine calls what and when not, ends of every kind, and that no buffer is
// leaked. If a transport uses a [subsys.Poller], the suite drives it in each of the ways of the
// dispatcher: polling, sleeping and parked.
package subsystest
