// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package shm

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// A folder is the folder of the directory's socket. The ports of all contexts that reach the
// directory have a socket there too, so they reach each other whichever namespaces their processes
// are in. An abstract name exists only in one network namespace.
type folder struct {
	f     *os.File
	name  string // in addresses: the same in every namespace, whatever the path there
	owner int    // the user whose processes are trusted as those of this process's user; -1 if none
}

// socketPrefix is before the name of a port in the name of its socket in a folder.
const socketPrefix = ".rocl-shm-"

// openFolder opens a folder for the sockets of ports.
func openFolder(path string) (*folder, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fstat", err)
	}
	h := sha256.New()
	h.Write(boot)
	fmt.Fprintln(h, "folder", uint64(st.Dev), st.Ino)
	d := &folder{f: f, name: shorten(h.Sum(nil)), owner: -1}
	if os.Getuid() == 0 && st.Mode&0o022 == 0 {
		d.owner = int(st.Uid)
	}
	return d, nil
}

// path returns the path of a port's socket.
func (d *folder) path(name string) string { return d.dir() + "/" + socketPrefix + name }

// dir returns the path of the folder by its descriptor. It is short, however long the folder's own
// path is: the kernel takes 107 bytes for a socket. It stays right when the process changes its
// working directory.
func (d *folder) dir() string { return "/proc/self/fd/" + strconv.Itoa(int(d.f.Fd())) }

// trusts reports whether processes of a user may be peers. They are those for which the directory's
// socket serves: of the same user, and of root. Root trusts the owner of the folder.
func (d *folder) trusts(uid uint32) bool {
	return uid == 0 || int(uid) == os.Getuid() || int(uid) == d.owner
}

// listen makes the socket of a port. Only processes that may connect to the directory may connect
// to it.
func (d *folder) listen(name string) (*net.UnixListener, error) {
	sweep(d.dir(), socketPrefix)
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		_, err := onSocket(raw, func(fd int) (any, error) { return nil, unix.Fchmod(fd, 0o600) })
		return err
	}}
	ln, err := lc.Listen(context.Background(), network, d.path(name))
	if err != nil {
		return nil, err
	}
	if d.owner > 0 {
		_ = os.Lchown(d.path(name), d.owner, -1) // or else the owner's processes cannot connect, and this one connects to them
	}
	return ln.(*net.UnixListener), nil
}

func (d *folder) close() { d.f.Close() }
