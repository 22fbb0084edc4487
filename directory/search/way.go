// SPDX-License-Identifier: Apache-2.0

package search

import "fmt"

var ways = [...]string{Auto: "auto", ByCast: "broadcast", Each: "unicast", ByTree: "tree"}

// formerly are names that settings had before.
var formerly = map[string]Way{"cast": ByCast, "each": Each, "flat": Each}

// String is what settings call it.
func (w Way) String() string {
	if int(w) < len(ways) {
		return ways[w]
	}
	return fmt.Sprintf("way %d", w)
}

// ParseWay reads what String writes, and the names that were used before.
func ParseWay(s string) (Way, error) {
	if w, ok := formerly[s]; ok {
		return w, nil
	}
	for i, name := range ways {
		if s == name {
			return Way(i), nil
		}
	}
	return 0, fmt.Errorf("search: %q is not auto, unicast, broadcast or tree", s)
}
