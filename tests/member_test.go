// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// asMember makes the commands that f starts members of a cluster by their environment alone, as for
// a program that knows nothing of clusters.
func asMember(t *testing.T, m cluster.Member, f func() *child) *child {
	t.Helper()
	vars := map[string]string{"ROCL_BIND": m.Bind, "ROCL_JOIN": strings.Join(m.Join, ","), "ROCL_KEY_FILE": m.KeyFile, "ROCL_CLUSTER": "test"}
	for k, v := range vars {
		t.Setenv(k, v)
	}
	defer func() {
		for k := range vars {
			t.Setenv(k, "") // as if it were not set
		}
	}()
	return f()
}

// Nodes without daemons are members of a cluster while a context serves them. The serving context
// is killed, ends, gives way to a daemon, and takes over from a killed one. The node stays the same
// member at the same address. The other nodes find its resources, and are never told for certain
// that these do not exist.
//
// Promise (Clusters): A node without a daemon is a member while a context serves it. What its
// living contexts have is never denied for certain. See also TestMembership.
func TestMembersWithoutDaemons(t *testing.T) {
	key := clusterKey(t)
	ctx := eventually.Context(t)
	sockets, binds := []string{socket(t), socket(t), socket(t)}, []string{freePort(t), freePort(t), freePort(t)}
	as := func(i int) cluster.Member { // each has the addresses of the two others: a new process must reach one of them
		return cluster.Member{Bind: binds[i], Join: []string{binds[(i+1)%3], binds[(i+2)%3]}, KeyFile: key}
	}
	holder := func(node int, who string) *child {
		return asMember(t, as(node), func() *child {
			return start(t, "-", rocl, "register", "--socket", sockets[node], "who="+who)
		})
	}
	first := holder(0, "first")
	holder(0, "stays")
	daemon := func(i int) *child {
		args := []string{"--socket", sockets[i], "--bind", binds[i], "--join", strings.Join(as(i).Join, ","), "--cluster", "test", "--key-file", key}
		return start(t, "serving", dirserver, args...)
	}
	daemon(1)
	holder(1, "at a daemon")
	me := open(t, sockets[2], lib.WithCluster("test"), lib.WithMember(as(2)), lib.WithLogger(slog.New(slog.NewTextHandler(t.Output(), nil))))
	mine := register(t, me, lib.Attrs{"who": "me"})
	for _, who := range []string{"first", "stays", "at a daemon"} {
		awaitFound(t, me, lib.Match{"who": who})
	}
	for _, sock := range sockets {
		eventually.True(t, "the others find what a context serves", func() bool {
			out, code := run(t, "", rocl, "find", "--socket", sock, "who=me")
			return code == 0 && strings.Contains(out, mine.ID().String())
		})
	}
	before := try.Get(me.Find(ctx, lib.Match{"who": "stays"}))(t)
	// steady asks until the resource is found, and for a while longer. The answer may come late,
	// but must not be wrong.
	steady := func(what string) {
		t.Helper()
		good := 0
		eventually.True(t, what+": it is found all the time", func() bool {
			f, err := me.Find(ctx, lib.Match{"who": "stays"})
			switch {
			case errors.Is(err, lib.ErrNotFound) || err == nil && f.ID != before.ID:
				t.Fatalf("%s: found %v: %v", what, f.ID, err)
			case err == nil:
				good++
			}
			return good == 500
		})
	}
	first.Kill()
	steady("killed")
	try.Fails(me.Find(ctx, lib.Match{"who": "first"}))(t, lib.ErrNotFound, "what was killed")
	d := daemon(0)
	steady("a daemon takes over")
	d.Kill()
	steady("the daemon is killed")
	d = daemon(0)
	steady("a daemon takes over again")
	d.stop(t)
	steady("the daemon has ended")
	if out, code := run(t, "", rocl, "find", "--socket", sockets[0], "who=me"); code != 0 {
		t.Errorf("the node that was taken over finds %q, exit code %d", out, code)
	}
	// Messages go from node to node both ways.
	there := asMember(t, as(0), func() *child { return start(t, "receiving", rocl, "recv", "--socket", sockets[0], "who=receiver") })
	f := awaitFound(t, me, lib.Match{"who": "receiver"})
	try.OK(t, mine.SendBytes(ctx, f.ID, 0, []byte("across\n")))
	there.until(t, "across")
	if _, code := run(t, "back", rocl, "send", "--socket", sockets[0], "who=me"); code != 0 {
		t.Errorf("rocl send: exit code %d", code)
	}
	m, err := mine.Recv(ctx)
	if err != nil || strings.TrimSpace(string(m.Bytes())) != "back" {
		t.Fatalf("received %v: %v", m, err)
	}
	m.Release()
	// Another name is another cluster.
	if c, err := lib.Open(ctx, lib.WithSocket(sockets[1]), lib.WithCluster("other")); !errors.Is(err, lib.ErrCluster) {
		t.Errorf("opened in another cluster: %v", err)
		c.Close()
	}
}

