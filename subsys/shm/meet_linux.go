// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package shm

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/rocl-go/rocl/subsys"
)

// The sockets of ports keep the bounds of messages. spare is how much longer than a message a
// buffer is, to notice a longer one.
const (
	network = "unixpacket"
	spare   = 1
)

// A meeting is where peers find a port, beside its abstract name.
type meeting struct {
	folder *folder // nil if there is none
}

// nodeName returns the name of this node in addresses. It stands for this boot of the kernel, this
// network and user namespace, and this user or the group that may connect. A process for which the
// name is another one cannot dial the abstract sockets of this node.
func (t transport) nodeName() (string, error) {
	boot, err := bootID()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	h.Write(boot)
	for _, ns := range []string{"net", "user"} {
		id, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, id)
	}
	if t.group != nil {
		fmt.Fprintln(h, "group", *t.group)
	} else {
		fmt.Fprintln(h, os.Getuid())
	}
	return shorten(h.Sum(nil)), nil
}

// bootID returns the boot of this kernel and, on a big-endian machine, that it is one: numbers in
// shared memory have the machine's order, and qemu-user runs processes of the other one.
func bootID() ([]byte, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		id = append(id, "big\n"...)
	}
	return id, err
}

// listen makes the sockets of the port at addr, or at an address of its own if addr is "".
func (p *port) listen(addr, node string) error {
	if p.cfg.Folder != "" {
		d, err := openFolder(p.cfg.Folder)
		if err != nil {
			// Cause: the folder of the directory's socket cannot be written. Remedy: make it
			// writable, if containers share it.
			p.cfg.Logger.Warn("shm: contexts in other containers may not reach this one", "folder", p.cfg.Folder, "err", err)
		}
		p.meeting.folder = d
	}
	folder := ""
	if p.meeting.folder != nil {
		folder = p.meeting.folder.name
	}
	err := p.choose(addr, node, folder)
	if err != nil {
		return err
	}
	p.ln, err = net.ListenUnix(network, &net.UnixAddr{Name: p.socket(p.addr.name), Net: network})
	if err != nil {
		return fmt.Errorf("shm: listening on %s: %w: %w", p.addr, subsys.ErrUnavailable, err)
	}
	if p.addr.folder == "" {
		return nil
	}
	if p.beside, err = p.meeting.folder.listen(p.addr.name); err != nil {
		p.cfg.Logger.Warn("shm: contexts in other containers may not reach this one", "folder", p.cfg.Folder, "err", err)
		p.addr.folder = ""
	}
	return nil
}

// unlisten closes what listen has opened.
func (p *port) unlisten() (err error) {
	if p.ln != nil {
		err = p.ln.Close()
	}
	if p.beside != nil {
		err = errors.Join(err, p.beside.Close()) // removes the socket
	}
	if p.meeting.folder != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.meeting.folder.close()
	}
	return err
}

// meets reports whether the port of an address has a socket in the folder of this port.
func (p *port) meets(a address) bool {
	return p.meeting.folder != nil && a.folder == p.meeting.folder.name
}

// path returns the path of the socket of the port with a name, in the folder.
func (m meeting) path(name string) string { return m.folder.path(name) }

// socket returns the abstract name at which the port with a name on this node listens. @ stands for
// the zero byte. The name is in no file system, so a process that is killed leaves nothing behind.
func (p *port) socket(name string) string { return "@rocl-shm-" + p.addr.node + "-" + name }
