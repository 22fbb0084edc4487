// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Two signals at once, as GNU timeout sends them, end a daemon and a command as cleanly as one
// does.
//
// Promise (Commands): Two signals end a daemon or command as cleanly as one. A daemon goes on when
// the reader of its log has gone. See also TestLogReaderGone.
func TestSignalTwice(t *testing.T) {
	for range 10 {
		sock := socket(t)
		d := start(t, `"serving"`, dirserver, "--socket", sock)
		try.OK(t, d.Cmd.Process.Signal(syscall.SIGTERM))
		d.until(t, `"stopping"`)
		_ = d.Cmd.Process.Signal(syscall.SIGTERM) // unless the daemon has ended already
		_ = d.Cmd.Process.Signal(syscall.SIGINT)
		for range d.Lines {
		}
		try.Check(t, d.Wait(), "dirserver")
		if _, err := os.Stat(sock); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the socket is left behind: %v", err)
		}
	}
	sock := socket(t)
	r := start(t, "receiving", rocl, "recv", "--socket", sock, "-v", "name=there") // this command serves the node
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGTERM} {
		_ = r.Cmd.Process.Signal(s)
	}
	for range r.Lines {
	}
	try.Check(t, r.Wait(), "rocl recv")
}

// A daemon goes on when the reader of its log has ended.
func TestLogReaderGone(t *testing.T) {
	sock := socket(t)
	cmd := exec.Command(dirserver, "--socket", sock, "--log-level", "debug")
	log, w, err := os.Pipe()
	try.OK(t, err)
	cmd.Stderr = w
	d := launchUnmerged(t, cmd)
	w.Close()
	said := bufio.NewScanner(log)
	for said.Scan() && !strings.Contains(said.Text(), `"serving"`) {
	}
	log.Close()
	for range 3 { // each is logged when it ends
		if _, code := run(t, "", rocl, "find", "--socket", sock); code != 1 {
			t.Fatalf("find: exit code %d", code)
		}
	}
	d.stop(t)
	try.Fails(os.Stat(sock))(t, fs.ErrNotExist, "the socket is left behind")
}
