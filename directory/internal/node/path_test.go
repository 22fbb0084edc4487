// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A URL is refused as the path of a socket, and leaves no file and no folder.
func TestURLIsNoPath(t *testing.T) {
	t.Chdir(filepath.Dir(sock(t))) // wine cannot remove a TempDir
	for _, url := range []string{"unix:d.sock", "unix:///d.sock", "tcp://127.0.0.1:0"} {
		if err := refused(t, url, false); err != nil && !strings.Contains(err.Error(), "a URL") {
			t.Errorf("serving %s: %v", url, err)
		}
		if made, err := os.ReadDir("."); err != nil || len(made) > 0 {
			t.Errorf("serving %s made %v (%v)", url, made, err)
		}
	}
	if _, err := Dial(t.Context(), "unix:d.sock"); err == nil || errors.Is(err, ErrNoDirectory) {
		t.Errorf("connecting to a URL: %v", err)
	}
	try.Fails(Dial(t.Context(), "tcp://127.0.0.1:1?node=nowhere.node"))(t, os.ErrNotExist, "connecting without the file of the node's key")
}

// Addresses that no directory can have are refused before anything is done.
func TestCheckAddresses(t *testing.T) {
	long := "/" + strings.Repeat("x", maxPath)
	for _, c := range []struct {
		name  string
		check func(string) error
		good  []string
		bad   []string
	}{
		{"CheckSocket", CheckSocket, []string{"d.sock", "/run/d.sock", "@d", long[:maxPath]}, []string{long, "@" + long[:maxPath-2], "unix:d.sock", "tcp://127.0.0.1:1"}},
		{"CheckListenTCP", CheckListenTCP, []string{"tcp://127.0.0.1:0", "tcp://localhost:1", "tcp://[::1]:65535"},
			[]string{"", "127.0.0.1:1", "tcp://", "tcp://127.0.0.1", "tcp://:1", "tcp://127.0.0.1:", "tcp://127.0.0.1:x", "tcp://127.0.0.1:65536", "tcp://10.0.0.7:1", "tcp://127.0.0.1:1?node=x", "tcp://127.0.0.1:1/x"}},
		{"CheckDial", CheckDial, []string{"d.sock", "tcp://127.0.0.1:1?node=x", "tcp://h:1?node=/x/y"},
			[]string{long, "unix:d.sock", "tcp://127.0.0.1:1", "tcp://127.0.0.1?node=x", "tcp://127.0.0.1:x?node=x", "tcp://127.0.0.1:65536?node=x", "tcp://127.0.0.1:1?nodes=x", "tcp://%zz"}},
	} {
		for _, a := range c.good {
			try.Check(t, c.check(a), "%s(%.40q)", c.name, a)
		}
		for _, a := range c.bad {
			if c.check(a) == nil {
				t.Errorf("%s(%.40q) is nil", c.name, a)
			}
		}
	}
}
