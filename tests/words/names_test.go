// SPDX-License-Identifier: Apache-2.0

package words

import (
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"testing"

	"github.com/rocl-go/rocl/tests/tree"
)

// goName matches what a document says of Go: Name, pkg.Name, pkg.Type.Member or Type.Member,
// perhaps with arguments.
var goName = regexp.MustCompile("`(?:([a-z][a-z0-9]*)\\.)?([A-Z]\\w*)(?:\\.([A-Z]\\w*))?(?:[(\\[{][^`]*)?`")

// alsoStandard lists packages of the module that share their name with one of the standard library.
var alsoStandard = map[string]bool{"context": true, "rpc": true}

// foreign matches names without a package that are not those of the module, but of C libraries, of
// package io/fs, of systemd and of make.
var foreign = regexp.MustCompile(`^((HG|ABT)_\w+|Pvm\w+|Err(Exist|NotExist|Permission|Invalid)|LimitNOFILE|WatchdogSec|Makefile)$`)

var (
	isCamel = regexp.MustCompile(`[a-z]`)
	isTest  = regexp.MustCompile(`^(Test|Fuzz)`) // TestDocumentsNameTests checks these
)

// Every name of a package of the module, and every member of a type, that a document puts between
// backticks exists. A name without a package may be that of any package or member. CHANGELOG.md
// also has names that have gone.
func TestDocNames(t *testing.T) {
	x := indexed(t)
	seen := 0
	for _, doc := range files(t, ".md") {
		if doc == "CHANGELOG.md" {
			continue
		}
		for _, m := range goName.FindAllStringSubmatch(withoutCode(read(t, doc)), -1) {
			pkg, name, member := m[1], m[2], m[3]
			switch {
			case pkg != "" && x.names[pkg] == nil, pkg == "" && member != "" && x.members[name] == nil:
				continue // a name of another module
			case pkg == "" && member == "":
				if !isCamel.MatchString(name) || isTest.MatchString(name) || foreign.MatchString(name) {
					continue
				}
				if !x.all[name] {
					t.Errorf("%s: %s: no package has this name", doc, m[0])
				}
			case pkg != "" && !x.names[pkg][name] && !alsoStandard[pkg]:
				t.Errorf("%s: %s: package %s has no %s", doc, m[0], pkg, name)
			case member != "" && !x.has(name, member, nil):
				t.Errorf("%s: %s: %s has no %s", doc, m[0], name, member)
			}
			seen++
		}
	}
	if seen < 500 {
		t.Errorf("only %d names are found", seen)
	}
}

// An index has the names that the module declares. Packages of the same name share their entries,
// and so do types.
type index struct {
	names   map[string]map[string]bool // names of constants, variables, functions and types, by package
	members map[string]map[string]bool // names of methods and fields, by type
	lenders map[string][]string        // types whose members a type has too, as it embeds or renames them
	all     map[string]bool            // all names and members
}

func indexed(t *testing.T) *index {
	x := &index{map[string]map[string]bool{}, map[string]map[string]bool{}, map[string][]string{}, map[string]bool{}}
	for _, f := range parsed(t, tree.IsCode) {
		for _, d := range f.Decls {
			x.add(f.Name.Name, d)
		}
	}
	for _, sets := range []map[string]map[string]bool{x.names, x.members} {
		for _, set := range sets {
			maps.Copy(x.all, set)
		}
	}
	return x
}

// put adds a name to one of the sets of an index.
func put(sets map[string]map[string]bool, of string, names ...*ast.Ident) {
	if sets[of] == nil {
		sets[of] = map[string]bool{}
	}
	for _, n := range names {
		sets[of][n.Name] = true
	}
}

func (x *index) add(pkg string, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			put(x.names, pkg, d.Name)
		} else {
			put(x.members, typeName(d.Recv.List[0].Type), d.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				put(x.names, pkg, s.Names...)
			case *ast.TypeSpec:
				put(x.names, pkg, s.Name)
				x.addType(s)
			}
		}
	}
}

// addType adds the fields of a struct, the methods of an interface, and the types that lend their
// members.
func (x *index) addType(s *ast.TypeSpec) {
	typ := s.Name.Name
	put(x.members, typ)
	var fields *ast.FieldList
	switch of := s.Type.(type) {
	case *ast.StructType:
		fields = of.Fields
	case *ast.InterfaceType:
		fields = of.Methods
	default:
		x.lend(typ, of)
		return
	}
	for _, f := range fields.List {
		put(x.members, typ, f.Names...)
		if len(f.Names) == 0 {
			x.lend(typ, f.Type)
		}
	}
}

func (x *index) lend(typ string, from ast.Expr) {
	if name := typeName(from); name != "" && name != typ {
		x.lenders[typ] = append(x.lenders[typ], name)
	}
}

// has reports whether a type has a member, perhaps one that another type lends. A type of another
// module may lend any member.
func (x *index) has(typ, member string, asked []string) bool {
	members, known := x.members[typ]
	if !known || members[member] {
		return true
	}
	for _, other := range x.lenders[typ] {
		if !slices.Contains(asked, other) && x.has(other, member, append(asked, typ)) {
			return true
		}
	}
	return false
}

// typeName returns the name of a type without its package, its parameters and pointers, or "" for a
// type that has no name.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.ParenExpr:
		return typeName(e.X)
	}
	return ""
}
