// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Promise (Directory): A process of another user is refused, whatever the mode of the socket is.
// Its error matches `fs.ErrPermission` and names both users. See also TestRefusedUser.
func TestOtherUserRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	sock := socket(t)
	d := start(t, `"serving"`, dirserver, "--socket", sock)
	for path, mode := range map[string]os.FileMode{filepath.Dir(sock): 0o711, sock: 0o777} {
		try.OK(t, os.Chmod(path, mode))
	}
	refused := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		refused <- func() error {
			const nobody = 65534
			if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), nobody, ^uintptr(0)); e != 0 {
				return e
			}
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: sock}); err != nil {
				return err
			}
			f := os.NewFile(uintptr(fd), "refused")
			defer f.Close()
			if b, err := io.ReadAll(f); err != nil || !strings.Contains(string(b), "of user 65534") {
				return fmt.Errorf("was told %q, %v, in place of why and the end", b, err)
			}
			return nil
		}()
	}()
	try.OK(t, <-refused)
	if l := d.until(t, "refused"); !strings.Contains(l, "user 65534") {
		t.Errorf("logged %s", l)
	}
	if _, code := find(t, sock, "a=b"); code != 1 {
		t.Errorf("find of the user's own: exit code %d", code)
	}
}
