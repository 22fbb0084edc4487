// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// status runs rocl flow status and returns its output and exit code.
func (b *bench) status(args ...string) (string, int) {
	var out said
	root := cli.Root()
	root.AddCommand(Commands()...)
	root.SetOut(&out)
	root.SetErr(&b.err)
	code := cli.Run(b.Context(), root, append([]string{"flow", "status"}, args...))
	return out.String(), code
}

// Promise (Dataflow): The status of a run shows each edge with the figures of both its groups.
func TestStatus(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() { done <- b.flow(ctx, "-V", "block") }()
	eventually.True(t, "the stage runs", func() bool { return strings.Contains(b.out.String(), "[b] pid ") })
	var text string
	eventually.True(t, "the sink waits and the source has waited", func() bool {
		text, _ = b.status()
		return regexp.MustCompile(`(?s)  group a: process \d+ on .*  group b: .*  group c: `).MatchString(text) && strings.Contains(text, "  numbers  stage") && strings.Contains(text, "  stage    sum")
	})
	for _, says := range []string{"graph launched, run ", "  from     to     transport", "%\n"} {
		if !strings.Contains(text, says) {
			t.Errorf("no %q in\n%s", says, text)
		}
	}
	text, code := b.status("--json")
	try.Equal(t, code, 0)
	try.Equal(t, strings.Count(text, `"graph":"launched"`), 2, text)
	_, code = b.status("--run", "none")
	try.Equal(t, code, 1)
	b.lastLine("rocl: no graph runs in groups, or it has ended")
	cancel()
	try.Equal(t, <-done, 130)
}

// Without a directory no graph runs.
func TestStatusWithoutDirectory(t *testing.T) {
	b := newBench(t)
	_, code := b.status("--socket", b.path("none"))
	try.Equal(t, code, 1)
	b.lastLine("rocl: no graph runs in groups, or it has ended")
}

// The figures of the two ends of an edge are joined.
func TestJoin(t *testing.T) {
	edges := join([]dataflow.Status{
		{Group: "b", Edges: []dataflow.EdgeStats{{Edge: 1, From: "m", To: "k"}, {Edge: 0, From: "s", To: "m", Transport: "none", Received: 7, Waiting: 2, Oldest: time.Second}}},
		{Group: "a", Edges: []dataflow.EdgeStats{{Edge: 0, From: "s", To: "m", Transport: "shm", Sent: 9, Batches: 3, Waits: 1, Size: 10}}},
	})
	try.Equal(t, len(edges), 2)
	want := dataflow.EdgeStats{Edge: 0, From: "s", To: "m", Transport: "shm", Sent: 9, Batches: 3, Waits: 1, Size: 10, Received: 7, Waiting: 2, Oldest: time.Second}
	try.Equal(t, edges[0], want)
	var out strings.Builder
	try.OK(t, printEdges(&out, edges))
	if !strings.Contains(out.String(), "3.0    1s      [##################..] 90 %") {
		t.Error(out.String())
	}
	try.Equal(t, bar(3, 0), "")
	try.Equal(t, bar(30, 10), "[####################] 100 %")
}
