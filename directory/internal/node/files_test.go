// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A server removes nothing from the socket's path except a socket that no process serves.
//
// Promise (Directory): Serving removes only a socket that no process serves. The files beside it
// are not used through symbolic links. See also TestSideFiles.
func TestServingRemovesOnlyStaleSockets(t *testing.T) {
	for _, c := range []struct {
		what string
		put  func(t *testing.T, path string)
	}{
		{"a file", func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("a key"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"an empty folder", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		{"a link to a file", func(t *testing.T, path string) {
			if err := os.WriteFile(path+".target", []byte("a key"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path+".target", path); err != nil {
				t.Fatal(err)
			}
		}},
		{"a pipe", func(t *testing.T, path string) {
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"the socket of another program", func(t *testing.T, path string) {
			ln, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
		}},
		{"a datagram socket", func(t *testing.T, path string) {
			pc, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { pc.Close() })
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			path := sock(t)
			c.put(t, path)
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, daemon := range []bool{false, true} {
				names(t, refused(t, path, daemon), path)
			}
			names(t, serve(t, path+".other", false).OpenSecond(path), path)
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("it was %v and is %v: %v", before, after, err)
			}
		})
	}
}

// The files beside the socket are not read or written through a symbolic link, and a file of
// another kind is refused.
func TestSideFiles(t *testing.T) {
	const kept = "kept"
	for _, suffix := range []string{".lock", ".node"} {
		for what, put := range map[string]func(side, target string) error{
			"a link to a file": func(side, target string) error { return os.Symlink(target, side) },
			"a link to nothing": func(side, target string) error {
				return errors.Join(os.Remove(target), os.Symlink(target, side))
			},
			"a pipe":   func(side, target string) error { return syscall.Mkfifo(side, 0o600) },
			"a folder": func(side, target string) error { return os.Mkdir(side, 0o700) },
		} {
			t.Run(suffix+" is "+what, func(t *testing.T) {
				path := sock(t)
				side, target := path+suffix, filepath.Join(t.TempDir(), "target")
				if err := os.WriteFile(target, []byte(kept), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := put(side, target); err != nil {
					t.Fatal(err)
				}
				before, was := os.ReadFile(target)
				names(t, refused(t, path, false), side)
				names(t, serve(t, path+".other", false).OpenSecond(path), side)
				if after, is := os.ReadFile(target); string(after) != string(before) || (is == nil) != (was == nil) {
					t.Errorf("the target was %q, %v and is %q, %v", before, was, after, is)
				}
			})
		}
	}
}

// A file that is no node's identity is not replaced by one, also if the path is a server's second
// path.
func TestForeignNodeFile(t *testing.T) {
	path := sock(t)
	if err := os.WriteFile(path+".node", []byte("my notes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	names(t, refused(t, path, false), path+".node")
	other := serve(t, path+".other", false)
	names(t, other.OpenSecond(path), path+".node")
	if b, err := os.ReadFile(path + ".node"); string(b) != "my notes\n" {
		t.Errorf("it is %q now: %v", b, err)
	}
	if err := os.Remove(path + ".node"); err != nil {
		t.Fatal(err)
	}
	if err := other.OpenSecond(path); err != nil {
		t.Error(err)
	}
}

// A socket that a dead server left is replaced, and no other user can connect to the new one at any
// time.
func TestStaleSocketReplaced(t *testing.T) {
	path := sock(t)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	old := unix.Umask(0) // of the whole process: this package's tests do not run in parallel
	s, err := listen(path, false)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if fi, err := os.Lstat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v: %v", fi, err)
	}
	reach(t, path)
}

// A path that begins with @ means a file, not a name in the kernel's abstract space, which any user
// may take.
func TestNoAbstractNames(t *testing.T) {
	t.Chdir(t.TempDir())
	serve(t, "@d.sock", false)
	if fi, err := os.Lstat("@d.sock"); err != nil || fi.Mode().Type() != os.ModeSocket {
		t.Errorf("%v: %v", fi, err)
	}
	reach(t, "@d.sock")
}
