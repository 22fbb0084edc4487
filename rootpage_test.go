// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
)

// The package comment lists each method of the types that programs use, and links to it: the types are aliases, whose
// methods a package site and go doc do not show here.
func TestRootPageListsMethods(t *testing.T) {
	b, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, typ := range []reflect.Type{
		reflect.TypeFor[*rocl.Context](), reflect.TypeFor[*rocl.Resource](), reflect.TypeFor[*rocl.Message](),
		reflect.TypeFor[rocl.Pending](), reflect.TypeFor[*rocl.Posted](),
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
