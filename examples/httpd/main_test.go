// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/examples/internal/example"
	"github.com/rocl-go/rocl/internal/subprocess"
)

func TestMain(m *testing.M) { example.Main(m, main) }

// A client gets the answer of a server. If that server is killed, another one answers.
func TestGet(t *testing.T) {
	node := example.New(t)
	c := node.Open()
	var servers [2]*subprocess.Process
	for i := range servers {
		servers[i] = node.Launch(node.Command("serve"))
	}
	await := func(n int) {
		for ev, err := range c.Watch(t.Context(), rocl.Match{"type": "web"}) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Kind == rocl.Appeared {
				n--
			}
			if ev.Kind == rocl.Gone {
				n++
			}
			if n == 0 {
				return
			}
		}
	}
	await(len(servers))
	for range 5 {
		said, err := node.Command("get", "/a/path").Output()
		if err != nil || !strings.Contains(string(said), " serves /a/path to ") {
			t.Errorf("the server says %q, %v", said, err)
		}
	}
	node.Kill(servers[0])
	want := fmt.Sprintf("process %d serves /again to ", servers[1].Cmd.Process.Pid)
	for range 5 {
		said, err := node.Command("get", "/again").Output()
		if err != nil || !strings.HasPrefix(string(said), want) {
			t.Errorf("the server says %q, %v; want %q", said, err, want)
		}
	}
	node.Interrupt(servers[1])
	if said, err := node.Command("get", "/").Output(); err == nil {
		t.Errorf("without a server the client says %q", said)
	}
}
