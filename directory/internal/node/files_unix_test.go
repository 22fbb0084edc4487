// SPDX-License-Identifier: Apache-2.0

//go:build unix

package node

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A socket that a dead server left is replaced, and no other user can connect to the new one at any
// time.
func TestStaleSocketReplaced(t *testing.T) {
	path := sock(t)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	try.OK(t, err)
	ln.SetUnlinkOnClose(false)
	ln.Close()
	old := unix.Umask(0) // of the whole process: this package's tests do not run in parallel
	s, err := listen(path, false)
	unix.Umask(old)
	try.OK(t, err)
	defer s.close()
	try.Equal(t, try.Get(os.Lstat(path))(t).Mode().Perm(), 0o600, "the socket")
	reach(t, path)
}
