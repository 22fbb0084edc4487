package search

import "fmt"

var ways = [...]string{Auto: "auto", ByCast: "cast", Each: "each", ByTree: "tree"}

// String is what settings call it.
func (w Way) String() string {
	if int(w) < len(ways) {
		return ways[w]
	}
	return fmt.Sprintf("way %d", w)
}

// ParseWay reads what String writes.
func ParseWay(s string) (Way, error) {
	for i, name := range ways {
		if s == name {
			return Way(i), nil
		}
	}
	return 0, fmt.Errorf("search: %q is not auto, cast, each or tree", s)
}
