// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Two machines have a public address and a bridge of containers, with one address at both. Bound to
// every address, an interface or a network, members advertise the address by which they reach each
// other. Without a member to join, the daemon fails where there is a choice, and lists it.
func TestAdvertised(t *testing.T) {
	parallel(t)
	l := newLab(t, 2)
	for _, n := range l.nodes {
		ip(t, "-n "+n.ns+" link add docker0 type bridge")
		ip(t, "-n "+n.ns+" addr add 172.17.0.1/16 dev docker0")
		ip(t, "-n "+n.ns+" link set docker0 up")
	}
	for _, bind := range []string{"0.0.0.0:7946", "wire:7946", "10.0.0.0/8"} {
		l.args = []string{"--bind", bind}
		for _, n := range l.nodes {
			l.start(n)
		}
		l.together(l.nodes...)
		for _, n := range l.nodes {
			eventually.True(t, "the node tells its address", func() bool { return n.says("cluster: this node is a member", n.host+":7946") > 0 })
		}
		as, own, same := l.populate()
		eventually.True(t, "all is found, and the rest is denied", func() bool { return len(lacking(as, own, same)) == 0 })
		as[0].say(as[1], own[1], "hello")
		for _, a := range as {
			a.Close()
		}
		for _, n := range l.nodes {
			n.stop()
		}
	}
	n := l.nodes[0]
	ip(t, "-n "+n.ns+" addr add 192.0.2.7/24 dev wire")
	cmd := n.command(dirserver, "--socket", n.socket(), "--bind", "0.0.0.0:7946")
	code, said := ends(t, n, cmd)
	if code != 2 || !strings.Contains(said, n.host+" (wire)") || !strings.Contains(said, "192.0.2.7 (wire)") || strings.Contains(said, "172.17.0.1") {
		t.Errorf("exit code %d, %s", code, said)
	}
}

// ends runs a command on a node to its end, and returns its exit code and its error output.
func ends(t *testing.T, n *node, cmd *exec.Cmd) (code int, said string) {
	t.Helper()
	r, w := io.Pipe()
	cmd.Stderr = w
	p := try.Get(in(n.ns, cmd))(t)
	go func() {
		<-p.Ended()
		w.Close()
	}()
	b := try.Get(io.ReadAll(r))(t)
	return cmd.ProcessState.ExitCode(), string(b)
}

// The address of a machine goes away and comes back, or another one comes. Its programs go on among
// themselves, and new ones open. Its node becomes a member again by itself, at the address that the
// machine has then.
func TestAddressGone(t *testing.T) {
	parallel(t)
	l := newLab(t, 2)
	l.args = []string{"--bind", "10.0.0.0/8", "--http", "127.0.0.1:9464"}
	a, b := l.nodes[0], l.nodes[1]
	l.start(a)
	l.start(b)
	l.together(a, b)
	x, y := a.agent(), b.agent()
	mine, far := x.register(rocl.Attrs{"who": "mine"}), y.register(rocl.Attrs{"who": "far"})
	find := func(by *agent, who string, id rocl.GID) func() bool {
		return func() bool { f := by.find(rocl.Match{"who": who}); return slices.Contains(f.IDs, id) }
	}
	eventually.True(t, "both find the other's", func() bool { return find(x, "far", far)() && find(y, "mine", mine)() })
	ready := func(by *agent) string {
		var body string
		try.OK(t, by.Call("Agent.Get", "http://127.0.0.1:9464/readyz", &body))
		return body
	}
	for _, next := range []string{"10.91.0.1/24", "10.91.0.77/24"} { // the same address, and another one
		ip(t, "-n "+a.ns+" addr flush dev wire")
		eventually.True(t, "the address is gone", func() bool { return strings.Contains(ready(x), "- cluster: this node is not a member") })
		eventually.True(t, "the daemon says that its address is gone", func() bool { return a.says("level\":\"WARN", "the member's address is gone") > 0 })
		z := a.agent() // a program that opens now
		who := "here before " + next
		here := z.register(rocl.Attrs{"who": who})
		if f := x.find(rocl.Match{"who": who}); !slices.Contains(f.IDs, here) {
			t.Errorf("without an address: %+v", f)
		}
		z.say(x, mine, "local")
		if f := x.find(rocl.Match{"who": "none"}); f.How != partial {
			t.Errorf("what no node has, without an address: %+v", f)
		}
		ip(t, "-n "+a.ns+" addr add "+next+" dev wire")
		eventually.True(t, "both find the other's again", func() bool { return find(x, "far", far)() && find(y, who, here)() })
		y.say(z, here, "over the network")
		z.say(y, far, "and back")
		eventually.True(t, "the node is a member at "+next, func() bool {
			return a.says("cluster: this node is a member", strings.TrimSuffix(next, "/24")+":7946") > 0 && !strings.Contains(ready(x), "- cluster")
		})
	}
}
