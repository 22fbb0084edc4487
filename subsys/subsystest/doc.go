// SPDX-License-Identifier: Apache-2.0

// Package subsystest is what every transport must pass. A transport's own test
// is one call:
//
//	func TestConformance(t *testing.T) {
//		subsystest.Test(t, subsystest.Options{New: tcp.New})
//	}
//
// The suite checks the contract of package subsys: order, sizes, runs, both
// directions at once, back-pressure, who calls whom and when not, ends of
// every kind, and that no buffer stays behind. What is driven by a
// [subsys.Poller] is driven in each of the ways the dispatcher does: polling,
// sleeping and parked.
package subsystest
