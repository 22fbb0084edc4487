// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// An identity is read as it was written, with labels and without. A line of labels that no server
// has written counts as none.
func TestIdentityFile(t *testing.T) {
	path := sock(t) + nodeSuffix
	id := NewIdentity()
	for _, labels := range []string{"", "x", strings.Repeat("label", 1000), ""} {
		id.Labels = []byte(labels)
		id.Epoch++
		try.OK(t, writeIdentity(path, id))
		got, err := readIdentity(path)
		if err != nil || got == nil || got.Node != id.Node || got.Epoch != id.Epoch || got.key != id.key || !bytes.Equal(got.Labels, id.Labels) {
			t.Errorf("%.10q: read %+v: %v", labels, got, err)
		}
	}
	for _, line := range []string{"", "labels", "labels ", "labels \n", "labels x", "other text", (&Identity{Labels: []byte("x")}).labelLine() + "more"} {
		if got := parseLabels(line); len(got) != 0 {
			t.Errorf("%q: %q", line, got)
		}
	}
}
