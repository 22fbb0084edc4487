// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// foreign has what may lie at the path of a file of a directory, and is none. target is a file.
var foreign = map[string]func(path, target string) error{
	"a folder":         func(path, _ string) error { return os.Mkdir(path, 0o700) },
	"a link to a file": func(path, target string) error { return posix.Symlink(target, path) },
	"a link to nothing": func(path, target string) error {
		return errors.Join(os.Remove(target), posix.Symlink(target, path))
	},
	"a pipe": func(path, _ string) error { return posix.Mkfifo(path) },
}

// A server removes nothing from the socket's path except a socket that no process serves. The files
// beside the socket are not read or written through a symbolic link, and a file of another kind is
// refused. A client's error says what lies in place of a socket.
//
// Promise (Directory): Serving removes only a socket that no process serves. The files beside it
// are not used through symbolic links.
func TestForeignFiles(t *testing.T) {
	atSocket := maps.Clone(foreign)
	maps.Copy(atSocket, map[string]func(path, target string) error{
		"a file": func(path, _ string) error { return os.WriteFile(path, []byte("a key"), 0o600) },
		"the socket of another program": func(path, _ string) error {
			ln, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { ln.Close() })
			}
			return err
		},
		"a datagram socket": func(path, _ string) error {
			pc, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err == nil {
				t.Cleanup(func() { pc.Close() })
			}
			return err
		},
	})
	for suffix, put := range map[string]map[string]func(path, target string) error{"": atSocket, lockSuffix: foreign, nodeSuffix: foreign} {
		for what, put := range put {
			t.Run("PATH"+suffix+" is "+what, func(t *testing.T) {
				path := sock(t)
				at, target := path+suffix, sock(t)
				try.OK(t, os.WriteFile(target, []byte("kept"), 0o600))
				err := put(at, target)
				if posix.IsMissing(err) {
					t.Skip(err)
				}
				try.OK(t, err)
				before, err := os.Lstat(at)
				try.OK(t, err)
				content, was := os.ReadFile(target)
				for _, daemon := range []bool{false, true} {
					names(t, refused(t, path, daemon), at)
				}
				names(t, serve(t, path+".other", false).OpenSecond(path), at)
				if after, err := os.Lstat(at); err != nil || !os.SameFile(before, after) {
					t.Errorf("it was %v and is %v: %v", before, after, err)
				}
				if after, is := os.ReadFile(target); string(after) != string(content) || (is == nil) != (was == nil) {
					t.Errorf("the target was %q, %v and is %q, %v", content, was, after, is)
				}
				if before.Mode()&(fs.ModeSymlink|fs.ModeSocket) != 0 || suffix != "" {
					return
				}
				_, err = Dial(t.Context(), path)
				if !errors.Is(err, ErrNoDirectory) || !errors.Is(err, ErrOccupied) || posix.IsUnix && !strings.Contains(err.Error(), "it is not a socket") {
					t.Errorf("connecting to %s: %v", what, err)
				}
				names(t, err, path)
			})
		}
	}
}

// A file that is no node's identity is not replaced by one, also if the path is a server's second
// path.
func TestForeignNodeFile(t *testing.T) {
	path := sock(t)
	try.OK(t, os.WriteFile(path+".node", []byte("my notes\n"), 0o600))
	names(t, refused(t, path, false), path+".node")
	other := serve(t, path+".other", false)
	names(t, other.OpenSecond(path), path+".node")
	if b, err := os.ReadFile(path + ".node"); string(b) != "my notes\n" {
		t.Errorf("it is %q now: %v", b, err)
	}
	try.OK(t, os.Remove(path+".node"))
	try.Check(t, other.OpenSecond(path))
}

// A file that has replaced another one is not taken for that one, even if nothing has compared the
// first one before.
func TestReplacedFile(t *testing.T) {
	path := sock(t)
	try.OK(t, writeFile(path, []byte("one")))
	was := try.Get(identify(path))(t)
	try.OK(t, writeFile(path, []byte("two")))
	if isFile(path, was) {
		t.Error("the second file is taken for the first one")
	}
	if !isFile(path, try.Get(identify(path))(t)) {
		t.Error("the second file is not taken for itself")
	}
}

// A path that begins with @ means a file, not a name in the kernel's abstract space, which any user
// may take.
func TestNoAbstractNames(t *testing.T) {
	t.Chdir(filepath.Dir(sock(t)))
	serve(t, "@d.sock", false)
	try.Get(os.Lstat("@d.sock"))(t)
	reach(t, "@d.sock")
}

// A file that is being read can be removed. It has gone at the latest when its reader closes it.
func TestReadWhileRemoved(t *testing.T) {
	path := sock(t)
	try.OK(t, writeFile(path, []byte("x")))
	f := try.Get(openToRead(path))(t)
	defer f.Close()
	try.OK(t, unlink(path))
	try.Equal(t, string(try.Get(io.ReadAll(f))(t)), "x")
	try.OK(t, f.Close())
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
