// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A daemon that does not run as root takes its key from files as containers and systemd make them.
func TestKeyFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make files for another user")
	}
	const user, group, other = 54321, 54322, 54323
	try.OK(t, os.Chmod(filepath.Dir(dirserver), 0o711))
	const key = "0123456789abcdef0123456789abcdef\n"
	secrets := filepath.Dir(socket(t))
	try.OK(t, os.Chmod(secrets, 0o711))
	write := func(name string, mode os.FileMode, gid int) string {
		path := filepath.Join(secrets, name)
		try.OK(t, errors.Join(os.WriteFile(path, []byte(key), 0o600), os.Chown(path, 0, gid), os.Chmod(path, mode)))
		return path
	}
	opened := func(path string) *os.File {
		f := try.Get(os.Open(path))(t)
		t.Cleanup(func() { f.Close() })
		return f
	}
	piped := func() *os.File {
		r, w, err := os.Pipe()
		try.OK(t, err)
		t.Cleanup(func() { r.Close() })
		_, err = w.WriteString(key)
		try.OK(t, errors.Join(err, w.Close()))
		return r
	}
	for name, c := range map[string]struct {
		file   string
		three  *os.File // descriptor 3 of the daemon; may be nil
		reason string   // "" if the daemon serves
	}{
		"0440 of root and the group": {file: write("a", 0o440, group)},
		"0660 as fsGroup":            {file: write("b", 0o660, group)},
		"root's file, opened":        {file: "fd:3", three: opened(write("c", 0o600, 0))},
		"a pipe":                     {file: "/dev/fd/3", three: piped()},
		"for everybody":              {file: write("d", 0o444, group), reason: "insecure mode (-r--r--r--)"},
		"for everybody, opened":      {file: "fd:3", three: opened(write("e", 0o444, 0)), reason: "insecure mode (-r--r--r--)"},
		"for another group":          {file: write("f", 0o440, other), reason: "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sock := socket(t)
			try.OK(t, os.Chown(filepath.Dir(sock), user, user))
			cmd := exec.Command(dirserver, "--socket", sock, "--bind", freePort(t), "--key-file", c.file)
			cmd.Dir, cmd.Env = filepath.Dir(sock), []string{"HOME=" + filepath.Dir(sock)}
			posix.As(cmd, user, user, group)
			if c.three != nil {
				cmd.ExtraFiles = []*os.File{c.three}
			}
			if c.reason == "" {
				startCommand(t, `"serving"`, cmd)
				return
			}
			_, errOut, code := runCommand(t, eventually.Timeout, cmd)
			if code != 2 || !strings.Contains(errOut, c.reason) {
				t.Errorf("exit code %d: %s", code, errOut)
			}
		})
	}
}
