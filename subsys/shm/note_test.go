// SPDX-License-Identifier: Apache-2.0

//go:build linux && portable

package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// hasGroups is whether users of a group share memory on this system.
const hasGroups = false

// makeNapPage does nothing: no context naps on this system.
func makeNapPage(*testing.T, *node) {}

// A peer that sends nothing, or nonsense, instead of a hello is refused.
func TestInvalidHello(t *testing.T) {
	n := start(t)
	seg, p := helloParts(t)
	writable := try.Get(os.CreateTemp(t.TempDir(), ""))(t)
	defer writable.Close()
	try.OK(t, writable.Truncate(segmentLen))
	page := n.Port.(*port).bell.page
	h := hello()
	other := h
	other[8]++
	n.refuses(t, []badHello{
		{nil, nil}, {[]byte("x"), nil}, {h[:], nil}, {h[:], []int{seg}}, {h[:], []int{seg, page, page}}, {h[:], []int{p[0], page}},
		{h[:], []int{seg, p[0]}}, {h[:], []int{page, seg}}, {other[:], []int{seg, page}}, {h[:20], []int{seg, page}},
		{h[:], []int{int(writable.Fd()), page}}, {h[:], []int{seg, page, p[1], p[0], p[0], p[0], p[0], p[0], p[0], p[0], p[0], p[0]}},
	})
}

// Ports of a user meet in a folder that is that user's alone. They do not meet in a folder that
// other users can enter, or in one that is a link.
func TestMeeting(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, path string) error
		isRight bool
	}{
		"none":    {func(*testing.T, string) error { return nil }, true},
		"private": {func(_ *testing.T, path string) error { return os.Mkdir(path, 0o700) }, true},
		"open": {func(_ *testing.T, path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o710))
		}, false},
		"a file": {func(_ *testing.T, path string) error { return os.WriteFile(path, nil, 0o600) }, false},
		"a link to a private folder": {func(t *testing.T, path string) error {
			private := filepath.Join(t.TempDir(), "private")
			return errors.Join(os.Mkdir(private, 0o700), os.Symlink(private, path))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := newTemp(t)
			try.OK(t, c.prepare(t, path))
			a, err := open("")
			if !c.isRight {
				try.Fails(err)(t, subsys.ErrUnavailable)
				return
			}
			try.OK(t, err)
			b := start(t)
			if !b.Port.Reaches(a.Port.Addr()) {
				t.Error("ports of one folder do not reach each other")
			}
			_, _ = pair(t, b, a)
			try.Check(t, a.Close())
			left := try.Get(filepath.Glob(path + "/" + socketPrefix + "*"))(t)
			if len(left) != 1 || !strings.HasSuffix(b.Port.Addr(), strings.TrimPrefix(filepath.Base(left[0]), socketPrefix)) {
				t.Errorf("after a port was closed there are %q", left)
			}
		})
	}
}

// Ports do not meet in a folder of another user, even if this process may enter it.
func TestMeetingOfAnotherUser(t *testing.T) {
	needRoot(t)
	path := newTemp(t)
	try.OK(t, errors.Join(os.Mkdir(path, 0o700), os.Chown(path, 65534, -1)))
	try.Fails(open(""))(t, subsys.ErrUnavailable)
}

// A new port removes the socket of a process that was killed, and neither one that a process has
// nor the number of the folder.
func TestMeetingAfterKill(t *testing.T) {
	path := newTemp(t)
	a := start(t)
	dead := filepath.Join(path, socketPrefix+"dead")
	ln := try.Get(net.ListenUnix(network, &net.UnixAddr{Name: dead, Net: network}))(t)
	ln.SetUnlinkOnClose(false)
	try.OK(t, ln.Close())
	old := time.Now().Add(-time.Hour)
	try.OK(t, errors.Join(os.Chtimes(dead, old, old), os.Chtimes(a.socket(t), old, old)))
	b := start(t)
	if _, err := os.Lstat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of a killed process: %v", err)
	}
	_, _ = pair(t, b, a)
}

// Folders in different places have different names, and a port of one does not dial into the
// other.
func TestMeetingsApart(t *testing.T) {
	_ = newTemp(t)
	a := start(t)
	_ = newTemp(t)
	b := start(t)
	if a.Port.Reaches(b.Port.Addr()) {
		t.Error("ports of two folders reach each other")
	}
	try.Fails(a.Port.Dial(t.Context(), b.Port.Addr(), newSink(nil)))(t, subsys.ErrAddress)
	c := start(t)
	if !b.Port.Reaches(c.Port.Addr()) {
		t.Error("the name of a folder has changed")
	}
	try.Fails(openOver(ForGroup(os.Getgid()), ""))(t, errors.ErrUnsupported, "a port for a group")
}

// newTemp gives the test a folder for temporary files of its own, and returns the path at which
// ports will meet.
func newTemp(t *testing.T) string {
	dir := try.Get(os.MkdirTemp("/tmp", "rocl-test-"))(t) // the path of a socket must be short
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
	return fmt.Sprintf("%s/rocl-shm-%d", dir, os.Getuid())
}
