// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os/exec"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
)

// Nodes whose clocks have nothing in common, each with an uptime of its own, find and watch each
// other, and nothing expires. Times of one node mean nothing to another, so nodes do not send them.
func TestClocks(t *testing.T) {
	parallel(t)
	l := newLab(t, 4)
	for i, skew := range []time.Duration{0, 500_000 * time.Second, 10_000_000 * time.Second, time.Hour} {
		l.nodes[i].skew = skew
		if out, err := l.nodes[i].command("true").CombinedOutput(); err != nil {
			t.Skipf("no time namespaces: %v: %s", err, out)
		}
	}
	up, first := uptime(t, l.nodes[1]), uptime(t, l.nodes[0])
	if up == first {
		t.Fatalf("node 1 has been up for %s, as node 0", up)
	}
	for _, n := range l.nodes {
		l.start(n)
	}
	l.together(l.nodes...)
	as, own, same := l.populate()
	watch(as)
	complete(as, own, same)
	for i, a := range as {
		a.say(as[(i+1)%4], own[(i+1)%4], "what time is it?")
	}
	began := time.Now()
	l.nodes[1].kill()
	_, last := l.deathSeen(l.nodes[1], began)
	l.reach("other clocks, killed: dead for all", last, 2*time.Second)
	l.nodes[1].skew = 2_000_000 * time.Second // another boot, with another uptime
	l.start(l.nodes[1])
	l.one("other clocks, back", time.Now())
	complete(as, own, same)
	began = time.Now()
	truth := stopChurn(as)
	l.reach("other clocks: watches complete", time.Since(began), 5*time.Second)
	time.Sleep(6 * time.Second) // longer than a beat, an exchange of all, and the time after which a member is away
	still(as, truth)
	complete(as, own, same)
	if got := as[0].all(rocl.Match{rocl.AttrKind: "node"}); got.How != "" || len(got.IDs) != 4 {
		t.Errorf("nodes: %+v", got)
	}
	for _, n := range l.nodes {
		for _, o := range l.nodes {
			if _, lost := n.lostAt(o); lost {
				t.Errorf("node %d lost node %d", n.i, o.i)
			}
		}
	}
}

// uptime returns the time since a node was started, in whole seconds, as its programs see it.
func uptime(t *testing.T, n *node) string {
	t.Helper()
	cmd := n.command("cut", "-d.", "-f1", "/proc/uptime")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err, cmd.Args, err.(*exec.ExitError).Stderr)
	}
	return string(out)
}
