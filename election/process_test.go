// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/election"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A child is a process that has a context, and holds the name or waits for it if it was told to.
type child struct {
	*subprocess.Process
	t    *testing.T
	line string // that it holds the name
}

func start(t *testing.T, sock string) *child {
	t.Helper()
	cmd := subprocess.Self()
	cmd.Env = append(os.Environ(), childEnv+"=1", "ROCL_SOCKET="+sock)
	c := &child{Process: try.Get(subprocess.Start(cmd))(t), t: t}
	t.Cleanup(c.Kill)
	c.says("open")
	return c
}

// says returns the next line, which must begin with a text.
func (c *child) says(what string) string {
	c.t.Helper()
	line := try.Get(c.Line(eventually.Context(c.t)))(c.t)
	if !strings.HasPrefix(line, what) {
		c.t.Fatalf("a process says %q in place of %q", line, what)
	}
	return line
}

func (c *child) hold() {
	c.t.Helper()
	try.OK(c.t, c.WriteLine("hold"))
	c.says("waits")
}

// holds returns the number of the term when the process holds the name.
func (c *child) holds() uint64 {
	c.t.Helper()
	return number(c.t, c.says("holds "))
}

func number(t *testing.T, line string) (n uint64) {
	t.Helper()
	try.Get(fmt.Sscanf(line, "holds %d", &n))(t)
	return n
}

// claims waits until there are n claims.
func claims(t *testing.T, c *rocl.Context, n int) {
	t.Helper()
	try.Get(c.Await(eventually.Context(t), rocl.Match{election.AttrName: `"role"="leader"`}, n))(t)
}

// The processes of holders are killed, one after another. The first one serves the directory too.
// The next standby takes the name each time.
//
// Promise (Package election): When the process of a holder is killed, the next standby has the
// name.
func TestKilled(t *testing.T) {
	sock := freeaddr.Socket(t)
	first := start(t, sock)
	observer := try.Get(rocl.Open(eventually.Context(t), rocl.WithSocket(sock)))(t)
	t.Cleanup(func() { try.Check(t, observer.Close()) })
	children := []*child{first, start(t, sock), start(t, sock), start(t, sock)}
	holders := make(chan *child, len(children))
	for i, c := range children {
		c.hold()
		claims(t, observer, i+1)
		go func() {
			if c.line = <-c.Lines; c.line != "" {
				holders <- c
			}
		}()
	}
	last := uint64(0)
	for range children {
		c := <-holders
		n := number(t, c.line)
		if n <= last {
			t.Errorf("number %d follows %d", n, last)
		}
		f := try.Get(observer.Find(eventually.Context(t), rocl.Match(role)))(t)
		try.Equal(t, f.Attrs.GetString(election.AttrNumber), fmt.Sprint(n))
		last = n
		c.Kill()
	}
}

// A holder is stopped, and then the process that serves the directory is killed. The holder is not
// denied: it has the name when it goes on.
//
// Promise (Package election): A holder that is stopped keeps the name, also when another process
// takes over the directory meanwhile.
func TestStopped(t *testing.T) {
	sock := freeaddr.Socket(t)
	server := start(t, sock)
	observer := try.Get(rocl.Open(eventually.Context(t), rocl.WithSocket(sock)))(t)
	t.Cleanup(func() { try.Check(t, observer.Close()) })
	holder, standby := start(t, sock), start(t, sock)
	holder.hold()
	n := holder.holds()
	standby.hold()
	claims(t, observer, 2)
	eventually.True(t, "the standby has a link with the holder", func() bool {
		f := try.Get(observer.Find(eventually.Context(t), rocl.Match(role)))(t)
		routes := try.Get(observer.RoutesOf(eventually.Context(t), standbyOf(t, observer, f.Context)))(t)
		for _, r := range routes {
			if r.Peer.Context() == f.Context && r.Transport != "" {
				return true
			}
		}
		return false
	})
	holder.Signal(posix.SIGSTOP)
	server.Kill()
	try.Get(observer.Register(eventually.Context(t), rocl.Attrs{"after": "takeover"}))(t)
	eventually.True(t, "the directory answers", func() bool {
		_, err := observer.Find(eventually.Context(t), rocl.Match{"after": "takeover"})
		return err == nil
	})
	claims(t, observer, 1)
	holder.Signal(posix.SIGCONT)
	claims(t, observer, 2)
	try.OK(t, holder.WriteLine("still?"))
	try.Equal(t, holder.says("holds"), fmt.Sprint("holds ", n, " <nil>"))
	select {
	case line := <-standby.Lines:
		t.Fatalf("the standby says %q", line)
	default:
	}
	holder.Kill()
	if next := standby.holds(); next <= n {
		t.Errorf("number %d follows %d", next, n)
	}
}

// standbyOf returns the context of the claim that is not the holder's.
func standbyOf(t *testing.T, c *rocl.Context, holder rocl.GID) (id rocl.GID) {
	for f, err := range c.FindAll(eventually.Context(t), rocl.Match{election.AttrName: `"role"="leader"`}) {
		if try.OK(t, err); f.Context != holder {
			id = f.Context
		}
	}
	return id
}
