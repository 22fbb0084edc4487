// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
)

// While a server's socket accepts connections no other server starts, even if the lock and the
// identity are gone and the server has not noticed yet.
func TestNoSecondServerWithoutLock(t *testing.T) {
	path := sock(t)
	s := serve(t, path, true)
	for _, suffix := range []string{lockSuffix, nodeSuffix} {
		check(t, os.Remove(path+suffix))
	}
	for _, daemon := range []bool{false, true} {
		if err := refused(t, path, daemon); !errors.Is(err, wire.ErrInUse) {
			t.Errorf("a second server: %v", err)
		}
	}
	if _, err := os.Lstat(path + nodeSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a server that did not start made the node another: %v", err)
	}
	if err := s.restore(s.first()); err != nil {
		t.Errorf("the first server: %v", err)
	}
	reach(t, path)
}

// A server whose files were removed, and whose place another server has taken, ends. It changes no
// file of the other one.
func TestDisplaced(t *testing.T) {
	path := sock(t)
	old := serve(t, path, true)
	check(t, old.WriteMember(func() Member { return Member{Cluster: "blue"} }))
	suffixes := []string{lockSuffix, nodeSuffix, memberSuffix, ""}
	for _, suffix := range suffixes {
		check(t, os.Remove(path+suffix))
	}
	s := serve(t, path, true)
	check(t, s.WriteMember(func() Member { return Member{Cluster: "blue"} }))
	before := map[string]fs.FileInfo{}
	for _, suffix := range suffixes {
		fi, err := os.Lstat(path + suffix)
		check(t, err)
		before[path+suffix] = fi
	}
	old.busy.Go(func() { old.guard(old.first(), time.Millisecond) })
	<-old.Displaced()
	<-old.ended
	if err := old.RemoveMember(); err != nil {
		t.Error(err)
	}
	old.close()
	for p, fi := range before {
		if !isFile(p, fi) {
			t.Errorf("%s is another or gone", p)
		}
	}
	reach(t, path)
	if n := s.served.Load(); n == 0 {
		t.Error("the other server does not serve")
	}
}
