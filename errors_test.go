// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tests/tree"
)

// A judged is an error that decides itself whether it is an end.
type judged bool

func (judged) Error() string { return "judged" }
func (j judged) IsEnd() bool { return bool(j) }
func (judged) Unwrap() error { return rocl.ErrGone }

// Promise (Ends): `IsEnd` reports true for each error of an operation with a resource that was
// deleted, whose process or node has ended, or that was given up, and for no other error.
func TestIsEnd(t *testing.T) {
	ctx := t.Context()
	n := rocltest.Cluster(t, 1)
	a, other := n.Open(0), n.Open(0)
	me, deleted, closed := reg(t, a), reg(t, other), reg(t, other)
	if err := deleted.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	call := func(to rocl.GID) error { _, err := me.CallBytes(ctx, to, 0, nil); return err }
	ended, cancel := context.WithCancel(ctx)
	cancel()
	errs := []error{call(deleted.ID()), me.SendBytes(ctx, deleted.ID(), 0, nil)}
	other.Close()
	errs = append(errs, call(closed.ID()), me.SendBytes(ctx, closed.ID(), 0, nil), rocl.ErrNodeDead, &rocl.NoConnectionError{End: rocl.ErrUnreachable}, rocl.SendErrors{{Err: rocl.ErrGone}}, judged(true))
	for i, err := range errs {
		if !rocl.IsEnd(err) || !rocl.IsEnd(fmt.Errorf("wrapped: %w", err)) {
			t.Errorf("error %d is no end: %v", i, err)
		}
	}
	me.Close()
	_, canceled := a.Find(ended, rocl.Match{"no": "such"})
	_, absent := a.Find(ctx, rocl.Match{"no": "such"})
	for i, err := range []error{nil, call(closed.ID()), canceled, absent, rocl.ErrFull, rocl.ErrNoReply, judged(false)} {
		if rocl.IsEnd(err) || (err == nil) != (i == 0) {
			t.Errorf("error %d is an end, or none at all: %v", i, err)
		}
	}
}

