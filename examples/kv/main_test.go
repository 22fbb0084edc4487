// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

// Five providers in two processes share the keys. If a process is killed, the keys of its providers
// are lost, and no others.
func TestStore(t *testing.T) {
	node := example.New(t)
	home := node.Open()
	first := node.Serve("3 providers serve", "serve", "3")
	node.Serve("2 providers serve", "serve", "2")
	var names []string
	for i := range 20 {
		name := fmt.Sprint("key", i)
		names = append(names, name)
		if out, err := node.Both("put", name, "value of "+name); err != nil || len(out) > 0 {
			t.Fatalf("put: %s, %v", out, err)
		}
	}
	for _, name := range names {
		if out, err := node.Both("get", name); err != nil || out != "value of "+name+"\n" {
			t.Fatalf("get: %s, %v", out, err)
		}
	}
	node.Fails(`key "nothing": file does not exist`, "get", "nothing")
	all := listed(t, node)
	if slices.Sort(names); !slices.Equal(all, names) {
		t.Errorf("%q are listed", all)
	}
	node.Kill(first)
	node.Remain(home, service, 2)
	kept := listed(t, node)
	if len(kept) == 0 || len(kept) == len(names) {
		t.Errorf("%d keys of %d are listed after a process was killed", len(kept), len(names))
	}
	for _, name := range kept {
		if out, err := node.Both("get", name); err != nil || out != "value of "+name+"\n" {
			t.Errorf("get of %s after a process was killed: %s, %v", name, out, err)
		}
	}
}

// listed returns the names that "list" prints, in order.
func listed(t *testing.T, node example.Node) (names []string) {
	out, err := node.Both("list")
	if err != nil {
		t.Fatalf("list: %s, %v", out, err)
	}
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(line, "  "); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	slices.Sort(names)
	return names
}
