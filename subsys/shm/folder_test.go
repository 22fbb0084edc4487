// SPDX-License-Identifier: Apache-2.0

//go:build linux && !portable

package shm

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// Ports meet in a folder, however long its path is and whichever way leads there. A socket in the
// folder can be connected to only by its user, and goes with its port. A dead one is removed, and
// neither one that is young nor one that a process has.
func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 200))
	try.OK(t, os.Mkdir(dir, 0o700))
	other := filepath.Join(t.TempDir(), "link")
	try.OK(t, os.Symlink(dir, other))
	a := try.Get(openFolder(dir))(t)
	defer a.close()
	b := try.Get(openFolder(other))(t)
	defer b.close()
	if elsewhere, err := openFolder(t.TempDir()); err != nil || a.name != b.name || a.name == elsewhere.name {
		t.Errorf("names %s and %s of one folder, %v", a.name, b.name, err)
	} else {
		elsewhere.close()
	}
	old := time.Now().Add(-time.Hour)
	leave := func(name string, at time.Time) {
		ln := try.Get(a.listen(name))(t)
		ln.SetUnlinkOnClose(false)
		try.OK(t, errors.Join(ln.Close(), os.Chtimes(a.path(name), at, at)))
	}
	living := try.Get(b.listen("living"))(t)
	leave("young", time.Now())
	leave("dead", old)
	try.OK(t, os.Chtimes(a.path("living"), old, old))
	sweep(a.dir(), socketPrefix)
	for name, want := range map[string]bool{"living": true, "young": true, "dead": false} {
		fi, err := os.Lstat(filepath.Join(dir, socketPrefix+name))
		try.Equal(t, err == nil, want, "%s: %v", name, err)
		if err == nil && fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v", name, fi.Mode())
		}
	}
	try.Check(t, living.Close())
	try.Fails(os.Lstat(b.path("living")))(t, os.ErrNotExist, "the socket of a port that was closed")
}

// A folder that does not let a port have its socket there takes nothing from the port.
func TestFolderRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	try.OK(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, file + "/none", "/proc/self/fd"} {
		p := port{cfg: subsys.Config{Logger: slog.New(slog.DiscardHandler), Folder: path}}
		node, err := transport{}.nodeName()
		if err != nil {
			t.Skip(err)
		}
		if err := p.listen("", node); err != nil || p.addr.folder != "" || p.beside != nil {
			t.Errorf("%s: %v, %v", path, p.addr, err)
		}
		if err := p.unlisten(); err != nil && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	}
}
