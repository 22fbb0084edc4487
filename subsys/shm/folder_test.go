// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// Ports meet in a folder, however long its path is and whichever way leads there. A socket in the
// folder can be connected to only by its user, and goes with its port. A dead one is removed, and
// neither one that is young nor one that a process has.
func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 200))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, other); err != nil {
		t.Fatal(err)
	}
	a, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	b, err := openFolder(other)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if elsewhere, err := openFolder(t.TempDir()); err != nil || a.name != b.name || a.name == elsewhere.name {
		t.Errorf("names %s and %s of one folder, %v", a.name, b.name, err)
	} else {
		elsewhere.close()
	}
	old := time.Now().Add(-time.Hour)
	leave := func(name string, at time.Time) {
		ln, err := a.listen(name)
		if err != nil {
			t.Fatal(err)
		}
		ln.SetUnlinkOnClose(false)
		if err := errors.Join(ln.Close(), os.Chtimes(a.path(name), at, at)); err != nil {
			t.Fatal(err)
		}
	}
	living, err := b.listen("living")
	if err != nil {
		t.Fatal(err)
	}
	leave("young", time.Now())
	leave("dead", old)
	if err := os.Chtimes(a.path("living"), old, old); err != nil {
		t.Fatal(err)
	}
	a.sweep()
	for name, want := range map[string]bool{"living": true, "young": true, "dead": false} {
		fi, err := os.Lstat(filepath.Join(dir, socketPrefix+name))
		if (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v", name, fi.Mode())
		}
	}
	if err := living.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(b.path("living")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of a port that was closed: %v", err)
	}
}

// A folder that does not let a port have its socket there takes nothing from the port.
func TestFolderRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
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
