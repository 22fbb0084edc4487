// SPDX-License-Identifier: Apache-2.0

package node

import (
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// While a server's socket accepts connections no other server starts, even if the lock and the
// identity are gone and the server has not noticed yet.
func TestNoSecondServerWithoutLock(t *testing.T) {
	posix.Need(t, "removal of open files")
	path := sock(t)
	s := serve(t, path, true)
	for _, suffix := range []string{lockSuffix, nodeSuffix} {
		try.OK(t, os.Remove(path+suffix))
	}
	for _, daemon := range []bool{false, true} {
		try.Fails(refused(t, path, daemon))(t, wire.ErrInUse, "a second server")
	}
	try.Fails(os.Lstat(path+nodeSuffix))(t, fs.ErrNotExist, "a server that did not start made the node another")
	try.Check(t, s.restore(s.first()), "the first server")
	reach(t, path)
}

// A server whose files were removed, and whose place another server has taken, ends. It changes no
// file of the other one.
func TestDisplaced(t *testing.T) {
	posix.Need(t, "removal of open files")
	path := sock(t)
	old := serve(t, path, true)
	try.OK(t, old.WriteMember(func() Member { return Member{Cluster: "blue"} }))
	suffixes := []string{lockSuffix, nodeSuffix, memberSuffix, ""}
	for _, suffix := range suffixes {
		try.OK(t, os.Remove(path+suffix))
	}
	s := serve(t, path, true)
	try.OK(t, s.WriteMember(func() Member { return Member{Cluster: "blue"} }))
	before := map[string]fs.FileInfo{}
	for _, suffix := range suffixes {
		fi := try.Get(os.Lstat(path + suffix))(t)
		before[path+suffix] = fi
	}
	old.busy.Go(func() { old.guard(old.first(), time.Millisecond) })
	<-old.Displaced()
	<-old.ended
	try.Check(t, old.RemoveMember())
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
