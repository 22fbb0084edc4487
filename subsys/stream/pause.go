// SPDX-License-Identifier: Apache-2.0

package stream

import "time"

// Pause waits for a moment if Accept failed for lack of descriptors or memory. Only time mends
// that, and without the pause the accept loop would spin.
func Pause(err error) {
	if isFull(err) {
		time.Sleep(20 * time.Millisecond)
	}
}