// Every argument that exceeds a limit gives the error ErrTooLarge, whose text names the limit.
//
// Promise (Sending): What exceeds a limit is refused with an error that matches `ErrTooLarge` and
// names the limit.
func TestTooLarge(t *testing.T) {
	ctx := context.Background()
	c := rocltest.Cluster(t, 1).Open(0)
	r := reg(t, c)
	p := try.Get(c.Buffer(10))(t)
	defer p.Release()
	value := rocl.Attrs{"x": strings.Repeat("v", resource.MaxValue+1)}
	many := rocl.Attrs{}
	for i := range resource.MaxAttrs + 1 {
		many[fmt.Sprint("n", i)] = ""
	}
	for name, do := range map[string]func() error{
		"a large buffer":              func() error { _, err := c.Buffer(min(1<<40, math.MaxInt)); return err },
		"a buffer above the limit":    func() error { _, err := c.Buffer(rocl.MaxMessage + 1); return err },
		"a buffer of less than 0":     func() error { _, err := c.Buffer(-1); return err },
		"resized beyond its memory":   func() error { return p.Resize(p.Cap() + 1) },
		"resized to less than 0":      func() error { return p.Resize(-1) },
		"Register of a large value":   func() error { _, err := c.Register(ctx, value); return err },
		"Register of many attributes": func() error { _, err := c.Register(ctx, many); return err },
		"Register of a long name": func() error {
			_, err := c.Register(ctx, rocl.Attrs{strings.Repeat("n", resource.MaxName+1): ""})
			return err
		},
		"Update":        func() error { return r.Update(ctx, value) },
		"CompareAndSet": func() error { _, err := r.CompareAndSet(ctx, 1, value); return err },
		"Find":          func() error { _, err := c.Find(ctx, value); return err },
		"FindAll": func() error {
			for _, err := range c.FindAll(ctx, value) {
				return err
			}
			return nil
		},
		"Watch": func() error {
			for _, err := range c.Watch(ctx, value) {
				return err
			}
			return nil
		},
	} {
		if err := do(); !errors.Is(err, rocl.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Buffer(-1); err == nil || !strings.Contains(err.Error(), "negative") {
		t.Errorf("a buffer of less than 0 bytes: %v", err)
	}
	if _, err := c.Find(ctx, nil); errors.Is(err, rocl.ErrTooLarge) {
		t.Errorf("another error is that too: %v", err)
	}
}

// A send to the zero identifier fails with an error that says what is wrong.
//
// Promise (Delivery): A message to the zero identifier is refused with `ErrGone`.
func TestSendToZero(t *testing.T) {
	ctx := context.Background()
	c := rocltest.Cluster(t, 1).Open(0)
	r := reg(t, c)
	err := r.SendBytes(ctx, rocl.GID{}, 0, nil)
	if !errors.Is(err, rocl.ErrGone) || !strings.Contains(err.Error(), "zero identifier") {
		t.Errorf("sending to the zero identifier: %v", err)
	}
}

// internalErrors are the exported errors of the packages below that programs do not match, with the
// reason.
var internalErrors = map[string]string{
	"directory.ErrClosed":   "calls of a closed context match ErrClosed",
	"directory.ErrInUse":    "only a daemon gets it",
	"directory.ErrLabels":   "only a daemon gets it",
	"directory.ErrProtocol": "no program can react to it",
	"dispatch.ErrTooLarge":  "it matches ErrTooLarge",
	"dispatch.ErrRefused":   "sends fail with ErrUnreachable",
	"dispatch.ErrProtocol":  "no program can react to it",
	"resource.ErrTooLarge":  "it matches ErrTooLarge",
	"resource.ErrMalformed": "only a decoder of lists gets it",
	"buffers.ErrTooLarge":   "it matches ErrTooLarge",
	"buffers.ErrClosed":     "calls of a closed context match ErrClosed",
	"buffers.ErrLeaked":     "Context.Close drops it",
	"buffers.ErrNoShare":    "only a transport gets it",
	"buffers.ErrMoved":      "only a transport gets it",
	"subsys.ErrClosed":      "only the dispatcher gets it",
	"subsys.ErrNoPeer":      "sends fail with ErrUnreachable",
	"subsys.ErrPeerClosed":  "sends fail with ErrUnreachable",
	"subsys.ErrProtocol":    "no program can react to it",
	"subsys.ErrBadHeader":   "only a transport gets it",
}

// Each error of the packages under the root package is an error of the root package too, or is
// known not to concern programs.
func TestRootHasAllErrors(t *testing.T) {
	root := map[string]bool{} // the errors that the root package names: package.Name
	for _, f := range parseFolder(t, ".", tree.IsCode) {
		ast.Inspect(f.File, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
				if s, ok := v.Values[0].(*ast.SelectorExpr); ok {
					root[strings.TrimPrefix(s.X.(*ast.Ident).Name, "i")+"."+s.Sel.Name] = true
				}
			}
			return true
		})
	}
	found := 0
	for _, pkg := range []string{"buffers", "codec", "context", "directory", "dispatch", "resource", "subsys"} {
		for _, f := range parseFolder(t, pkg, tree.IsCode) {
			for _, name := range exportedErrors(f.File) {
				found++
				name = pkg + "." + name
				if _, known := internalErrors[name]; known == root[name] {
					t.Errorf("%s: an error of the root package: %v; known not to concern programs: %v", name, root[name], known)
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("found %d errors: these are not all", found)
	}
}

// exportedErrors returns the names of the errors that a file declares.
func exportedErrors(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			for _, n := range s.(*ast.ValueSpec).Names {
				if strings.HasPrefix(n.Name, "Err") {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}

// parseFolder returns the files of a folder that isWanted wants.
func parseFolder(t *testing.T, folder string, isWanted func(path string) bool) []*tree.File {
	t.Helper()
	files := try.Get(tree.Go(folder, parser.ParseComments, func(path string) bool { return !strings.Contains(path, "/") && isWanted(path) }))(t)
	return files
}
