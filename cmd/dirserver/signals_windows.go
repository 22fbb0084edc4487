// SPDX-License-Identifier: Apache-2.0

package main

// ignoreSignals does nothing on this system, which has no such signals.
func ignoreSignals() {}
