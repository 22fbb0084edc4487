// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"go/ast"
	"go/doc"
	"go/token"
	"reflect"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
)

// Every exported function and type of the package has an example, and every
// method of the types that are used most is called in one.
func TestEveryEntryPointHasAnExample(t *testing.T) {
	var set *token.FileSet
	var files []*ast.File
	for _, f := range parseFolder(t, ".", func(string) bool { return true }) {
		set, files = f.Set, append(files, f.File)
	}
	pkg, err := doc.NewFromFiles(set, files, "github.com/rocl-go/rocl")
	if err != nil {
		t.Fatal(err)
	}
	called := map[string]bool{} // names of the methods and fields that the examples use
	check := func(what string, examples []*doc.Example) {
		if len(examples) == 0 {
			t.Errorf("%s has no example", what)
		}
		for _, x := range examples {
			if x.Output == "" {
				t.Errorf("example %s of %s has no output: it is not run", x.Name, what)
			}
			ast.Inspect(x.Code, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					called[s.Sel.Name] = true
				}
				return true
			})
		}
	}
	funcs := pkg.Funcs
	for _, typ := range pkg.Types {
		check(typ.Name, typ.Examples)
		funcs = append(funcs, typ.Funcs...) // go/doc lists a constructor with the type that it returns
	}
	for _, f := range funcs {
		check(f.Name, f.Examples)
		if strings.TrimSpace(f.Doc) == "" {
			t.Errorf("%s has no comment", f.Name)
		}
	}
	if len(funcs) < 15 || len(pkg.Types) < 15 {
		t.Errorf("found %d functions and %d types: these are not all", len(funcs), len(pkg.Types))
	}
	for _, typ := range []reflect.Type{
		reflect.TypeFor[*rocl.Context](), reflect.TypeFor[*rocl.Resource](), reflect.TypeFor[*rocl.Message](),
	} {
		for m := range typ.Methods() {
			if !called[m.Name] {
				t.Errorf("no example calls %v.%s", typ, m.Name)
			}
		}
	}
	// Exported variables are errors only: another variable could be reassigned, and does not show
	// parameters as a function does.
	for _, v := range pkg.Vars {
		for _, name := range v.Names {
			if !strings.HasPrefix(name, "Err") {
				t.Errorf("%s is a variable", name)
			}
		}
	}
}
