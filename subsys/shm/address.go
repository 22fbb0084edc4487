// SPDX-License-Identifier: Apache-2.0

//go:build linux && !portable

package shm

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/rocl-go/rocl/subsys"
)

const scheme = "shm://"

// An address is shm://NODE/NAME, or shm://NODE/FOLDER/NAME of a port that listens in a folder too.
type address struct{ node, folder, name string }

func (a address) String() string {
	if a.folder == "" {
		return scheme + a.node + "/" + a.name
	}
	return scheme + a.node + "/" + a.folder + "/" + a.name
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

// shorten returns the part of a hash that is in addresses.
func shorten(hash []byte) string { return hex.EncodeToString(hash[:8]) }

// newName returns a unique name for a port.
func newName() string {
	return strconv.Itoa(os.Getpid()) + "-" + strings.ToLower(rand.Text()[:12])
}

// parse splits the text of an address.
func parse(addr string) (a address, err error) {
	path, ok := strings.CutPrefix(addr, scheme)
	parts := strings.Split(path, "/")
	for _, p := range parts {
		ok = ok && isPlain(p)
	}
	switch {
	case ok && len(parts) == 2:
		return address{node: parts[0], name: parts[1]}, nil
	case ok && len(parts) == 3:
		return address{parts[0], parts[1], parts[2]}, nil
	}
	return a, fmt.Errorf("%w: %q is not %sNODE/NAME or %[3]sNODE/FOLDER/NAME", subsys.ErrAddress, addr, scheme)
}

// isPlain reports whether s can be a part of an address.
func isPlain(s string) bool {
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= 40
}

// socket returns the abstract name at which a port listens. @ stands for the zero byte. The name is
// in no file system, so a process that is killed leaves nothing behind.
func socket(node, name string) string { return "@rocl-shm-" + node + "-" + name }
