// SPDX-License-Identifier: Apache-2.0

package strategy

import "testing"

func TestParse(t *testing.T) {
	for s := range end {
		if got, err := Parse(s.String()); err != nil || got != s {
			t.Errorf("%v is read as %v, %v", s, got, err)
		}
	}
	for _, name := range []string{"", "Tree", end.String()} {
		if s, err := Parse(name); err == nil {
			t.Errorf("%q is read as %v", name, s)
		}
	}
}
