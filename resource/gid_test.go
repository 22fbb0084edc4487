// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"encoding/json"
	"errors"
	"testing"
)

// A node is written as twelve digits, and no other text is read as a node.
func TestNodeIDText(t *testing.T) {
	for _, n := range []NodeID{0, 1, 0xabc, 1<<48 - 1} {
		b, err := json.Marshal(n)
		var back NodeID
		if err != nil || len(b) != 14 || json.Unmarshal(b, &back) != nil || back != n {
			t.Errorf("%x: %s, %v, read as %x", n, b, err, back)
		}
	}
	for _, s := range []string{"", "1", "00000000000g", "0000000000001", "+00000000001", "0x0000000001"} {
		n := NodeID(7)
		if err := n.UnmarshalText([]byte(s)); !errors.Is(err, ErrBadGID) || n != 7 {
			t.Errorf("%q: %x, %v", s, n, err)
		}
	}
}
