// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/rocl-go/rocl/subsys"
)

const scheme = "shm://"

// nodeName returns the name of this node in addresses. It stands for this boot of the kernel, this
// network and user namespace, and this user or the group that may connect. Another container has
// another name, and addresses with another name cannot be dialled from here.
func (t transport) nodeName() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
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
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// newName returns a unique name for a port.
func newName() string {
	return strconv.Itoa(os.Getpid()) + "-" + strings.ToLower(rand.Text()[:12])
}

// parse splits an address shm://NODE/NAME.
func parse(addr string) (node, name string, err error) {
	path, ok := strings.CutPrefix(addr, scheme)
	node, name, cut := strings.Cut(path, "/")
	if !ok || !cut || !isPlain(node) || !isPlain(name) {
		return "", "", fmt.Errorf("%w: %q is not %sNODE/NAME", subsys.ErrAddress, addr, scheme)
	}
	return node, name, nil
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
