// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
)

// subreaper checks that a process to which orphans come reaps them, and that the ends of its own
// children are not lost.
func subreaper() {
	fail := func(what string, err error) {
		fmt.Fprintln(os.Stderr, what, err)
		os.Exit(1)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fail("subreaper", err)
	}
	defer ReapOrphans()()
	for range 10 {
		p, err := Start(exec.Command("/bin/sh", "-c", "(true & true) & (true & true) & exit 3"))
		if err != nil {
			fail("start", err)
		}
		var exit *exec.ExitError
		if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
			fail("the status of the program's own process", err)
		}
	}
	for { // until no child is left
		if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); errors.Is(err, unix.ECHILD) {
			return
		}
		time.Sleep(time.Millisecond) // no event tells that the reaper has reaped
	}
}

// Promise (Commands): As process 1, the commands reap orphans and lose no exit status. See also
// TestPodAsProcessOne.
func TestOrphansAreReaped(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "BE_PROGRAM=subreaper")
	limit := time.AfterFunc(eventually.Timeout, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
