// SPDX-License-Identifier: Apache-2.0

//go:build (linux && portable) || darwin || freebsd || netbsd || openbsd

package shm

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rocl-go/rocl/internal/os/peercred"
	"github.com/rocl-go/rocl/subsys"
)

// The sockets of ports are streams, because macOS has no Unix sockets that keep the bounds of
// messages. All messages of a kind have one length, and the kernel takes and gives so short a
// message as a whole.
const (
	network = "unix"
	spare   = 0
)

// A meeting is where peers find a port: in a folder of the user, which no other user can enter.
type meeting struct{ dir string }

// socketPrefix is before the name of a port in the name of its socket.
const socketPrefix = "s-"

// openMeeting returns the folder of this user, and makes it if there is none.
func openMeeting() (m meeting, err error) {
	m.dir = filepath.Join(os.TempDir(), fmt.Sprintf("rocl-shm-%d", os.Getuid()))
	if err := os.Mkdir(m.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return m, err
	}
	fi, err := os.Lstat(m.dir)
	if err != nil {
		return m, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || !fi.IsDir() || fi.Mode().Perm()&0o077 != 0 || int(st.Uid) != os.Getuid() {
		return m, fmt.Errorf("%s must be a directory of user %d with mode 0700; remove it, or set TMPDIR", m.dir, os.Getuid())
	}
	return m, nil
}

// nodeName returns the name of this node in addresses. It stands for this machine, and for the
// folder of this user, which has a random number of its own.
func (t transport) nodeName() (string, error) {
	if t.group != nil {
		return "", fmt.Errorf("users of a group share memory on Linux alone: %w", errors.ErrUnsupported)
	}
	m, err := openMeeting()
	if err != nil {
		return "", err
	}
	number := filepath.Join(m.dir, "number")
	if err := os.Symlink(rand.Text(), number); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	text, err := os.Readlink(number)
	if err != nil {
		return "", err
	}
	machine, err := os.Hostname() // machines may have a folder in common
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, text, os.Getuid(), binary.NativeEndian.Uint16([]byte{0, 1}), machine)
	return shorten(h.Sum(nil)), nil
}

// listen makes the socket of the port at addr, or at an address of its own if addr is "".
func (p *port) listen(addr, node string) (err error) {
	if err := p.choose(addr, node, ""); err != nil {
		return err
	}
	if p.meeting, err = openMeeting(); err == nil {
		sweep(p.meeting.dir, socketPrefix)
		p.ln, err = net.ListenUnix(network, &net.UnixAddr{Name: p.socket(p.addr.name), Net: network})
	}
	if err != nil {
		return fmt.Errorf("shm: listening on %s: %w: %w", p.addr, subsys.ErrUnavailable, err)
	}
	return nil
}

// unlisten closes what listen has opened.
func (p *port) unlisten() error {
	if p.ln == nil {
		return nil
	}
	return p.ln.Close() // removes the socket
}

// meets reports whether the port of an address can be reached though its node is another one.
func (*port) meets(address) bool { return false }

// path returns the path of the socket of the port with a name.
func (m meeting) path(name string) string { return m.dir + "/" + socketPrefix + name }

// socket is meeting.path.
func (p *port) socket(name string) string { return p.meeting.path(name) }

// peer returns the credentials of the process at the other end of a socket, or an error if that
// process is not of this user, and so may not be a peer.
func (p *port) peer(raw syscall.RawConn, _ bool) (c peercred.Credentials, err error) {
	c, err = onSocket(raw, peercred.Of)
	switch {
	case err != nil:
		return c, fmt.Errorf("reading the credentials of the peer: %w", err)
	case int(c.UID) != os.Getuid():
		return c, fmt.Errorf("the peer is of user %d, not %d", c.UID, os.Getuid())
	}
	return c, nil
}