// A node's daemon is killed, and a program without the settings of a member serves the node. It
// denies no resource of other nodes for certain until the node is a member again, or until an
// operator ends the membership.
//
// Promise (Clusters): A node whose daemon ended while contexts live denies nothing of other nodes
// for certain until it is a member again. See also TestNodeBelongsToCluster.
func TestMemberServedWithoutSettings(t *testing.T) {
	ctx := eventually.Context(t)
	sockets, binds := []string{socket(t), socket(t)}, []string{freePort(t), freePort(t)}
	daemon := func(i int) *child {
		return start(t, `"serving"`, dirserver, "--socket", sockets[i], "--bind", binds[i], "--join", strings.Join(binds, ","), "--cluster", "test")
	}
	daemon(1)
	start(t, "-", rocl, "register", "--socket", sockets[1], "who=far")
	d := daemon(0)
	me := open(t, sockets[0])
	found := func() lib.Found {
		t.Helper()
		var f lib.Found
		eventually.True(t, "what another node has is found", func() (ok bool) {
			var err error
			if f, err = me.Find(ctx, lib.Match{"who": "far"}); errors.Is(err, lib.ErrNotFound) {
				t.Fatalf("denied for certain: %v", err)
			}
			return err == nil
		})
		return f
	}
	far := found()
	// uncertain asks in each way until the answer has been ErrPartial for a while.
	uncertain := func(what string) {
		t.Helper()
		good := 0
		eventually.True(t, what+": the answer is ErrPartial all the time", func() bool {
			_, err := me.Find(ctx, lib.Match{"who": "far"})
			if errors.Is(err, lib.ErrNotFound) || ctx.Err() != nil {
				t.Fatalf("%s: find: %v", what, err)
			}
			if errors.Is(err, lib.ErrPartial) {
				good++
			}
			return good == 100
		})
		if _, err := me.Lookup(ctx, far.ID); !errors.Is(err, lib.ErrPartial) || !strings.Contains(err.Error(), `"test"`) {
			t.Errorf("%s: lookup: %v, want ErrPartial with the cluster's name", what, err)
		}
		var err error
		for _, err = range me.FindAll(ctx, lib.Match{"who": "far"}) {
			if err != nil {
				break
			}
		}
		try.Fails(err)(t, lib.ErrPartial, "%s: find all", what)
		if out, code := run(t, "", rocl, "find", "--socket", sockets[0], "who=far"); code != 3 {
			t.Errorf("%s: rocl find: exit code %d, want 3: %s", what, code, out)
		}
	}
	stop := func(d *child) {
		t.Helper()
		d.stop(t)
	}
	d.Kill()
	uncertain("the daemon was killed")
	d = daemon(0)
	found()
	stop(d)
	uncertain("the daemon was stopped while a context lives")
	stop(start(t, `"serving"`, dirserver, "--socket", sockets[0])) // without --bind, the node is no longer a member
	eventually.True(t, "the node answers for itself", func() bool {
		_, err := me.Find(ctx, lib.Match{"who": "far"})
		return errors.Is(err, lib.ErrNotFound)
	})
}
