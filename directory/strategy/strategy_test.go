// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestParse(t *testing.T) {
	for s := range end {
		try.Gives(Parse(s.String()))(t, s, "read")
	}
	for _, name := range []string{"", "Tree", end.String()} {
		if s, err := Parse(name); err == nil {
			t.Errorf("%q is read as %v", name, s)
		}
	}
}
