// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A thousand contexts have a hundred thousand resources on one node. Each of a sample is found by
// its attributes, and gets its own message and no other.
//
// Promise (Resources): A thousand contexts and a hundred thousand resources fit on one machine,
// find each other and exchange messages. See also TestCrowd.
func TestScale(t *testing.T) {
	contexts, each, sample := 1000, 100, 5000
	if short.Form(t) {
		contexts, sample = 50, 500
	}
	began := time.Now()
	ctx := eventually.Context(t)
	cl := rocltest.Cluster(t, 1)
	cs := make([]*lib.Context, contexts)
	for i := range cs {
		cs[i] = cl.Open(0)
	}
	rs := make([]*lib.Resource, contexts*each)
	for i := range rs {
		r := try.Get(cs[i%contexts].Register(ctx, lib.Attrs{"kind": "scale", "i": strconv.Itoa(i)}))(t)
		rs[i] = r
	}
	t.Logf("%d resources of %d contexts after %v", len(rs), contexts, time.Since(began))
	seen := 0
	for _, err := range cs[0].FindAll(ctx, lib.Match{"kind": "scale"}, lib.Want("i")) {
		try.OK(t, err)
		seen++
	}
	try.Equal(t, seen, len(rs), "resources found")
	// Each sender's i-th message goes to a resource of another context. 7919 is prime to both
	// numbers of resources, so no two receivers are the same.
	to := func(n int) int { return n * 7919 % len(rs) }
	for n := range sample {
		i := to(n)
		from := rs[(i+1)%len(rs)]
		f := try.Get(from.Context().Find(ctx, lib.Match{"kind": "scale", "i": strconv.Itoa(i)}))(t)
		if f.ID != rs[i].ID() || f.Context != cs[i%contexts].ID() || f.Attrs.GetString("i") != strconv.Itoa(i) {
			t.Fatalf("looking for resource %d, %v, %v was found", i, rs[i].ID(), f)
		}
		try.OK(t, from.SendBytes(ctx, f.ID, uint64(i), []byte(fmt.Sprint("for ", i))))
	}
	for n := range sample {
		i := to(n)
		m := try.Get(rs[i].Recv(ctx))(t)
		if want := fmt.Sprint("for ", i); string(m.Bytes()) != want || m.Tag() != uint64(i) || m.From() != rs[(i+1)%len(rs)].ID() {
			t.Errorf("resource %d got %q with tag %d from %v", i, m.Bytes(), m.Tag(), m.From())
		}
		m.Release()
	}
	for i, r := range rs {
		if m, err := r.TryRecv(); !errors.Is(err, lib.ErrEmpty) {
			t.Fatalf("resource %d got another message: %v, %v", i, m, err)
		}
	}
	for _, c := range cs {
		try.Check(t, c.Close())
	}
	t.Logf("took %v", time.Since(began))
}
