// SPDX-License-Identifier: Apache-2.0

//go:build linux && !portable

package shm

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

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

const (
	socketPrefix = ".rocl-shm-" // of the sockets in a folder, before the name of the port
	sweepMost    = 64           // sockets at which a new port looks
	sweepAge     = time.Minute  // of a socket that may be removed: a younger one may not be bound yet
)

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

// path returns the path of a port's socket. A path by the folder's descriptor is short, however
// long the path of the folder is: the kernel takes 107 bytes. It stays right when the process
// changes its working directory.
func (d *folder) path(name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(d.f.Fd())) + "/" + socketPrefix + name
}

// trusts reports whether processes of a user may be peers. They are those for which the directory's
// socket serves: of the same user, and of root. Root trusts the owner of the folder.
func (d *folder) trusts(uid uint32) bool {
	return uid == 0 || int(uid) == os.Getuid() || int(uid) == d.owner
}

// listen makes the socket of a port. Only processes that may connect to the directory may connect
// to it.
func (d *folder) listen(name string) (*net.UnixListener, error) {
	d.sweep()
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		_, err := onSocket(raw, func(fd int) (any, error) { return nil, unix.Fchmod(fd, 0o600) })
		return err
	}}
	ln, err := lc.Listen(context.Background(), "unixpacket", d.path(name))
	if err != nil {
		return nil, err
	}
	if d.owner > 0 {
		_ = os.Lchown(d.path(name), d.owner, -1) // or else the owner's processes cannot connect, and this one connects to them
	}
	return ln.(*net.UnixListener), nil
}

// sweep removes sockets that killed processes have left. It looks at a sample, so the time does not
// depend on the number of contexts, and few dead sockets remain among many living ones.
func (d *folder) sweep() {
	names, err := os.ReadDir("/proc/self/fd/" + strconv.Itoa(int(d.f.Fd())))
	if err != nil {
		return
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	looked := 0
	for _, e := range names {
		name, ok := strings.CutPrefix(e.Name(), socketPrefix)
		if !ok {
			continue
		}
		if looked++; looked > sweepMost {
			return
		}
		if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > sweepAge && isDead(d.path(name)) {
			_ = os.Remove(d.path(name))
		}
	}
}

// isDead reports whether no process has the socket at a path. It connects with another type of
// socket, which the kernel refuses with EPROTOTYPE if a process has the socket. That process does
// not notice.
func isDead(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) == unix.ECONNREFUSED
}

func (d *folder) close() { d.f.Close() }
