// SPDX-License-Identifier: Apache-2.0

package live_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/ownnode"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/live"
)

// TestMain runs the tests, or another process of a test: a worker, or a follower.
func TestMain(m *testing.M) {
	role := os.Getenv("LIVE_ROLE")
	if role == "" {
		ownnode.Main(m)
		return
	}
	if err := run(context.Background(), role); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run is another process, until its input ends. A follower answers each line with its members.
func run(ctx context.Context, role string) error {
	c, err := rocl.Open(ctx, rocl.WithSocket(os.Getenv("LIVE_SOCKET")))
	if err != nil {
		return err
	}
	defer c.Close()
	input := bufio.NewScanner(os.Stdin)
	if role == "follower" {
		s, err := live.Follow(ctx, c, workers)
		if err != nil {
			return err
		}
		defer s.Close()
		for fmt.Println("ready"); input.Scan(); {
			fmt.Println(names(s))
		}
		return nil
	}
	if _, err := c.Register(ctx, rocl.Attrs{"type": "worker", "load": "0", "name": role}); err != nil {
		return err
	}
	for fmt.Println("ready"); input.Scan(); {
	}
	return nil
}

// other starts another process on the node.
func other(t *testing.T, sock, role string) *subprocess.Process {
	cmd := subprocess.Self()
	cmd.Env = append(os.Environ(), "LIVE_ROLE="+role, "LIVE_SOCKET="+sock)
	p := try.Get(subprocess.Start(cmd))(t)
	t.Cleanup(p.Kill)
	try.OK(t, p.Expect(eventually.Context(t), "ready"))
	return p
}

// names returns the names of the members, in order.
func names(s *live.Set) string {
	var all []string
	for f := range s.All() {
		all = append(all, f.Attrs.GetString("name"))
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// open opens a context of the node, which is closed when the test ends.
func open(t *testing.T, sock string) *rocl.Context {
	c := try.Get(rocl.Open(eventually.Context(t), rocl.WithSocket(sock)))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// The process that serves the directory is killed, then another member. The set has lost no other
// member meanwhile. A waiting pick gets the next member that comes.
//
// Promise (Package live): A set goes on when another process takes over the directory, and loses
// only members that have ended. See also TestFaults.
func TestKilled(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	first := other(t, sock, "first") // serves the directory
	second := other(t, sock, "second")
	c, ctx := open(t, sock), eventually.Context(t)
	s := follow(t, c)
	try.Equal(t, names(s), "first,second")
	first.Kill()
	for {
		changed := s.Changed()
		now := names(s)
		if now == "second" {
			break
		}
		try.Equal(t, now, "first,second")
		<-changed
	}
	try.Equal(t, s.Err(), nil)
	picked := make(chan *live.Member)
	m := try.Get(s.Pick(live.Least("load")))(t)
	second.Kill()
	me := try.Get(c.Register(ctx, nil))(t)
	_, err := me.CallBytes(ctx, m.ID, 0, nil)
	m.Done(err)
	try.Fails(s.Pick(live.Turn()))(t, live.ErrNone)
	go func() {
		m, err := s.Await(ctx, live.Hash("key"))
		try.Check(t, err)
		picked <- m
	}()
	other(t, sock, "third")
	if m := eventually.Value(t, "the third member", picked); m == nil || m.Attrs.GetString("name") != "third" {
		t.Error(m)
	}
}

// The follower stands still while members come, change and go. When it goes on, it has the latest
// state.
//
// Promise (Package live): A process that reads events too slowly has the latest state in the end.
func TestSlowFollower(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	c := open(t, sock)
	p := other(t, sock, "follower")
	p.Signal(posix.SIGSTOP)
	var want []string
	for i := range 3000 {
		name := fmt.Sprintf("w%04d", i)
		r := try.Get(c.Register(t.Context(), rocl.Attrs{"type": "worker", "name": "new"}))(t)
		if i%100 == 0 {
			want = append(want, name)
			try.OK(t, r.Set(t.Context(), "name", name))
		} else {
			r.Close()
		}
	}
	p.Signal(posix.SIGCONT)
	eventually.True(t, "the follower has the members", func() bool {
		try.OK(t, p.WriteLine("list"))
		return try.Get(p.Line(eventually.Context(t)))(t) == strings.Join(want, ",")
	})
}
