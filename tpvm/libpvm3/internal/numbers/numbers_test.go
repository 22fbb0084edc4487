// SPDX-License-Identifier: Apache-2.0

package numbers

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// All processes compute the same number for a task. The numbers look like PVM's, and the task can
// be found by its number.
func TestNumbers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	nodes := rocltest.Cluster(t, 2)
	var cs []*rocl.Context
	var ns []*Numbers
	var ids []rocl.GID
	for i := range 6 {
		c := nodes.Open(i % 2)
		n := New(c, "vm")
		try.OK(t, n.Claim(ctx))
		r := try.Get(c.Register(ctx, rocl.Attrs{"type": "task", "vm": "vm"}))(t)
		cs, ns, ids = append(cs, c), append(ns, n), append(ids, r.ID())
	}
	seen := map[int]bool{}
	for _, id := range ids {
		first := try.Get(ns[0].Number(ctx, id))(t)
		if !Valid(first) || first>>18 < 1 || first>>18 > 2 || seen[first] {
			t.Errorf("%v has the number %#x", id, first)
		}
		seen[first] = true
		fresh := New(cs[1], "vm") // a process that has not learned any numbers
		for _, n := range append(ns, fresh) {
			try.Gives(n.Number(ctx, id))(t, first, "the number of %v", id)
		}
		try.Gives(New(cs[1], "vm").Task(ctx, first))(t, id, "%#x", first)
	}
	try.Fails(ns[0].Task(ctx, 1<<18|1<<17+12345))(t, rocl.ErrNotFound, "a number that no task has")
	// A second claim of the same number fails.
	try.Fails(New(cs[0], "vm").Claim(ctx))(t, rocl.ErrExists, "a number that is claimed")
}

// While a node cannot be asked, only the numbers of the hosts that answer are missing for certain.
// A number is claimed once also then.
func TestPartial(t *testing.T) {
	t.Parallel() // the member waits 3 s for the one that it is to join
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := rocl.Open(ctx, rocl.WithSocket(filepath.Join(t.TempDir(), "s")), rocl.WithCluster("test"), // no member has port 1
		rocl.WithMember(cluster.Member{Bind: "127.0.0.1:0", Join: []string{"127.0.0.1:1"}}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	// Claim asks for a unique number of the host, which fails while a node cannot be asked.
	host := rocl.Attrs{"type": "tidhost", "vm": "vm", "node": fmt.Sprintf("%012x", uint64(c.ID().Node())), "index": "1"}
	try.Get(c.Register(ctx, host))(t)
	n := New(c, "vm")
	for h, want := range map[int]error{1: rocl.ErrNotFound, 2: rocl.ErrPartial} {
		try.Fails(n.Task(ctx, h<<18|1<<17+12345))(t, want, "a number of host %d that no task has", h)
	}
	try.Check(t, n.Claim(ctx))
	try.Fails(New(c, "vm").Claim(ctx))(t, rocl.ErrExists, "a number that is claimed")
}

// A process finds the number of its host in the claim of another process. If that ends before the
// process has registered the number too, another host may have got it. The process does not keep
// it.
//
// Promise (Package tpvm): No two hosts get the same number of PVM.
func TestHostClaimEnded(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	nodes := rocltest.Cluster(t, 2)
	here, there := nodes.Open(0), nodes.Open(1)
	claim := try.Get(here.Register(ctx, nil))(t)
	try.OK(t, claim.Close())
	if i, err := New(there, "vm").Host(ctx, uint64(there.ID().Node())); i != 1 || err != nil {
		t.Fatal(i, err)
	}
	n := New(here, "vm")
	if isKept, err := n.keepHost(ctx, uint64(here.ID().Node()), 1, claim.ID()); isKept || err != nil {
		t.Error(isKept, err)
	}
	for range 2 {
		try.Gives(n.Host(ctx, uint64(here.ID().Node())))(t, 2)
	}
}
