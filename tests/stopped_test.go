// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"strings"
	"testing"
	// the name rocl is that of the command
	"github.com/rocl-go/rocl/internal/testkit/posix"
)

// If the program that serves the node is stopped, a daemon that starts names its process and says
// what to do. When the program goes on, it gives way to the next daemon, and its resources are
// found.
//
// Promise (Takeover): A daemon that starts while the serving process is stopped ends with an error
// that names the process.
func TestStoppedContextServes(t *testing.T) {
	sock := socket(t)
	p := start(t, "-", rocl, "register", "--socket", sock, "name=sink")
	before, _ := find(t, sock, "name=sink")
	p.signal(t, posix.SIGSTOP)
	_, errOut, code := patiently(t, nil, dirserver, "--socket", sock)
	for _, want := range []string{fmt.Sprintf("process %d (", p.Cmd.Process.Pid), "which is stopped", "kill -CONT"} {
		if code != 4 || !strings.Contains(errOut, want) {
			t.Errorf("exit code %d, %q in place of %q", code, errOut, want)
		}
	}
	if strings.Contains(errOut, "nother dirserver is running") {
		t.Errorf("%q, and there is none", errOut)
	}
	p.signal(t, posix.SIGCONT)
	if after, code := findSoon(t, sock, "name=sink"); code != 0 || after[0] != before[0] {
		t.Errorf("when it goes on: %v, before %v", after, before)
	}
	start(t, `"serving"`, dirserver, "--socket", sock)
	if after, code := findSoon(t, sock, "name=sink"); code != 0 || after[0] != before[0] {
		t.Errorf("of the next daemon: %v, before %v", after, before)
	}
}
