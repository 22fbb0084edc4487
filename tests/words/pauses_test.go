// SPDX-License-Identifier: Apache-2.0

package words

import (
	"go/ast"
	"strings"
	"testing"
)

// Every time.Sleep of a test is in a bubble of testing/synctest, or a comment beside it says why
// the test needs a pause. A test that waits for a state uses package internal/eventually.
func TestPausesSayWhy(t *testing.T) {
	seen := 0
	for _, path := range files(t, ".go") {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, fset := parse(t, path)
		line := func(n ast.Node) int { return fset.Position(n.Pos()).Line }
		isExplained := map[int]bool{}
		for _, g := range file.Comments {
			isExplained[line(g)] = true
		}
		for _, d := range file.Decls {
			pauses := callsOf(d, "time", "Sleep")
			seen += len(pauses)
			if len(callsOf(d, "synctest", "Test")) > 0 {
				continue
			}
			for _, p := range pauses {
				if !isExplained[line(p)] {
					t.Errorf("%s:%d: no comment says why the test sleeps", path, line(p))
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d calls of time.Sleep are found", seen)
	}
}

// callsOf returns the calls of a function of a package within a declaration.
func callsOf(d ast.Decl, pkg, name string) (calls []*ast.CallExpr) {
	ast.Inspect(d, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == name {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == pkg {
				calls = append(calls, call)
			}
		}
		return true
	})
	return calls
}
