// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"crypto/rand"
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
