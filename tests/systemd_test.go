// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// units is the folder of the unit files.
const units = "../packaging/systemd"

// systemd accepts the unit files.
func TestUnitFiles(t *testing.T) { verifyUnits(t, units, "/usr/local/bin/dirserver", dirserver) }

// verifyUnits lets systemd check the unit files in a folder. The daemon that they name is at
// another path.
func verifyUnits(t *testing.T, units, named, dirserver string) {
	t.Helper()
	tool := need(t, "systemd-analyze")
	for _, manager := range []string{"user", "system"} {
		text := try.Get(os.ReadFile(filepath.Join(units, manager, "dirserver.service")))(t)
		file := filepath.Join(t.TempDir(), "dirserver.service")
		if !strings.Contains(string(text), "ExecStart="+named+"\n") {
			t.Fatalf("the unit of the %s does not start %s:\n%s", manager, named, text)
		}
		text = []byte(strings.Replace(string(text), named, dirserver, 1))
		try.OK(t, os.WriteFile(file, text, 0o600))
		cmd := exec.Command(tool, "verify", "--man=no", "--"+manager, file)
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+t.TempDir(), "SYSTEMD_LOG_LEVEL=warning")
		out, errOut, code := runCommand(t, eventually.Timeout, cmd)
		if code != 0 || strings.Contains(out+errOut, "dirserver.service") {
			t.Errorf("%s: exit code %d, %s%s", manager, code, out, errOut)
		}
	}
}

// need returns the path of a tool, and skips the test where it is not installed.
func need(t *testing.T, tool string) string {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		t.Skip(err)
	}
	return path
}

// A manager is a user manager of systemd of the test's own, in a mount namespace.
type manager struct {
	t   *testing.T
	env []string
	dir string // for settings of the unit
	pid string
}

// newManager starts a user manager that knows the unit dirserver.service of a file. It skips the
// test where none can run.
func newManager(t *testing.T, unit string) *manager {
	t.Helper()
	need(t, "systemctl")
	need(t, "nsenter")
	unshare := need(t, "unshare")
	const systemd = "/usr/lib/systemd/systemd"
	if _, err := os.Stat(systemd); err != nil || os.Geteuid() != 0 {
		t.Skipf("root starts %s only: %v", systemd, err)
	}
	dir := filepath.Dir(socket(t))
	m := &manager{t: t, env: append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "XDG_CONFIG_HOME="+dir+"/config", "DBUS_SESSION_BUS_ADDRESS="), dir: dir + "/config/systemd/user/dirserver.service.d"}
	try.OK(t, os.MkdirAll(m.dir, 0o700))
	text := try.Get(os.ReadFile(unit))(t)
	try.OK(t, os.WriteFile(filepath.Join(filepath.Dir(m.dir), "dirserver.service"), text, 0o600))
	// systemd starts a user manager only on a machine that it has booted, which has this folder.
	booted := "mount -t tmpfs none /run/systemd && mkdir /run/systemd/system && exec " + systemd + " --user --unit=basic.target"
	cmd := exec.Command(unshare, "--mount", "sh", "-c", booted)
	cmd.Env = m.env
	p := launch(t, cmd)
	m.pid = strconv.Itoa(cmd.Process.Pid)
	t.Cleanup(func() {
		_, _ = m.systemctl("exit")
		select {
		case <-p.Ended():
		case <-time.After(eventually.Timeout):
			t.Error("the user manager does not end")
		}
	})
	eventually.True(t, "the user manager runs", func() bool {
		select {
		case <-p.Ended():
			t.Skip("no user manager can run here")
		default:
		}
		out, _ := m.systemctl("is-system-running")
		return strings.HasPrefix(out, "running") || strings.HasPrefix(out, "degraded")
	})
	return m
}

