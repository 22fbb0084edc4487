// SPDX-License-Identifier: Apache-2.0

// Package sshd runs a server of OpenSSH for a test.
package sshd

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// need skips the test if ok is false, and fails it with ROCL_SSHD=must. why is the reason that sshd
// cannot run here.
func need(t *testing.T, ok bool, why string, more ...any) {
	t.Helper()
	if ok {
		return
	}
	if why = fmt.Sprintf(why, more...); os.Getenv("ROCL_SSHD") == "must" {
		t.Fatalf("ROCL_SSHD=must, and %s", why)
	}
	t.Skip(why)
}

// Run runs a server on this machine until the test ends. What it starts gets the variables in env.
// Run returns a configuration file for ssh with four hosts: "one" and "two"; "stranger", whose key
// the server does not know; and "impostor", whose key ssh does not know.
func Run(t *testing.T, env map[string]string) (config string) {
	t.Helper()
	for _, tool := range []string{"/usr/sbin/sshd", "ssh", "ssh-keygen"} {
		_, err := exec.LookPath(tool)
		need(t, err == nil, "%s is missing: apt-get install openssh-server", tool)
	}
	if os.Getuid() == 0 {
		err := os.MkdirAll("/run/sshd", 0o755) // else the service makes it
		need(t, err == nil, "sshd needs a directory: %v", err)
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		try.OK(t, os.WriteFile(at(name), []byte(text), 0o600))
	}
	for _, key := range []string{"hostkey", "userkey", "strangerkey"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	public := func(key string) string { return string(try.Get(os.ReadFile(at(key + ".pub")))(t)) }
	address, port, _ := strings.Cut(try.Get(freeaddr.Loopback())(t), ":")
	write("authorized", public("userkey"))
	write("known", fmt.Sprintf("[%s]:%s %s", address, port, public("hostkey")))
	write("unknown", fmt.Sprintf("[%s]:%s %s", address, port, public("strangerkey")))
	var variables strings.Builder
	fmt.Fprintf(&variables, " HOME=%s", dir) // the user's own shell may take seconds to start
	for k, v := range env {
		fmt.Fprintf(&variables, " %s=%s", k, v)
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
SetEnv%s
`, address, port, at("hostkey"), at("authorized"), &variables))
	me := try.Get(user.Current())(t)
	var hosts strings.Builder
	for _, h := range []struct{ names, key, known string }{{"one two", "userkey", "known"}, {"stranger", "strangerkey", "known"}, {"impostor", "userkey", "unknown"}} {
		fmt.Fprintf(&hosts, "Host %s\n HostName %s\n Port %s\n User %s\n IdentityFile %s\n IdentitiesOnly yes\n UserKnownHostsFile %s\n GlobalKnownHostsFile none\n",
			h.names, address, port, me.Username, at(h.key), at(h.known))
	}
	write("ssh_config", hosts.String())

	var said bytes.Buffer
	cmd := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", at("sshd_config"))
	cmd.Stderr = &said
	cmd.WaitDelay = time.Second
	server, err := subprocess.Start(cmd)
	need(t, err == nil, "sshd does not start: %v", err)
	t.Cleanup(server.Kill)
	ctx := eventually.Context(t)
	eventually.True(t, "sshd listens", func() bool {
		out, err := exec.CommandContext(ctx, "ssh", "-F", at("ssh_config"), "-o", "BatchMode=yes", "one", "true").CombinedOutput()
		if err == nil {
			return true
		}
		select {
		case <-server.Ended():
			need(t, false, "sshd does not start: %s", said.String())
		default:
		}
		need(t, ctx.Err() == nil && bytes.Contains(out, []byte("refused")), "ssh to this machine does not work: %s", out)
		return false
	})
	return at("ssh_config")
}
