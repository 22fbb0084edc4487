// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// roclCommand returns the path of the command. It builds the command, once, unless it is built.
var roclCommand = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(dirserver), "rocl")
	if built != "" {
		return path, nil
	}
	cmd := exec.Command("go", "build", "-o", path, "./cmd/rocl")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building rocl: %w\n%s", err, out)
	}
	return path, nil
})

// doctor runs rocl doctor on the node, and returns the texts of its findings, by check.
func (n *node) doctor() map[string]string {
	t := n.lab.t
	t.Helper()
	cmd := exec.Command(try.Get(roclCommand())(t), "doctor", "--json", "--timeout", "10s", "--socket", n.socket())
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	<-try.Get(in(n.ns, cmd))(t).Ended()
	found := map[string]string{}
	for line := range strings.Lines(out.String()) {
		var f struct{ Check, State, Text string }
		try.OK(t, json.Unmarshal([]byte(line), &f))
		if f.State == "found" {
			found[f.Check] = f.Text
		}
	}
	if code := cmd.ProcessState.ExitCode(); (code == 0) != (len(found) == 0) || code > 0 && code < 10 {
		t.Errorf("exit code %d: %s", code, out.String())
	}
	return found
}

// finds waits until doctor finds exactly these things, each a check and a part of its text.
func (n *node) finds(what ...string) {
	t := n.lab.t
	t.Helper()
	var found map[string]string
	if !eventually.Within(time.Minute, func() bool {
		found = n.doctor()
		return len(found) == len(what)/2 && !slices.ContainsFunc(slices.Collect(slices.Chunk(what, 2)), func(w []string) bool { return !strings.Contains(found[w[0]], w[1]) })
	}) {
		t.Errorf("node %d: %q, want %q", n.i, found, what)
	}
}

// drop lets the node drop arriving packets that match the rules of nft, instead of its other
// faults. Without rules, all packets arrive.
func (n *node) drop(rules ...string) {
	t := n.lab.t
	t.Helper()
	text := "table inet doctor\ndelete table inet doctor\n"
	if len(rules) > 0 {
		text += "table inet doctor { chain in { type filter hook input priority 0; iifname lo accept\n" + strings.Join(rules, " drop\n") + " drop\n}\n}\n"
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin, cmd.Stderr = strings.NewReader(text), os.Stderr
	<-try.Get(in(n.ns, cmd))(t).Ended()
	if !cmd.ProcessState.Success() {
		t.Fatalf("nft: %s", text)
	}
}

// Members of a cluster of machines with names of their own have no finding. Then one fault after
// the other is made, found with what it is about, and mended.
//
// Promise (Commands): `rocl doctor` finds UDP that is blocked in one direction, large datagrams
// that are lost, a foreign key, an address to join where no member is, a lost member, and two
// machines with one name.
func TestDoctor(t *testing.T) {
	parallel(t)
	l := newLab(t, 3)
	a, b, c := l.nodes[0], l.nodes[1], l.nodes[2]
	for i, n := range l.nodes {
		n.hostname = []string{"anna", "bert", "cleo"}[i]
		l.start(n)
	}
	l.together(l.nodes...)
	a.finds()

	b.drop("ip saddr " + a.host + " meta l4proto udp")
	a.finds("udp", "bert, node "+b.id)
	b.finds("udp", "anna, node "+a.id)
	c.finds()
	b.drop("ip saddr "+a.host+" udp length > 1000", "ip saddr "+a.host+" ip frag-off & 0x1fff != 0")
	a.finds("mtu", "bert, node "+b.id)
	b.drop()
	a.finds()

	c.kill()
	a.finds("lost", "cleo, node "+c.id)
	c.hostname = "bert"
	l.start(c)
	l.together(l.nodes...)
	a.finds("name", "two machines are named bert")
	c.stop()
	eventually.True(t, "the others see that it has left", func() bool { return l.whole(a, b) })
	a.finds()

	key := l.key
	l.key = filepath.Join(l.dir, "other")
	try.OK(t, os.WriteFile(l.key, []byte("another key of thirty-two bytes.\n"), 0o600))
	c.hostname = "cleo"
	l.start(c)
	c.finds("key", a.bind())
	c.stop()
	l.key = key

	l.args = []string{"--join", "10.91.0.77:7946"}
	l.start(c)
	c.finds("member", "10.91.0.77:7946")
}

// Contexts in two network namespaces share memory by the folder of the socket. If one of them
// cannot write the folder, doctor finds them.
func TestDoctorNamespaces(t *testing.T) {
	parallel(t)
	l := newLab(t, 2)
	a, b := l.nodes[0], l.nodes[1]
	register := func(n *node, box ...string) *subprocess.Process {
		t.Helper()
		args := append(slices.Clone(box), try.Get(roclCommand())(t), "register", "name=x", "--socket", a.socket())
		p := try.Get(in(n.ns, exec.Command(args[0], args[1:]...)))(t)
		t.Cleanup(p.Kill)
		try.Get(p.Line(eventually.Context(t)))(t)
		return p
	}
	register(a)
	p := register(b)
	a.finds()
	p.Kill()
	a.finds("programs", "without closing its context")
	p = register(b, "unshare", "--mount", "sh", "-c", `mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"`, a.dir)
	a.finds("memory", "cannot share memory", "contexts", "does not answer", "programs", "without closing its context")
	p.Kill()
	a.finds("programs", "without closing its context")
}
