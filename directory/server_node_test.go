// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"fmt"
	"iter"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/internal/os/cgroup"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// nodes returns all that matches.
func nodes(t testing.TB, c *Client, pattern *resource.List) (all []resource.Record) {
	t.Helper()
	for a, err := range c.FindAll(context.Background(), pattern) {
		try.OK(t, err)
		all = append(all, a)
	}
	return all
}

// The resource of a node is found by its properties and its labels, with known and wanted
// attributes. It is found only by patterns that name an attribute of the library's. No context can
// change it.
//
// Promise (Nodes): Each node is one resource, found by its machine and its labels. No context can
// change it. See also TestNodesOfCluster.
func TestNode(t *testing.T) {
	ctx := context.Background()
	path, s, c := begun(t, WithLabels(labels(t, resource.Attrs{"zone": "a", "gpu": "2"})))
	id := NodeResource(s.Node())
	host, _ := os.Hostname()
	for _, p := range []*resource.List{
		list(t, resource.Match{AttrKind: "node"}),
		list(t, resource.Match{AttrKind: "node", "zone": "a"}),
		list(t, resource.Match{AttrNode: fmt.Sprintf("%012x", uint64(s.Node()))}),
		list(t, resource.Match{"gpu": "2", AttrOS: runtime.GOOS, AttrArch: runtime.GOARCH, AttrHost: host, AttrCores: strconv.Itoa(runtime.NumCPU())}),
	} {
		if a := nodes(t, c, p); len(a) != 1 || a[0].ID != id || a[0].Owner != id {
			t.Errorf("%v: %+v", p, a)
		}
	}
	a, err := c.Find(ctx, list(t, resource.Match{AttrKind: "node"}, "gpu", AttrMemory, AttrVersion, AttrAddr))
	if err != nil || a.Attrs.GetString("gpu") != "2" || a.Attrs.GetString(AttrVersion) == "" {
		t.Errorf("%+v, %v", a, err)
	}
	if n, err := strconv.ParseUint(a.Attrs.GetString(AttrMemory), 10, 64); err != nil || n < 1<<20 {
		t.Errorf("memory: %v", &a.Attrs)
	}
	if _, ok := a.Attrs.Get(AttrAddr); ok {
		t.Errorf("an address, and no cluster: %v", &a.Attrs)
	}
	for _, p := range []*resource.List{
		list(t, nil), list(t, resource.Match{"zone": "a"}), list(t, resource.Match{"zone": "a"}, AttrNode),
		list(t, resource.Match{AttrKind: "node", "zone": "b"}), list(t, resource.Match{AttrKind: "context", "zone": "a"}),
	} {
		if a := nodes(t, c, p); len(a) != 0 {
			t.Errorf("%v finds %+v", p, a)
		}
	}
	if a, err := c.Lookup(ctx, id); err != nil || a.Attrs.GetString("zone") != "a" {
		t.Errorf("by its identifier: %+v, %v", a, err)
	}
	before, _ := c.Lookup(ctx, id)
	try.Fails(c.Register(ctx, id, list(t, nil)))(t, ErrNotOwner)  // registering a node
	try.Fails(c.Update(ctx, id, 0, list(t, nil)))(t, ErrNotOwner) // changing a node
	try.Fails(c.Delete(ctx, id))(t, ErrNotOwner)                  // deleting a node
	if a, err := c.Lookup(ctx, id); err != nil || a.Revision != before.Revision || !a.Attrs.Equal(&before.Attrs) {
		t.Errorf("after all that: %+v, %v", a, err)
	}
	other := &Client{dial: DialSocket(path), self: id}
	try.Fails(other.join(ctx, nil))(t, ErrDenied) // joining as the node
}

// Whatever process serves, there is one node. A watch of the node sees changes and never an end. A
// server that is no daemon keeps the labels.
//
// Promise (Nodes): A node stays the same when another process serves it, with its labels.
func TestNodeOutlivesServers(t *testing.T) {
	path, s, c := begun(t, AsDaemon(), WithLabels(labels(t, resource.Attrs{"zone": "a"})))
	next, stop := iter.Pull2(c.Watch(eventually.Context(t), list(t, resource.Match{AttrKind: "node"})))
	defer stop()
	expect := func(kind EventKind, zone string) (rev uint64) {
		t.Helper()
		ev, err, _ := next()
		try.OK(t, err)
		if ev.Kind != kind || ev.Attrs.GetString("zone") != zone || kind != Synced && ev.ID != NodeResource(s.Node()) {
			t.Fatalf("%v %v %v, want %v, zone %q", ev.Kind, ev.ID, &ev.Attrs, kind, zone)
		}
		return ev.Revision
	}
	rev := expect(Appeared, "a")
	expect(Synced, "")
	for _, next := range []struct {
		opts []Option
		zone string
	}{
		{nil, "a"}, // served by a context
		{nil, "a"},
		{[]Option{AsDaemon(), WithLabels(labels(t, resource.Attrs{"zone": "b"}))}, "b"},
		{[]Option{WithLabels(Labels{})}, ""},
		{[]Option{AsDaemon(), WithLabels(labels(t, resource.Attrs{"zone": "a"}))}, "a"},
		{[]Option{AsDaemon()}, ""}, // a daemon without labels removes them
		{nil, ""},
	} {
		try.OK(t, s.Close())
		s = serve(t, path, next.opts...)
		now := expect(Changed, next.zone)
		if now <= rev {
			t.Errorf("revision %d after %d", now, rev)
		}
		rev = now
		try.Equal(t, len(nodes(t, c, list(t, resource.Match{AttrKind: "node"}))), 1, "nodes")
	}
}

// Servers that share a database are several nodes. A server that returns has the same node as
// before.
func TestNodesShareDatabase(t *testing.T) {
	db := database.New()
	first := NewIdentity()
	one, two := NewServer(WithDatabase(db), WithIdentity(first)), NewServer(WithDatabase(db))
	defer one.Close()
	defer two.Close()
	c := joinedBy(t, one.Dialer())
	all := list(t, resource.Match{AttrKind: "node"})
	try.Equal(t, len(nodes(t, c, all)), 2, "nodes")
	again := NewServer(WithDatabase(db), WithIdentity(first), WithLabels(labels(t, resource.Attrs{"new": "yes"})))
	defer again.Close()
	try.Equal(t, len(nodes(t, c, all)), 2, "nodes")
	if a := nodes(t, c, list(t, resource.Match{AttrKind: "node", "new": "yes"})); len(a) != 1 || a[0].ID != NodeResource(first.Node) {
		t.Errorf("%+v", a)
	}
}

// A node has what its server may use.
func TestAvailable(t *testing.T) {
	for _, c := range []struct {
		limits cgroup.Limits
		cores  int
		memory uint64
	}{
		{cgroup.Limits{}, 4, 1 << 30},
		{cgroup.Limits{Memory: 1 << 20, CPUs: 1.5}, 2, 1 << 20},
		{cgroup.Limits{Memory: 1 << 40, CPUs: 64}, 4, 1 << 30},
		{cgroup.Limits{CPUs: 0.01}, 1, 1 << 30},
	} {
		if cores, memory := available(4, 1<<30, c.limits); cores != c.cores || memory != c.memory {
			t.Errorf("%+v: %d processors, %d bytes", c.limits, cores, memory)
		}
	}
	if _, memory := available(4, 0, cgroup.Limits{Memory: 7}); memory != 7 {
		t.Errorf("%d bytes of an unknown number", memory)
	}
}
