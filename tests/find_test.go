// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// In a cluster of three nodes, Await counts resources of all nodes, the least loaded one is that of
// all nodes, and comparisons are made where the resources are. If three contexts register a Unique
// resource at the same time, one succeeds.
func TestFindAcrossNodes(t *testing.T) {
	ctx := eventually.Context(t)
	binds := []string{freePort(t), freePort(t), freePort(t)}
	var nodes []*lib.Context
	for i, bind := range binds {
		nodes = append(nodes, open(t, socket(t), lib.WithCluster("test"), lib.WithMember(cluster.Member{Bind: bind, Join: binds[:i]})))
	}
	for _, c := range nodes { // each node knows all
		try.Get(c.Await(ctx, lib.Match{lib.AttrKind: "node"}, 3))(t)
	}
	var workers []*lib.Resource
	for i, c := range nodes {
		workers = append(workers, register(t, c, lib.Attrs{"role": "worker", "load": fmt.Sprint(10 - i)}))
	}
	worker := lib.Match{"role": "worker"}
	found, err := nodes[0].Await(ctx, worker, 3, lib.Least("load"))
	if err != nil || len(found) != 3 || found[0].ID != workers[2].ID() || found[2].ID != workers[0].ID() {
		t.Fatal(found, err)
	}
	var cov lib.Coverage
	for i, c := range nodes {
		try.OK(t, workers[i].Set(ctx, "load", "-0.5"))
		for _, from := range nodes {
			if f, err := from.Find(ctx, worker, lib.Least("load"), lib.Covered(&cov)); err != nil || f.ID != workers[i].ID() || cov.Covered != 3 {
				t.Fatal(f.ID, err, cov)
			}
			if f, err := from.Find(ctx, worker, lib.At("load", lib.Lt, 0)); err != nil || f.ID != workers[i].ID() {
				t.Fatal(f.ID, err)
			}
			if f, err := from.Find(ctx, lib.Match{"role": "worker", lib.AttrContext: c.ID().String()}); err != nil || f.ID != workers[i].ID() {
				t.Fatal(f.ID, err)
			}
		}
		try.OK(t, workers[i].Set(ctx, "load", "5"))
	}
	for round := range 10 {
		attrs := lib.Attrs{"role": "master", "round": fmt.Sprint(round)}
		var won atomic.Int32
		var busy sync.WaitGroup
		for _, c := range nodes {
			busy.Go(func() {
				switch _, err := c.Register(ctx, attrs, lib.Unique("role", "round")); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, lib.ErrExists):
					t.Error(err)
				}
			})
		}
		if busy.Wait(); won.Load() != 1 {
			t.Fatalf("round %d: %d are the only one", round, won.Load())
		}
	}
	from := register(t, nodes[0], nil)
	buf := try.Get(nodes[0].Buffer(4))(t)
	copy(buf.Bytes(), "work")
	if n, err := from.SendToAll(ctx, worker, 1, buf); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	for _, w := range workers {
		m, err := w.Recv(ctx)
		if err != nil || !slices.Equal(m.Bytes(), []byte("work")) {
			t.Fatal(err)
		}
		m.Release()
	}
}
