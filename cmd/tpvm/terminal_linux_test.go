// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// terminal returns both ends of a new terminal.
func terminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { user.Close() })
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skip(err)
	}
	n, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Skip(err)
	}
	if program, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { program.Close() })
	return user, program
}

// A script that runs a program ends together with it, when the user of a terminal types ctrl-C or
// ctrl-\ there, and when the terminal is closed.
func TestRunOnTerminal(t *testing.T) {
	for how, end := range map[string]func(*os.File) error{
		"ctrl-C":  func(user *os.File) error { _, err := user.Write([]byte{3}); return err },
		"ctrl-\\": func(user *os.File) error { _, err := user.Write([]byte{28}); return err },
		"closed":  (*os.File).Close,
	} {
		t.Run(how, func(t *testing.T) {
			s, w := newShell(t), newWrapped(t)
			user, program := terminal(t)
			cmd := exec.Command("/proc/self/exe", w.run()...)
			cmd.Env = s.env
			cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			try.OK(t, cmd.Start())
			defer cmd.Process.Kill()
			program.Close()
			ended := w.begun()
			limit := time.AfterFunc(long, func() { _ = cmd.Process.Kill() })
			defer limit.Stop()
			for lines := bufio.NewScanner(user); !strings.HasSuffix(next(t, lines), "] runs"); {
			}
			try.OK(t, end(user))
			if how != "closed" {
				go io.Copy(io.Discard, user) // what tpvm prints does not make it wait
			}
			ended()
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); how == "ctrl-C" && code != exitInterrupted {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
