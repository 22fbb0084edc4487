// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"go/ast"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tests/tree"
)

// The package comment lists each method of the types that programs use, and links to it: the types
// are aliases, whose methods a package site and go doc do not show here.
func TestRootPageListsMethods(t *testing.T) {
	b, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, typ := range []reflect.Type{
		reflect.TypeFor[*rocl.Context](), reflect.TypeFor[*rocl.Resource](), reflect.TypeFor[*rocl.Message](),
		reflect.TypeFor[rocl.Pending](),
	} {
		named := typ
		if typ.Kind() == reflect.Pointer {
			named = typ.Elem()
		}
		for i := range typ.NumMethod() {
			method := named.Name() + "." + typ.Method(i).Name
			link := "[" + method + "]: https://pkg.go.dev/" + named.PkgPath() + "#" + method + "\n"
			if !strings.Contains(page, "//   - ["+method+"] ") || !strings.Contains(page, link) {
				t.Errorf("doc.go does not list %s with a link to it", method)
			}
		}
	}
	for line := range strings.Lines(page) { // what the page links to is there
		link, ok := strings.CutPrefix(strings.TrimSpace(line), "// [Buffer.")
		if name, _, isLink := strings.Cut(link, "]: "); ok && isLink {
			if _, ok := reflect.TypeFor[*rocl.Buffer]().MethodByName(name); !ok {
				t.Errorf("doc.go links to Buffer.%s, which does not exist", name)
			}
		}
	}
}

// The functions that this package and package context have in common are documented here. Package
// context has the first sentence and names this package.
func TestFunctionsAreDocumentedHere(t *testing.T) {
	plain := func(doc string) string {
		doc = strings.NewReplacer("rocl.Err", "Err", "[dispatch.", "[").Replace(doc)
		return strings.Join(strings.Fields(doc), " ")
	}
	docs := func(folder string) map[string]string {
		all := map[string]string{}
		for _, f := range parseFolder(t, folder, tree.IsCode) {
			for _, d := range f.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil && d.Name.IsExported() {
					all[d.Name.Name] = plain(d.Doc.Text())
				}
			}
		}
		return all
	}
	here, n := docs("."), 0
	for name, doc := range docs("context") {
		if here[name] == "" {
			continue
		}
		n++
		if first, ok := strings.CutSuffix(doc, " See rocl."+name+"."); !ok || !strings.HasPrefix(here[name], first) {
			t.Errorf("package context documents %s itself: %q, here it is %q", name, doc, here[name])
		}
	}
	if n < 30 {
		t.Errorf("found %d functions: these are not all", n)
	}
}
