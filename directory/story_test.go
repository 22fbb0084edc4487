// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// told waits until a story has n lines, and returns them.
func told(t *testing.T, s *logged.Story, n int) (lines []string) {
	t.Helper()
	eventually.True(t, fmt.Sprint(n, " lines"), func() bool { lines = s.Lines(); return len(lines) >= n })
	return lines
}

// The log of a server has a line when a program comes with resources, leaves or is lost, and those
// of a client when the server is lost and another one is joined. A program that only asks leaves no
// line.
//
// Promise (Directory): The log of a node's server tells at level info, a line each, that a program
// with resources joined, left or was lost, with its name and PID.
func TestStory(t *testing.T) {
	posix.Need(t, "way to find the process at the other end of a connection")
	path := sock(t)
	known := []string{"event", "program", "pid", "resources"}
	ofServer, ofClient := &logged.Story{Attrs: known}, &logged.Story{Attrs: known}
	s := try.Get(Listen(path, WithLogger(slog.New(ofServer))))(t)
	defer s.Close()
	asks := joined(t, path)
	if _, err := asks.Find(t.Context(), list(t, resource.Match{"type": "none"})); err == nil {
		t.Error("found")
	}
	register(t, asks, 0, resource.Attrs{"rocl.kind": "context"})
	asks.Close()
	who := fmt.Sprintf(" program=%s pid=%d", comm(t), os.Getpid())
	a := joined(t, path)
	register(t, a, 0, resource.Attrs{"rocl.kind": "context"})
	register(t, a, 1, resource.Attrs{"type": "lamp"})
	register(t, a, 2, resource.Attrs{"type": "lamp"})
	a.Close()
	try.Equal(t, strings.Join(told(t, ofServer, 2), "\n"), "directory: program event=joined"+who+"\ndirectory: program event=left"+who+" resources=2")
	b := joined(t, path)
	register(t, b, 1, resource.Attrs{"type": "lamp"})
	b.mu.Lock()
	b.conn.c.Close() // as the end of the process does
	b.mu.Unlock()
	// b joins again at once, and may do so before the server has seen the end.
	eventually.True(t, "the end is told", func() bool {
		return slices.Contains(told(t, ofServer, 3), "directory: program event=joined"+who)
	})
	b.Close()

	c := try.Get(JoinNode(t.Context(), path, slog.New(ofClient), nil))(t)
	defer c.Close()
	s.Close()
	try.Equal(t, strings.Join(told(t, ofClient, 3), "\n"),
		fmt.Sprintf("directory: server lost\ndirectory: this program serves the node event=took over program=%s pid=%d\ndirectory: joined again%s", program(), os.Getpid(), who))
}

// comm returns the name that the kernel has of this process's program.
func comm(t *testing.T) string {
	return strings.TrimSpace(string(try.Get(os.ReadFile("/proc/self/comm"))(t)))
}

// A server tells of itself, does what its program can do, and says what it cannot. Any client may
// ask, and goes on afterwards.
func TestControl(t *testing.T) {
	path := sock(t)
	s := try.Get(Listen(path, WithControl(func(_ context.Context, do string, args []string) (any, error) {
		if do != "echo" {
			return nil, fmt.Errorf("no %s", do)
		}
		return args, nil
	})))(t)
	defer s.Close()
	c := joined(t, path)
	defer c.Close()
	if b, err := c.Control(t.Context(), "status"); err != nil || !strings.Contains(string(b), fmt.Sprintf(`"pid":%d,"program":"%s"`, os.Getpid(), program())) {
		t.Errorf("%s %v", b, err)
	}
	if b, err := c.Control(t.Context(), "echo", "a", "\x00b"); err != nil || string(b) != `["a","\u0000b"]` {
		t.Errorf("%s %v", b, err)
	}
	if _, err := c.Control(t.Context(), "sing"); err == nil || err.Error() != "no sing" {
		t.Error(err)
	}
	if _, err := c.Find(t.Context(), list(t, resource.Match{"type": "none"})); err != ErrNotFound {
		t.Error(err)
	}
	plain, without := begun2(t)
	defer plain.Close()
	if _, err := without.Control(t.Context(), "echo"); err == nil || !strings.Contains(err.Error(), "no dirserver") {
		t.Error(err)
	}
}

// begun2 returns a server without functions of a program, and a client of it.
func begun2(t *testing.T) (*Server, *Client) {
	path := sock(t)
	s := try.Get(Listen(path))(t)
	c := joined(t, path)
	t.Cleanup(func() { c.Close() })
	return s, c
}
