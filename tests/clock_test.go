// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
	"subsys/tls/secrets.go":                       3, // the validity of certificates made of a secret: for ever
}

// No duration, expiry or order in the library depends on the wall clock, which a person or a time
// server sets, and no time of it is sent to another node. (The operator's own certificates are
// checked by it, because they have dates.)
//
// Promise (Clusters): No duration or order depends on a clock that can be set.
func TestMonotonicOnly(t *testing.T) {
	found := map[string][]string{}
	for _, dir := range []string{"resource", "buffers", "subsys", "dispatch", "directory", "context", "rpc", "pool", "bulk", "netrocl", "tpvm",
		"internal", "codec", "rocltest"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"time"` }) {
				return nil // the calls are of another package
			}
			rel, _ := filepath.Rel("..", path)
			rel = filepath.ToSlash(rel)
			ast.Inspect(f, func(n ast.Node) bool {
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
					found[rel] = append(found[rel], fmt.Sprintf("%v: %s", files.Position(s.Pos()), s.Sel.Name))
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for file, at := range found {
		if len(at) != wallClockIs[file] {
			t.Errorf("the clock on the wall: %s", strings.Join(at, "; "))
		}
	}
	for file, n := range wallClockIs {
		if n > 0 && len(found[file]) == 0 {
			t.Errorf("%s does not need to be named here", file)
		}
	}
}
