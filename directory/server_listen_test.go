// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// looking makes a server check its files at each step.
func looking(step time.Duration) Option { return func(s *Server) { s.check = step } }

// Suffixes of the files beside a socket.
const (
	lockSuffix   = ".lock"
	nodeSuffix   = ".node"
	memberSuffix = ".member"
)

const (
	often = 2 * time.Millisecond
	never = time.Hour
)

// Files that are removed while a server runs are put back: no second server starts, and the node
// stays the same.
//
// Promise (Directory): Files of a running directory that are removed are put back within seconds.
// No second server starts meanwhile. See also TestNoSecondServerWithoutLock.
func TestFilesPutBack(t *testing.T) {
	posix.Need(t, "removal of open files")
	for what, suffixes := range map[string][]string{
		"the lock": {lockSuffix}, "the identity": {nodeSuffix}, "the socket": {""}, "all": {lockSuffix, nodeSuffix, ""}, "the folder": nil,
	} {
		for daemon, opts := range map[string][]Option{"daemon": {AsDaemon()}, "context": nil} {
			t.Run(what+" of a "+daemon, func(t *testing.T) {
				path := filepath.Join(filepath.Dir(sock(t)), "sub", "d.sock")
				second := path + "2"
				if daemon == "daemon" {
					opts = append(opts, Also(second))
				}
				s := serve(t, path, append(opts, looking(often))...)
				c := joined(t, path)
				l := list(t, resource.Attrs{"of": "before"})
				id := c.Self().WithSerial(1)
				try.Get(c.Register(t.Context(), id, l))(t)
				before := try.Get(os.ReadFile(path + nodeSuffix))(t)
				var was []fs.FileInfo
				all := []string{path + lockSuffix, path + nodeSuffix, path}
				for _, p := range all {
					fi := try.Get(os.Lstat(p))(t)
					was = append(was, fi)
				}
				removed := map[string]bool{}
				for _, suffix := range suffixes {
					removed[path+suffix] = true
					try.OK(t, os.Remove(path+suffix))
				}
				if suffixes == nil { // at once: the server may put files back meanwhile
					gone := sock(t)
					try.OK(t, os.Rename(filepath.Dir(path), gone))
					try.OK(t, os.RemoveAll(gone))
				}
				for i, p := range all {
					eventually.True(t, p+" comes back", func() bool {
						fi, err := os.Lstat(p)
						return err == nil && (suffixes != nil && !removed[p] || fi.ModTime() != was[i].ModTime())
					})
				}
				served := func(path string) bool {
					nc, err := DialSocket(path)(t.Context())
					if err == nil {
						nc.Close()
					}
					return err == nil
				}
				eventually.True(t, "the socket is served", func() bool { return served(path) })
				if after, err := os.ReadFile(path + nodeSuffix); string(after) != string(before) {
					t.Errorf("the identity was %q and is %q: %v", before, after, err)
				}
				if daemon == "daemon" {
					eventually.True(t, "the second path is served", func() bool {
						b, err := os.ReadFile(second + nodeSuffix)
						return served(second) && err == nil && strings.Contains(string(b), path+"\n")
					})
				}
				eventually.True(t, "the context shows itself in the lock", func() bool { return isLocked(t, path+lockSuffix, c.Self()) })
				if s, err := Listen(path); err == nil || !errors.Is(err, ErrInUse) {
					s.Close()
					t.Errorf("a second server: %v", err)
				}
				found(t, id)(joined(t, path).Find(t.Context(), l))
				s.Close()
				try.Fails(os.Lstat(path))(t, fs.ErrNotExist)
				select {
				case <-s.Displaced():
					t.Error("the server says that another has its place")
				default:
				}
				next := serve(t, path)
				if next.Node() != s.Node() || next.id.Epoch != s.id.Epoch+1 {
					t.Errorf("the next server is of node %v, epoch %d; it was %v, %d", next.Node(), next.id.Epoch, s.Node(), s.id.Epoch)
				}
			})
		}
	}
}

// The member file is put back too. A server that was displaced does not remove its successor's.
func TestMemberFilePutBack(t *testing.T) {
	path := sock(t)
	member := path + memberSuffix
	s := serve(t, path, AsDaemon(), inCluster(), looking(often))
	try.OK(t, os.Remove(member))
	eventually.True(t, "the member file comes back", func() bool {
		_, err := os.Lstat(member)
		return err == nil
	})
	next := displace(t, s, path, inCluster())
	try.Get(os.Lstat(member))(t)
	next.Close()
	try.Fails(os.Lstat(member))(t, fs.ErrNotExist) // the other server removes it
}