// systemctl runs systemctl in the manager's namespace, and returns what it has printed.
func (m *manager) systemctl(args ...string) (out string, code int) {
	cmd := exec.Command("nsenter", append([]string{"--mount", "--target", m.pid, "systemctl", "--user"}, args...)...)
	cmd.Env = m.env
	out, errOut, code := runCommand(m.t, eventually.Timeout, cmd)
	return out + errOut, code
}

// start starts the unit with a daemon and its arguments. RestartSec is short, to save time.
func (m *manager) start(dirserver string, args ...string) {
	m.t.Helper()
	text := fmt.Sprintf("[Service]\nRestartSec=10ms\nExecStart=\nExecStart=%s %s\n", dirserver, strings.Join(args, " "))
	try.OK(m.t, os.WriteFile(filepath.Join(m.dir, "test.conf"), []byte(text), 0o600))
	for _, c := range []string{"daemon-reload", "reset-failed", "start --no-block dirserver"} {
		if out, code := m.systemctl(strings.Fields(c)...); code != 0 {
			m.t.Fatalf("systemctl %s: exit code %d, %s", c, code, out)
		}
	}
}

// is returns the state of the unit, and how often it was restarted.
func (m *manager) is() (state string, restarts int) {
	out, _ := m.systemctl("show", "-p", "ActiveState,NRestarts", "dirserver")
	for line := range strings.Lines(out) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name {
		case "ActiveState":
			state = value
		case "NRestarts":
			restarts, _ = strconv.Atoi(value)
		}
	}
	return state, restarts
}

// until waits until the unit is in a state.
func (m *manager) until(what string, want func(state string, restarts int) bool) {
	m.t.Helper()
	eventually.True(m.t, what, func() bool { return want(m.is()) })
}

// stop stops the unit.
func (m *manager) stop() { _, _ = m.systemctl("stop", "dirserver") }

// Under the unit of packaging/systemd the daemon waits for its address, is started again as often
// as a reason may pass, and after a crash. It is not started again with wrong settings, or beside
// another daemon.
//
// Promise (Clusters): Under the units of `packaging/systemd`, the daemon restarts after reasons
// that may pass, and not after those that last. See also cmd/dirserver: TestExitCodes.
func TestUnderSystemd(t *testing.T) {
	m := newManager(t, filepath.Join(units, "user/dirserver.service"))
	sock := socket(t)
	isActive := func(state string, _ int) bool { return state == "active" }
	isFailed := func(state string, _ int) bool { return state == "failed" }

	m.start(dirserver, "--socket", sock, "--bind", "198.51.100.1:7946") // no machine has this address
	m.until("the daemon serves without its address", isActive)
	p := start(t, "-", rocl, "register", "--socket", sock, "type=lamp")
	if ids, code := find(t, sock, "type=lamp"); len(ids) != 1 || code != 3 { // 3: not every node was asked
		t.Errorf("rocl find: %v, exit code %d", ids, code)
	}
	p.Kill()
	if _, restarts := m.is(); restarts != 0 {
		t.Errorf("%d restarts", restarts)
	}
	if out, code := m.systemctl("kill", "--signal=QUIT", "dirserver"); code != 0 { // Go ends as in a panic
		t.Fatal(out)
	}
	m.until("it is started after a crash", func(state string, restarts int) bool { return state == "active" && restarts == 1 })
	m.stop()

	taken := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	m.start(dirserver, "--socket", sock, "--http", taken.Addr().String())
	m.until("it is started again and again", func(_ string, restarts int) bool { return restarts > 6 }) // systemd's limit is 5
	taken.Close()
	m.until("the port is free", isActive)
	m.stop()

	m.start(dirserver, "--socket", sock, "--bind", "nonsense")
	m.until("wrong settings are left alone", isFailed)
	other := start(t, `"serving"`, dirserver, "--socket", sock)
	m.start(dirserver, "--socket", sock)
	m.until("another daemon is left alone", isFailed)
	if _, restarts := m.is(); restarts != 0 {
		t.Errorf("%d restarts for a reason that lasts", restarts)
	}
	other.Kill()
}
