// SPDX-License-Identifier: Apache-2.0

package search

import "testing"

func TestParseWay(t *testing.T) {
	for _, w := range []Way{Auto, ByCast, Each, ByTree} {
		if got, err := ParseWay(w.String()); err != nil || got != w {
			t.Errorf("%v is read as %v, %v", w, got, err)
		}
	}
	for _, s := range []string{"", "Tree", (ByTree + 1).String()} {
		if w, err := ParseWay(s); err == nil {
			t.Errorf("%q is read as %v", s, w)
		}
	}
}
