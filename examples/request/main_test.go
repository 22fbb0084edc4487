// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

func TestAsk(t *testing.T) {
	node := example.New(t)
	serve := []string{"serve"}
	servers := node.Start(rocl.Match{"service": "capitals"}, serve, serve, serve)
	args, want := []string{"ask"}, ""
	for i := range 500 {
		args = append(args, fmt.Sprint("word", i))
		want += fmt.Sprintln("WORD" + fmt.Sprint(i))
	}
	cmd := node.Command(args...)
	var said strings.Builder
	cmd.Stdout = &said
	ask := node.Launch(cmd)
	node.Kill(servers[0]) // before, during or after the calls
	if err := ask.Wait(); err != nil || said.String() != want {
		t.Errorf("%v, said %q", err, said.String())
	}
	node.Interrupt(servers[1:]...)
}

// Without servers, and with wrong arguments, the example prints an error.
func TestFails(t *testing.T) {
	node := example.New(t)
	for what, args := range map[string][]string{
		"no such resource": {"ask", "x"},
		"usage":            {"ask"},
	} {
		node.Fails(what, args...)
	}
}
