// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"golang.org/x/sys/unix"
)

// With the runtime directory full, one server can follow another any number of times. Labels that
// cannot be stored are reported. Only the first identity of a node needs space.
//
// With a full runtime directory, servers still follow each other. A limit of file sizes causes an
// error that names the file. See also TestFileSizeLimit.
func TestFullRuntimeDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	if !child(t, &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}) {
		return
	}
	dir := filepath.Dir(sock(t))
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skip("mounting: ", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Skip("mounting: ", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	path, full := filepath.Join(dir, "d.sock"), filepath.Join(dir, "full")
	fill := func() {
		f := try.Get(os.OpenFile(full, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))(t)
		defer f.Close()
		for {
			if _, err := f.Write(make([]byte, 4096)); errors.Is(err, unix.ENOSPC) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	fill()
	s, err := Listen(path)
	if err == nil {
		s.Close()
	}
	if names(t, err, path+nodeSuffix); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a first server: %v", err)
	}
	try.OK(t, os.Remove(full))
	serve(t, path).Close()
	fill()
	var node resource.NodeID
	for i := range 3 {
		s := serve(t, path)
		if joined(t, path); i > 0 && s.Node() != node {
			t.Error("the node is another")
		}
		node = s.Node()
		s.Close()
	}
	ls := try.Get(NewLabels(resource.Attrs{"zone": "a"}))(t)
	var log logged.Log
	s = serve(t, path, AsDaemon(), WithLabels(ls), WithLogger(log.Logger()))
	if _, err := joined(t, path).Find(t.Context(), list(t, resource.Match{AttrKind: "node", "zone": "a"})); err != nil || s.Node() != node {
		t.Error("the node is not found by its label: ", err)
	}
	s.Close()
	if !strings.Contains(log.String(), path+nodeSuffix) {
		t.Errorf("nothing is said of labels that cannot be kept: %s", &log)
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Timeout)
	defer cancel()
	cs := make([]*Client, 3)
	for i := range cs {
		cs[i] = joinedNode(t, path, nil)
	}
	cs[0].Close() // the client that served
	try.Get(cs[2].Register(ctx, cs[2].Self().WithSerial(1), list(t, resource.Attrs{"a": "b"})))(t)
}
