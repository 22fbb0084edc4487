// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/nice"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// freePort returns an address of the loopback interface for a member of a cluster. It raises this
// process and those that it starts: a member that is late for a second is dead.
func freePort(t *testing.T) string {
	t.Helper()
	nice.Raise(t)
	return try.Get(freeaddr.Loopback())(t)
}

// Three daemons, each with its own node and labels. Each finds all nodes, chooses among them, and
// finds the resources of all, and messages go there and back. The commands ask all nodes. A node
// that stops is no member after a while, until it goes on. A killed daemon takes its node's
// resources with it, and the contexts of the node live on. It returns with other labels as the same
// node.
func TestNodesOfCluster(t *testing.T) {
	var sockets, binds, all []string
	var daemons []*child
	var cs []*lib.Context
	var rs []*lib.Resource
	key, ctx := clusterKey(t), eventually.Context(t)
	daemon := func(i int, at string) *child {
		args := []string{"--socket", sockets[i], "--bind", binds[i], "--cluster", t.Name(), "--key-file", key, "--label", "rack=r1", "--label", "at=" + at}
		if i > 0 {
			args = append(args, "--join", binds[0])
		}
		return start(t, "serving", dirserver, args...)
	}
	for i := range 3 {
		sockets, binds = append(sockets, socket(t)), append(binds, freePort(t))
		daemons, all = append(daemons, daemon(i, fmt.Sprint(i))), append(all, fmt.Sprint(i, " ", binds[i]))
		cs = append(cs, open(t, sockets[i], lib.JoinOnly(), lib.WithGiveUp(3*time.Second)))
		rs = append(rs, register(t, cs[i], lib.Attrs{"type": "peer", "of": fmt.Sprint(i)}))
	}
	nodes := func(i int, m lib.Match) (at []string) {
		for f, err := range cs[i].FindAll(ctx, m, lib.Covered(new(lib.Coverage))) {
			if errors.Is(err, lib.ErrPartial) { // a node answers that gossip has not told of
				return append(at, err.Error())
			}
			try.OK(t, err)
			at = append(at, f.Attrs.GetString("at")+" "+f.Attrs.GetString(lib.AttrAddr))
		}
		slices.Sort(at)
		return at
	}
	node := lib.Match{lib.AttrKind: "node"}
	for i, c := range cs {
		eventually.True(t, "every node is seen", func() bool { return slices.Equal(nodes(i, lib.Match{lib.AttrKind: "node", "rack": "r1"}), all) })
		for j := range cs {
			f, err := c.Find(ctx, lib.Match{lib.AttrKind: "node", "at": fmt.Sprint(j)}, lib.Want(lib.AttrCores, lib.AttrAddr))
			if err != nil || f.ID.Node() != cs[j].ID().Node() || f.Attrs.GetString(lib.AttrAddr) != binds[j] {
				t.Errorf("node %d from %d: %+v, %v", j, i, f, err)
			}
			if f, err = c.Lookup(ctx, directory.NodeResource(cs[j].ID().Node())); err != nil || f.Attrs.GetString("at") != fmt.Sprint(j) {
				t.Errorf("node %d from %d by its identifier: %+v, %v", j, i, f, err)
			}
			if f = awaitFound(t, c, lib.Match{"of": fmt.Sprint(j)}); f.ID != rs[j].ID() {
				t.Fatalf("node %d finds %v in place of %v", i, f.ID, rs[j].ID())
			}
			if i != j {
				pass(t, rs[i], rs[j], 1, []byte("there"))
				pass(t, rs[j], rs[i], 2, []byte("and back")) // the answer must find its receiver too
			}
		}
		if at := nodes(i, lib.Match{"rack": "r1"}); len(at) != 0 {
			t.Errorf("nodes among the resources: %q", at)
		}
	}

	name := fmt.Sprintf("%012x", uint64(cs[1].ID().Node()))
	if out, code := run(t, "", rocl, "nodes", "--socket", sockets[2], "rack=r1"); code != 0 || strings.Count(out, "\n") != 4 || !strings.Contains(out, name) || !strings.Contains(out, binds[1]) {
		t.Errorf("rocl nodes: %d, %q", code, out)
	}
	if out, code := run(t, "", rocl, "find", "--cluster", "--socket", sockets[0], "of=1"); code != 0 || out != fmt.Sprintf("%s %v {of=1, type=peer}\n", name, rs[1].ID()) {
		t.Errorf("rocl find --cluster: %d, %q", code, out)
	}
	trace := func(what string) (tr directory.Trace, code int) {
		out, code := run(t, "", rocl, "search-trace", "--json", "--socket", sockets[0], "--search", "unicast", what)
		try.OK(t, json.Unmarshal([]byte(out), &tr))
		return tr, code
	}
	eventually.True(t, "a trace shows the answer of each node, none of which is late", func() bool {
		tr, code := trace("of=1")
		return code == 0 && tr.Found == rs[1].ID() && len(tr.Failed) == 0 && len(tr.Steps) == 3
	})

	// One node stops without being dead. A trace does not wait for it. A question about the nodes
	// gets a certain answer that names the living ones. (TestSilentNode of the commands checks what
	// is said of a member that lives and is silent.)
	t.Cleanup(func() { daemons[1].Signal(posix.SIGCONT) })
	daemons[1].signal(t, posix.SIGSTOP)
	tr, _ := trace("type=none")
	for _, s := range tr.Steps {
		if s.Node == cs[1].ID().Node() && s.Outcome != "silent" {
			t.Errorf("what is stopped says %+v", s)
		}
	}
	eventually.True(t, "it is no member", func() bool {
		tr, code := trace("type=none")
		if slices.Contains(tr.Failed, cs[2].ID().Node()) {
			return false // the other living node is late
		}
		if len(tr.Failed) > 0 != (code == 3) || tr.Covered != 2 {
			t.Errorf("rocl search-trace: %d, %+v", code, tr)
		}
		return code == 1 && len(tr.Steps) == 2
	})
	eventually.True(t, "no program at its address refuses this node", func() bool {
		_, code := run(t, "", rocl, "find", "--cluster", "--socket", sockets[0], "of=1")
		return code == 1
	})
	if at := nodes(0, node); !slices.Equal(at, []string{all[0], all[2]}) {
		t.Errorf("nodes while one is stopped: %q", at)
	}
	daemons[1].signal(t, posix.SIGCONT)
	eventually.True(t, "it is back", func() bool { return slices.Equal(nodes(0, node), all) })
	try.Equal(t, try.Get(cs[0].Find(ctx, lib.Match{"of": "1"}))(t).ID, rs[1].ID(), "find on the node that is back")

	daemons[2].Kill()
	eventually.True(t, "the resources of the dead node are gone", func() bool {
		_, err := cs[0].Find(ctx, lib.Match{"of": "2"})
		return errors.Is(err, lib.ErrNotFound)
	})
	pass(t, rs[0], rs[2], 3, []byte("to a context that lives"))
	daemons[2] = daemon(2, "new")
	eventually.True(t, "it is back with another label", func() bool {
		return slices.Equal(nodes(0, node), []string{all[0], all[1], "new " + binds[2]})
	})
}
