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

// worker has the arguments that start a worker.
var worker = []string{"work"}

func squares(n uint64) string {
	var total uint64
	for i := range n + 1 {
		total += i * i
	}
	return fmt.Sprintln(total)
}

func TestSum(t *testing.T) {
	node := example.New(t)
	ws := node.Start(rocl.Match{"type": "worker"}, worker, worker, worker)
	for _, n := range []uint64{0, 1, 1 << 16, 1<<16 + 1, 3_000_000} {
		said, err := node.Command("sum", fmt.Sprint(n)).Output()
		if err != nil || string(said) != squares(n) {
			t.Errorf("the sum to %d is %q, %v; want %q", n, said, err, squares(n))
		}
	}
	node.Interrupt(ws...)
}

// The part of a worker that is killed is done by another one.
func TestWorkerDies(t *testing.T) {
	node := example.New(t)
	ws := node.Start(rocl.Match{"type": "worker"}, worker, worker, worker)
	const n = 1 << 26 // takes long enough to kill a worker meanwhile
	cmd := node.Command("sum", fmt.Sprint(n))
	var said strings.Builder
	cmd.Stdout = &said
	// The worker may die before, during or after its part.
	sum := node.Launch(cmd)
	node.Kill(ws[0])
	if err := sum.Wait(); err != nil || said.String() != squares(n) {
		t.Errorf("the sum to %d is %q, %v; want %q", n, said.String(), err, squares(n))
	}
	node.Interrupt(ws[1:]...)
}

// Without workers, and with wrong arguments, the example prints an error.
func TestFails(t *testing.T) {
	node := example.New(t)
	for what, args := range map[string][]string{
		"no workers":     {"sum", "10"},
		"usage":          {},
		"invalid syntax": {"sum", "ten"},
	} {
		node.Fails(what, args...)
	}
}
