// SPDX-License-Identifier: Apache-2.0

package words

import (
	"go/ast"
	"go/token"
	"testing"

	"github.com/rocl-go/rocl/tests/tree"
)

// Every time.Sleep of a test, and every statement <-time.After, is in a bubble of testing/synctest,
// or a comment beside it says why the test needs a pause. A test that waits for a state uses
// package internal/testkit/eventually.
func TestPausesSayWhy(t *testing.T) {
	seen := 0
	for _, f := range parsed(t, tree.IsTest) {
		isExplained := map[int]bool{}
		for _, g := range f.Comments {
			isExplained[f.Line(g.Pos())] = true
		}
		for _, d := range f.Decls {
			pauses := append(callsOf(d, "time", "Sleep"), afters(d)...)
			seen += len(pauses)
			if len(callsOf(d, "synctest", "Test")) > 0 {
				continue
			}
			for _, p := range pauses {
				if !isExplained[f.Line(p.Pos())] {
					t.Errorf("%s: no comment says why the test sleeps", f.At(p.Pos()))
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d pauses are found", seen)
	}
}

// afters returns the calls of time.After within a declaration whose channel is received from in a
// statement of its own, which is a pause. The cases of a select do not count.
func afters(d ast.Decl) (calls []*ast.CallExpr) {
	isCase := map[ast.Stmt]bool{}
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CommClause:
			isCase[n.Comm] = true
		case *ast.ExprStmt:
			if receive, ok := n.X.(*ast.UnaryExpr); ok && receive.Op == token.ARROW && !isCase[n] {
				if call, ok := receive.X.(*ast.CallExpr); ok && isCallOf(call, "time", "After") {
					calls = append(calls, call)
				}
			}
		}
		return true
	})
	return calls
}

// callsOf returns the calls of a function of a package within a declaration.
func callsOf(d ast.Decl, pkg, name string) (calls []*ast.CallExpr) {
	ast.Inspect(d, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && isCallOf(call, pkg, name) {
			calls = append(calls, call)
		}
		return true
	})
	return calls
}

// isCallOf reports whether a call is one of the function of a package.
func isCallOf(call *ast.CallExpr, pkg, name string) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}
