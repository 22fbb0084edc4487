// SPDX-License-Identifier: Apache-2.0

//go:build unix

package secretfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/sharedmem"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "0123456789abcdef"

// write makes a file with a mode and a group.
func write(t *testing.T, dir, name string, mode os.FileMode, gid int) string {
	t.Helper()
	path := filepath.Join(dir, name)
	try.OK(t, errors.Join(os.WriteFile(path, []byte(secret), 0o600), os.Chown(path, -1, gid), os.Chmod(path, mode)))
	return path
}

// Promise (Clusters): A key file is accepted as containers and systemd give it, if no other user
// has rights to it. See also TestKeyFiles.
func TestRead(t *testing.T) {
	dir, given := t.TempDir(), t.TempDir()
	t.Setenv(credentials, given)
	own, other := os.Getegid(), os.Getegid()
	if os.Geteuid() == 0 {
		other = 54321
	}
	passwd, _ := os.ReadFile("/etc/passwd")
	group, _ := os.ReadFile("/etc/group")
	isShared := otherIn(string(passwd), string(group), os.Geteuid(), own) != "" // other users of this machine are in the group
	write(t, given, "key", 0o440, other)
	write(t, given, "open", 0o444, other)
	for name, c := range map[string]struct {
		path string
		want error
	}{
		"of this user":             {write(t, dir, "a", 0o600, own), nil},
		"for the process's group":  {write(t, dir, "b", 0o440, own), nil},
		"with rights of fsGroup":   {write(t, dir, "c", 0o660, own), nil},
		"for another group":        {write(t, dir, "d", 0o440, other), ErrInsecure},
		"for everybody":            {write(t, dir, "e", 0o604, own), ErrInsecure},
		"a credential":             {"$CREDENTIALS_DIRECTORY/key", nil},
		"a credential by its path": {filepath.Join(given, "key"), nil},
		"a credential for all":     {"$CREDENTIALS_DIRECTORY/open", ErrInsecure},
		"missing":                  {filepath.Join(dir, "none"), fs.ErrNotExist},
		"no descriptor":            {"fd:999999", errors.ErrUnsupported},
	} {
		if other == own && (strings.Contains(name, "another") || strings.Contains(name, "credential")) {
			continue // only root can give a file to another group
		}
		if isShared && (strings.Contains(name, "process's group") || strings.Contains(name, "fsGroup")) {
			continue
		}
		b, err := Read(c.path, 100, true)
		switch {
		case c.want == errors.ErrUnsupported && err != nil: // any error
		case !errors.Is(err, c.want) || err == nil && (string(b) != secret || c.want != nil):
			t.Errorf("%s: %q, %v", name, b, err)
		case c.want == ErrInsecure && !strings.Contains(err.Error(), "chmod 600"):
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if fi, err := Stat(c.path, 100); err != nil || !fi.Mode().IsRegular() {
				t.Errorf("%s: %v, %v", name, fi, err)
			}
		}
	}
	try.Equal(t, string(try.Get(Read(write(t, dir, "f", 0o604, own), 3, false))(t)), secret[:4], "the beginning of what is no secret")
	try.Rejects(Read(dir, 3, false))(t, "a folder was read")
	t.Setenv(credentials, "")
	if _, err := Read("$CREDENTIALS_DIRECTORY/key", 3, false); err == nil || !strings.Contains(err.Error(), "not set") {
		t.Error(err)
	}
}

// A descriptor of a file can be read again and again, and stays open.
func TestDescriptor(t *testing.T) {
	file := try.Get(os.Open(write(t, t.TempDir(), "a", 0o600, -1)))(t)
	defer file.Close()
	readAgain(t, file)
}

// readAgain reads the secret by all names of f's descriptor.
func readAgain(t *testing.T, f *os.File) {
	t.Helper()
	for _, form := range []string{"fd:%d", "/dev/fd/%d", "/proc/self/fd/%d", "fd:%d"} {
		name := fmt.Sprintf(form, f.Fd())
		try.Equal(t, string(try.Get(Read(name, 100, true))(t)), secret, "%s", name)
	}
}

// A descriptor of a pipe can be read again and again, and stays open. An empty pipe is an error.
func TestPipe(t *testing.T) {
	sharedmem.NeedMemfd(t)
	r, w, err := os.Pipe()
	try.OK(t, err)
	defer r.Close()
	try.Get(w.WriteString(secret))(t)
	w.Close()
	readAgain(t, r)
	empty, w, err := os.Pipe()
	try.OK(t, err)
	defer empty.Close()
	w.Close()
	if b, err := Read(fmt.Sprint("fd:", empty.Fd()), 100, true); err == nil {
		t.Errorf("of an empty pipe: %q", b)
	}
}

func TestOtherIn(t *testing.T) {
	const passwd = "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/:/bin/sh\nalice:x:1001:100::/:/bin/sh\n"
	const group = "root:x:0:\nme:x:1000:\nusers:x:100:me\nteam:x:200:me,root\nclub:x:300:me,alice\nold:x:400:gone\n"
	for gid, want := range map[int]string{0: "", 1000: "", 100: "alice", 200: "", 300: "alice", 400: "gone", 5000: ""} {
		try.Equal(t, otherIn(passwd, group, 1000, gid), want, "group %d", gid)
	}
}
