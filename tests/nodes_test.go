// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/nice"
)

// said runs a command to its end. Unlike run, it returns both outputs apart.
func said(t *testing.T, bin string, args ...string) (out, errOut string, code int) {
	t.Helper()
	return runCommand(t, 60*time.Second, exec.Command(bin, args...))
}

// Three daemons with labels: each finds all the nodes and chooses among them. A traced search shows
// every node. A node that stops is no member after a while, until it goes on.
func TestNodesOfCluster(t *testing.T) {
	nice.Raise(t) // a node that is late for a second is dead
	var sockets, binds []string
	var daemons []*child
	for i := range 3 {
		sockets, binds = append(sockets, socket(t)), append(binds, freePort(t))
		args := []string{"--socket", sockets[i], "--bind", binds[i], "--cluster", t.Name(), "--label", "rack=r1", "--label", fmt.Sprint("at=", i)}
		if i > 0 {
			args = append(args, "--join", binds[0])
		}
		daemons = append(daemons, start(t, "serving", dirserver, args...))
	}
	ctx := eventually.Context(t)
	var cs []*lib.Context
	var r *lib.Resource
	for _, s := range sockets {
		cs = append(cs, open(t, s, lib.JoinOnly()))
	}
	r, err := cs[1].Register(ctx, lib.Attrs{"type": "peer"})
	if err != nil {
		t.Fatal(err)
	}
	nodes := func(i int, m lib.Match) (at []string) {
		for f, err := range cs[i].FindAll(ctx, m, lib.Covered(new(lib.Coverage))) {
			if err != nil {
				t.Fatal(err)
			}
			at = append(at, f.Attrs.GetString("at")+" "+f.Attrs.GetString(lib.AttrAddr))
		}
		slices.Sort(at)
		return at
	}
	node := lib.Match{lib.AttrKind: "node"}
	all := []string{"0 " + binds[0], "1 " + binds[1], "2 " + binds[2]}
	for i := range cs {
		eventually.True(t, "every node is seen", func() bool { return slices.Equal(nodes(i, lib.Match{lib.AttrKind: "node", "rack": "r1"}), all) })
		for j := range cs {
			f, err := cs[i].Find(ctx, lib.Match{lib.AttrKind: "node", "at": fmt.Sprint(j)}, lib.Want(lib.AttrCores, lib.AttrAddr))
			if err != nil || f.ID.Node() != cs[j].ID().Node() || f.Attrs.GetString(lib.AttrAddr) != binds[j] {
				t.Errorf("node %d from %d: %+v, %v", j, i, f, err)
			}
			if f, err = cs[i].Lookup(ctx, directory.NodeResource(cs[j].ID().Node())); err != nil || f.Attrs.GetString("at") != fmt.Sprint(j) {
				t.Errorf("node %d from %d by its identifier: %+v, %v", j, i, f, err)
			}
		}
		if at := nodes(i, lib.Match{"rack": "r1"}); len(at) != 0 {
			t.Errorf("nodes among the resources: %q", at)
		}
	}

	out, errOut, code := said(t, rocl, "nodes", "--socket", sockets[2], "rack=r1")
	if code != 0 || errOut != "" || strings.Count(out, "\n") != 4 {
		t.Errorf("rocl nodes: %d, %q, %q", code, out, errOut)
	}
	for i, b := range binds {
		if !strings.Contains(out, b) || !strings.Contains(out, fmt.Sprint("at=", i)) {
			t.Errorf("rocl nodes does not tell of %d: %q", i, out)
		}
	}
	if out, _, code := said(t, rocl, "nodes", "--socket", sockets[2], "--json", "at=0"); code != 0 || strings.Count(out, "\n") != 1 || !strings.Contains(out, `"addr":"`+binds[0]) {
		t.Errorf("rocl nodes --json: %d, %q", code, out)
	}
	name := fmt.Sprintf("%012x", uint64(cs[1].ID().Node()))
	out, errOut, code = said(t, rocl, "find", "--cluster", "--socket", sockets[0], "type=peer")
	if code != 0 || out != fmt.Sprintf("%s %v {type=peer}\n", name, r.ID()) || !strings.HasPrefix(errOut, "3 of 3 nodes") {
		t.Errorf("rocl find --cluster: %d, %q, %q", code, out, errOut)
	}
	if _, errOut, code = said(t, rocl, "find", "--cluster", "--socket", sockets[0], "type=none", "--json"); code != 1 || errOut != `{"covered":3,"failed":[]}`+"\n" {
		t.Errorf("rocl find --cluster: %d, %q", code, errOut)
	}
	trace := func(strategy, what string) (tr directory.Trace, code int) {
		out, errOut, code := said(t, rocl, "search-trace", "--json", "--socket", sockets[0], "--search", strategy, what)
		if err := json.Unmarshal([]byte(out), &tr); err != nil {
			t.Fatalf("rocl search-trace: %d, %q, %q: %v", code, out, errOut, err)
		}
		return tr, code
	}
	// asked is trace while all nodes live. A node that is late is silent: then the trace is
	// repeated.
	asked := func(strategy, what string) (tr directory.Trace, code int) {
		t.Helper()
		eventually.True(t, "no node is late", func() bool { tr, code = trace(strategy, what); return len(tr.Failed) == 0 })
		return tr, code
	}
	for _, strategy := range []string{"auto", "tree", "unicast", "broadcast"} {
		if tr, code := asked(strategy, "type=peer"); code != 0 || tr.Found != r.ID() || tr.Node != cs[0].ID().Node() {
			t.Errorf("rocl search-trace --search %s: %d, %+v", strategy, code, tr)
		}
		if tr, code := asked(strategy, "type=none"); code != 1 || tr.Covered != 3 || len(tr.Failed) != 0 || tr.Messages < 4 {
			t.Errorf("rocl search-trace --search %s: %d, %+v", strategy, code, tr)
		}
	}
	tr, _ := asked("unicast", "type=peer")
	answers := map[string]string{}
	for _, s := range tr.Steps {
		answers[fmt.Sprintf("%012x", uint64(s.Node))] = s.Outcome
	}
	if len(answers) != 3 || answers[name] != "found" {
		t.Errorf("a flat trace: %+v", tr)
	}

	// One node stops without being dead. A trace does not wait for it. A question about the nodes
	// gets a certain answer that names the living ones. (TestSilentNode of the commands checks what
	// is said of a member that lives and is silent.)
	p := daemons[1].cmd.Process
	signal(t, p.Pid, syscall.SIGSTOP)
	t.Cleanup(func() { _ = p.Signal(syscall.SIGCONT) })
	tr, _ = trace("unicast", "type=none")
	for _, s := range tr.Steps {
		if s.Node == cs[1].ID().Node() && s.Outcome != "silent" {
			t.Errorf("what is stopped says %+v", s)
		}
	}
	eventually.True(t, "it is no member", func() bool {
		tr, code := trace("unicast", "type=none")
		if slices.Contains(tr.Failed, cs[2].ID().Node()) {
			return false // the other living node is late
		}
		if len(tr.Failed) > 0 != (code == 3) || tr.Covered != 2 {
			t.Errorf("rocl search-trace: %d, %+v", code, tr)
		}
		return code == 1 && len(tr.Steps) == 2
	})
	eventually.True(t, "no program at its address refuses this node", func() bool {
		if _, errOut, code = said(t, rocl, "find", "--cluster", "--socket", sockets[0], "type=peer"); code == 3 {
			return false
		}
		if code != 1 || !strings.HasPrefix(errOut, "2 of 2 nodes") {
			t.Errorf("rocl find --cluster: %d, %q", code, errOut)
		}
		return true
	})
	if out, errOut, code = said(t, rocl, "nodes", "--socket", sockets[0]); code != 0 || errOut != "" || strings.Count(out, "\n") != 3 || strings.Contains(out, name) {
		t.Errorf("rocl nodes: %d, %q, %q", code, out, errOut)
	}
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "it is back", func() bool { return slices.Equal(nodes(0, node), all) })
	if f, err := cs[0].Find(ctx, lib.Match{"type": "peer"}); err != nil || f.ID != r.ID() {
		t.Errorf("find on the node that is back: %+v, %v", f, err)
	}

	// A daemon that returns with other labels is the same node, once.
	daemons[2].kill(t)
	start(t, "serving", dirserver, "--socket", sockets[2], "--bind", binds[2], "--cluster", t.Name(), "--join", binds[0], "--label", "at=new")
	eventually.True(t, "it is back with another label", func() bool {
		return slices.Equal(nodes(0, node), []string{all[0], all[1], "new " + binds[2]})
	})
}
