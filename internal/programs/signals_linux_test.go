// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestStartUnblocked(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var usr1, old, after unix.Sigset_t
	usr1.Val[0] = 1 << (unix.SIGUSR1 - 1)
	try.OK(t, unix.PthreadSigmask(unix.SIG_BLOCK, &usr1, &old))
	defer func() { try.Check(t, unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)) }()
	var out strings.Builder
	cmd := exec.Command("grep", "SigBlk", "/proc/self/status")
	cmd.Stdout = &out
	p := try.Get(Start(cmd))(t)
	<-p.Ended()
	if got, want := out.String(), "SigBlk:\t0000000000000000\n"; got != want {
		t.Errorf("the program began with %q", got)
	}
	try.OK(t, unix.PthreadSigmask(unix.SIG_BLOCK, nil, &after))
	if after.Val[0]&usr1.Val[0] == 0 {
		t.Error("the thread does not block SIGUSR1 any more")
	}
}