// displace removes the folder of s, which serves at path, and starts another daemon there. It
// returns the daemon when s has ended.
func displace(t *testing.T, s *Server, path string, opts ...Option) *Server {
	t.Helper()
	var next *Server
	for i := 0; next == nil; i++ { // s may put its files back first
		try.OK(t, os.Rename(filepath.Dir(path), fmt.Sprintf("%s-removed%d", filepath.Dir(path), i)))
		t.Cleanup(func() { os.RemoveAll(fmt.Sprintf("%s-removed%d", filepath.Dir(path), i)) })
		var err error
		if next, err = Listen(path, append(opts, AsDaemon())...); err != nil && !errors.Is(err, ErrInUse) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { next.Close() })
	<-s.Displaced()
	s.Close()
	<-s.lifetime.Done()
	return next
}

// A server whose files were removed, and whose place another server has taken, ends. The other one
// goes on.
func TestDisplaced(t *testing.T) {
	path := sock(t)
	s := displace(t, serve(t, path, AsDaemon(), looking(often)), path)
	c := joined(t, path)
	try.Fails(c.Lookup(t.Context(), c.Self()))(t, ErrNotFound)
	try.Equal(t, joined(t, path).Node(), s.Node(), "another node serves")
}

// A daemon takes over from a context whose lock was removed.
func TestYieldWithoutLock(t *testing.T) {
	yields(t)
	path := sock(t)
	s := serve(t, path, looking(never))
	try.OK(t, os.Remove(path+lockSuffix))
	d := serve(t, path, AsDaemon())
	try.Equal(t, d.Node(), s.Node(), "the daemon is another node")
	joined(t, path)
	s.Close()
	joined(t, path)
}

// If several daemons ask a context to give way at once, one of them takes over.
//
// Promise (Takeover): If many processes or daemons start at once, one serves. A stale socket file
// is replaced. See also TestRaceToServe.
func TestYieldOnce(t *testing.T) {
	yields(t)
	for range 10 {
		path := sock(t)
		serve(t, path)
		type result struct {
			*Server
			err error
		}
		got := make(chan result)
		for range 4 {
			go func() {
				s, err := Listen(path, AsDaemon())
				got <- result{s, err}
			}()
		}
		n := 0
		for range 4 {
			r := <-got
			if r.err == nil {
				n++
				defer r.Close()
			} else if !errors.Is(r.err, ErrInUse) {
				t.Error(r.err)
			}
		}
		if n != 1 {
			t.Fatalf("%d daemons serve", n)
		}
	}
}

// Promise (Directory): A directory at a TCP port serves the loopback interface only, and only
// clients that prove that they know the node's key.
func TestTCP(t *testing.T) {
	path := sock(t)
	s := try.Get(Listen(path))(t)
	defer s.Close()
	at := try.Get(s.ListenTCP("tcp://" + try.Get(freeaddr.Loopback())(t)))(t) // is dialled once it is closed
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Timeout)
	defer cancel()
	c := try.Get(JoinNode(ctx, at+"?node="+path+".node", s.log, nil))(t)
	defer c.Close()
	l, _ := resource.NewPattern(resource.Attrs{"over": "tcp"})
	id := c.Self().WithSerial(1)
	try.Get(c.Register(ctx, id, l))(t)
	found(t, id)(c.Find(ctx, l))
	for _, bad := range []string{"tcp://0.0.0.0:0", "tcp://192.0.2.1:0", "tcp://127.0.0.1", "127.0.0.1:0", "tcp://%zz"} {
		if at, err := s.ListenTCP(bad); err == nil {
			t.Errorf("%s is served at %s", bad, at)
		}
	}
	for _, bad := range []string{at, at + "?node=/nowhere", "tcp://"} {
		try.Rejects(Join(ctx, DialSocket(bad)))(t, "%s can be joined", bad)
	}
	s.Close()
	try.Fails(DialSocket(at+"?node="+path+".node")(ctx))(t, ErrNoDirectory) // a closed one
	if _, err := DialSocket(strings.Repeat("x", 1<<16))(ctx); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a long path: %v", err)
	}
}
