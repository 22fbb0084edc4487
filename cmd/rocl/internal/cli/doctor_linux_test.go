// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Low limits of a process are findings. Only Linux changes those of another process.
func TestDoctorLimits(t *testing.T) {
	sock := freeaddr.Socket(t)
	p := be(t, "register", "name=here", "--socket", sock)
	low := func(what int, n uint64) {
		try.OK(t, unix.Prlimit(p.Cmd.Process.Pid, what, &unix.Rlimit{Cur: n, Max: n}, nil))
	}
	low(unix.RLIMIT_NOFILE, 64)
	one(t, sock, "limits", "64 descriptors")
	low(unix.RLIMIT_FSIZE, 4096)
	if found, _ := doctor(t, sock); !strings.Contains(found["limits"].Text, "4096 bytes") {
		t.Errorf("%+v", found)
	}
}
