// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tests/tree"
)

// wallClock and wallClockOfPackage are the methods and functions that convert between a time and
// the wall clock. The rest of package time, such as Sub, Since, Until, Before, timers and
// deadlines, takes the monotonic clock of time.Now, which cannot be set and does not jump.
var (
	wallClock = []string{
		"Unix", "UnixMilli", "UnixMicro", "UnixNano", "UTC", "In", "Format", "AppendFormat", "Round", "Truncate", "AddDate",
		"Year", "Month", "Day", "Hour", "Minute", "Clock", "MarshalBinary", "MarshalJSON", "MarshalText", "GobEncode",
	}
	wallClockOfPackage = []string{"Date", "Parse", "ParseInLocation", "Unix", "UnixMilli", "UnixMicro"}
)

// wallClockIs lists the files that use the wall clock nevertheless, and how often.
var wallClockIs = map[string]int{
	"directory/internal/search/searchtest/sim.go": 1, // a simulation begins at some time
	"directory/internal/scale/document.go":        2, // durations, in texts
	"tpvm/libpvm3/exports.go":                     1, // pvm_hostsync returns the clock of the host
	"tpvm/stream.go":                              1, // a read deadline that has passed
	"dispatch/outage.go":                          2, // durations, in texts
	"election/claim.go":                           1, // a fencing number after all processes have ended; while one lives, order needs no clock
	"internal/display/clean.go":                   1, // times that other processes tell, for a person
	"internal/display/display.go":                 1, // a duration, as text
	"directory/cluster/status.go":                 2, // the clocks of members, which are compared for a person
	"subsys/tls/secrets.go":                       3, // the validity of certificates made of a secret: for ever
}

// No duration, expiry or order in the library depends on the wall clock, which a person or a time
// server sets. (Members tell each other theirs, so that a person sees which one is wrong. The
// operator's own certificates are checked by it, because they have dates.)
//
// Promise (Clusters): No duration or order depends on a clock that can be set.
func TestMonotonicOnly(t *testing.T) {
	found := map[string][]string{}
	for _, f := range try.Get(tree.Go("..", 0, tree.IsCode))(t) {
		top, _, _ := strings.Cut(f.Path, "/")
		if slices.Contains([]string{"cmd", "examples", "tests"}, top) || !slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"time"` }) {
			continue // without an import, the calls are of another package
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			s, ok := c.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			names := wallClock
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
				names = wallClockOfPackage
			}
			if slices.Contains(names, s.Sel.Name) {
				found[f.Path] = append(found[f.Path], fmt.Sprintf("%s: %s", f.At(s.Pos()), s.Sel.Name))
			}
			return true
		})
	}
	for file, at := range found {
		try.Equal(t, len(at), wallClockIs[file], "the clock on the wall: %s", strings.Join(at, "; "))
	}
	for file := range wallClockIs {
		if len(found[file]) == 0 {
			t.Errorf("%s does not need to be named here", file)
		}
	}
}
