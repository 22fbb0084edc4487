// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

// needSSHD skips the test if ok is false, and fails it with ROCL_SSHD=must. why is the reason that
// sshd cannot run here.
func needSSHD(t *testing.T, ok bool, why string, more ...any) {
	t.Helper()
	if ok {
		return
	}
	if why = fmt.Sprintf(why, more...); os.Getenv("ROCL_SSHD") == "must" {
		t.Fatalf("ROCL_SSHD=must, and %s", why)
	}
	t.Skip(why)
}

// sshd runs a server of the test's own on this machine. It returns a configuration file for ssh
// with three hosts: "one"; "stranger", whose key the server does not know; and "impostor", whose
// key ssh does not know.
func (f *farm) sshd() (config string) {
	t := f.t
	t.Helper()
	for _, tool := range []string{"/usr/sbin/sshd", "ssh", "ssh-keygen"} {
		_, err := exec.LookPath(tool)
		needSSHD(t, err == nil, "%s is missing: apt-get install openssh-server", tool)
	}
	if os.Getuid() == 0 {
		err := os.MkdirAll("/run/sshd", 0o755) // else the service makes it
		needSSHD(t, err == nil, "sshd needs a directory: %v", err)
	}
	at := func(name string) string { return filepath.Join(f.dir, name) }
	write := func(name, text string) {
		try.OK(t, os.WriteFile(at(name), []byte(text), 0o600))
	}
	for _, key := range []string{"hostkey", "userkey", "strangerkey"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	public := func(key string) string {
		b := try.Get(os.ReadFile(at(key + ".pub")))(t)
		return string(b)
	}
	address, port, _ := strings.Cut(freeAddress(t), ":")
	write("authorized", public("userkey"))
	write("known", fmt.Sprintf("[%s]:%s %s", address, port, public("hostkey")))
	write("unknown", fmt.Sprintf("[%s]:%s %s", address, port, public("strangerkey")))
	var env []string
	for k, v := range f.env("one") {
		env = append(env, k+"="+v)
	}
	write("sshd_config", fmt.Sprintf(`ListenAddress %s:%s
HostKey %s
AuthorizedKeysFile %s
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
SetEnv %s
`, address, port, at("hostkey"), at("authorized"), strings.Join(env, " ")))
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	var hosts strings.Builder
	for _, h := range []struct{ name, key, known string }{{"one", "userkey", "known"}, {"stranger", "strangerkey", "known"}, {"impostor", "userkey", "unknown"}} {
		fmt.Fprintf(&hosts, "Host %s\n HostName %s\n Port %s\n User %s\n IdentityFile %s\n IdentitiesOnly yes\n UserKnownHostsFile %s\n GlobalKnownHostsFile none\n",
			h.name, address, port, me.Username, at(h.key), at(h.known))
	}
	write("ssh_config", hosts.String())

	var said bytes.Buffer
	cmd := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", at("sshd_config"))
	cmd.Stderr = &said
	cmd.WaitDelay = time.Second
	server, err := subprocess.Start(cmd)
	needSSHD(t, err == nil, "sshd does not start: %v", err)
	t.Cleanup(server.Kill)
	ctx := deadline(t)
	eventually.True(t, "sshd listens", func() bool {
		out, err := exec.CommandContext(ctx, "ssh", "-F", at("ssh_config"), "-o", "BatchMode=yes", "one", "true").CombinedOutput()
		if err == nil {
			return true
		}
		select {
		case <-server.Ended():
			needSSHD(t, false, "sshd does not start: %s", said.String())
		default:
		}
		needSSHD(t, ctx.Err() == nil && bytes.Contains(out, []byte("refused")), "ssh to this machine does not work: %s", out)
		return false
	})
	return at("ssh_config")
}

// A host is added over the system's ssh, with a configuration file. The error has the output of ssh
// for hosts that it does not reach.
func TestAddHostsSSH(t *testing.T) {
	f := newFarm(t)
	config := f.sshd()
	t.Setenv(tpvm.EnvSSH, "") // not the fake
	f.task = enrol(t, f.c, tpvm.WithHostStarter(tpvm.SSH{Config: config}))
	hs, err := f.add("one", "stranger", "impostor")
	if len(hs) != 1 || hs[0].Added != "one" || hs[0].Launcher != tpvm.LauncherPod {
		t.Fatalf("added %+v: %v", hs, err)
	}
	var e *tpvm.HostsError
	if !errors.As(err, &e) || len(e.Hosts) != 2 {
		t.Fatal(err)
	}
	for i, want := range [][]string{
		{"host stranger", "255", "Permission denied", "-F " + config + " stranger true'"},
		{"host impostor", "255", "Host key verification failed", "-F " + config + " impostor true'"},
	} {
		for _, w := range want {
			if !strings.Contains(e.Hosts[i].Error(), w) {
				t.Errorf("%q does not say %q", e.Hosts[i], w)
			}
		}
	}
	ids, err := f.spawn(2, tpvm.OnHost("one"))
	if n := f.on(ids); err != nil || n[hs[0].Node] != 2 {
		t.Fatalf("tasks by node: %v: %v", n, err)
	}
	try.Get(f.task.Notify(deadline(t), 5, ids...))(t)
	try.OK(t, f.task.DelHosts(deadline(t), "one"))
	wantEnds(f.t, f.task, 5, ids...)
	left, err := f.task.Hosts(deadline(t))
	if err != nil || slices.ContainsFunc(left, func(h tpvm.Host) bool { return h.Added == "one" }) {
		t.Errorf("hosts: %+v: %v", left, err)
	}
}
