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

// here names what shares a name space for sockets, and a user: this boot of this
// kernel, this network and user namespace, this user or the group that may attach. In another container it is
// another, and an address with it is not ours to dial.
func (t transport) here() (string, error) {
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

// newName is one for a port that nobody else has.
func newName() string {
	return strconv.Itoa(os.Getpid()) + "-" + strings.ToLower(rand.Text()[:12])
}

// parse takes shm://NODE/NAME apart.
func parse(addr string) (node, name string, err error) {
	rest, ok := strings.CutPrefix(addr, scheme)
	node, name, cut := strings.Cut(rest, "/")
	if !ok || !cut || !plain(node) || !plain(name) {
		return "", "", fmt.Errorf("%w: %q is not %sNODE/NAME", subsys.ErrAddress, addr, scheme)
	}
	return node, name, nil
}

// plain says whether s can be part of an address.
func plain(s string) bool {
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= 40
}

// socket is the abstract name under which a port listens: nothing is in a file
// system, so nothing is left there. @ stands for the zero byte.
func socket(node, name string) string { return "@rocl-shm-" + node + "-" + name }
