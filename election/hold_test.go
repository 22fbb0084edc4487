// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/election"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

var role = rocl.Attrs{"role": "leader"}

// A node is cut off, with the holder. While the others may not know whether it is there, Hold does
// not succeed. Then both sides have a holder. When the cut ends, the newer one is told why it has
// lost the name, and the number of the older one is above its own.
//
// Promise (Package election): A standby does not take a name while a node that may live cannot be
// asked.
func TestCut(t *testing.T) {
	rocltest.Simulate(t, 0, func(w *rocltest.World) {
		const cutAt, cutFor = time.Second, 12 * time.Second
		w.AddNodes(3)
		terms, begun := make(chan *election.Term, 2), time.Now()
		hold := func(ctx context.Context, c *rocl.Context) {
			term, err := election.Hold(ctx, c, role)
			if err != nil {
				w.Errorf("%v", err)
				return
			}
			terms <- term
		}
		w.Start(0, "older", func(p *rocltest.Process) {
			hold(p.Context(), p.Rocl())
			<-p.Context().Done()
		})
		w.Start(1, "newer", func(p *rocltest.Process) {
			time.Sleep(cutAt / 2) // of virtual time, as below
			hold(p.Context(), p.Rocl())
			<-p.Context().Done()
		})
		w.Start(2, "impatient", func(p *rocltest.Process) {
			time.Sleep(cutAt + 50*time.Millisecond)                              // when the cut has begun
			ctx, stop := context.WithTimeout(p.Context(), 1800*time.Millisecond) // less than a death takes
			defer stop()
			_, err := election.Hold(ctx, p.Rocl(), role)
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, rocl.ErrPartial) {
				w.Errorf("while a node may have the holder: %v", err)
			}
			own := rocl.Match{election.AttrName: `"role"="leader"`, rocl.AttrContext: p.Rocl().ID().String()}
			for f, err := range p.Rocl().FindAll(p.Context(), own, rocl.Want()) {
				if err == nil { // the other node cannot be asked
					w.Errorf("the claim %v is not withdrawn", f.ID)
				}
			}
			<-p.Context().Done()
		})
		w.RunFaults(2*time.Second, []rocltest.Fault{
			{At: cutAt, Kind: rocltest.CutPaths, A: 0, B: 1, For: cutFor},
			{At: cutAt, Kind: rocltest.CutPaths, A: 0, B: 2, For: cutFor},
		})
		if len(terms) != 2 {
			w.Errorf("%d terms", len(terms))
			return
		}
		older, newer := <-terms, <-terms
		select {
		case <-newer.Done():
		default:
			w.Errorf("two hold the name, %v after the cut", time.Since(begun)-cutAt-cutFor)
		}
		if err := newer.Err(); !errors.Is(err, election.ErrLost) {
			w.Errorf("the newer one: %v", err)
		}
		if older.Err() != nil || older.Number() <= newer.Number() {
			w.Errorf("the older one: %v, number %d, that of the newer one %d", older.Err(), older.Number(), newer.Number())
		}
		f, err := w.Process("impatient").Rocl().Find(w.Context(), rocl.Match(role))
		if err != nil || f.ID != older.Resource().ID() || f.Attrs.GetString(election.AttrNumber) != strconv.FormatUint(older.Number(), 10) {
			w.Errorf("found %v, %v", f, err)
		}
	})
}

// The end of the context, and that of the resource, end the term.
func TestEnds(t *testing.T) {
	cluster, ctx := rocltest.Cluster(t, 1), eventually.Context(t)
	c := cluster.Open(0)
	term := try.Get(election.Hold(ctx, c, role, election.Above(math.MaxInt64/2), election.WithRegister(rocl.MailboxMessages(1))))(t)
	if n := term.Number(); n <= math.MaxInt64/2 {
		t.Error("number", n)
	}
	try.OK(t, term.Resource().Delete(ctx))
	<-term.Done()
	try.Fails(term.Err())(t, rocl.ErrClosed, "the program has deleted the resource")
	try.OK(t, term.Close())
	term = try.Get(election.Hold(ctx, c, role))(t)
	go c.Close()
	<-term.Context().Done()
	try.Fails(context.Cause(term.Context()))(t, rocl.ErrClosed)
	try.OK(t, term.Close())
}

func TestInvalid(t *testing.T) {
	cluster, ctx := rocltest.Cluster(t, 1), eventually.Context(t)
	c := cluster.Open(0)
	for _, bad := range []struct {
		name  rocl.Attributes
		above uint64
		err   error
	}{
		{nil, 0, rocl.ErrIncomplete},
		{rocl.Attrs{}, 0, rocl.ErrIncomplete},
		{rocl.Match{"role": "leader", "shard": ""}, 0, nil}, // an empty value is one
		{rocl.Attrs{"election.number": "1"}, 0, rocl.ErrReservedName},
		{rocl.Attrs{"rocl.kind": "node"}, 0, rocl.ErrReservedName},
		{role, math.MaxInt64, election.ErrNumbers},
		{role, math.MaxUint64, election.ErrNumbers},
	} {
		term, err := election.Hold(ctx, c, bad.name, election.Above(bad.above), nil)
		if !errors.Is(err, bad.err) || bad.err == nil && err != nil {
			t.Errorf("%v: %v", bad.name, err)
		}
		if term != nil {
			term.Close()
		}
	}
	try.Fails(election.Hold(ctx, nil, role))(t, fs.ErrInvalid)
	// Resources whose attributes are no claims do not matter.
	for _, n := range []string{"", "-1", "0", "x", "9223372036854775808"} {
		try.Get(c.Register(ctx, rocl.Attrs{election.AttrName: `"role"="leader"`, election.AttrClaim: n, election.AttrNumber: "1"}))(t)
		try.Get(c.Register(ctx, rocl.Attrs{election.AttrName: `"role"="leader"`, election.AttrClaim: "1", election.AttrNumber: n}))(t)
	}
	try.OK(t, try.Get(election.Hold(ctx, c, role))(t).Close())
	// A claim of the greatest number leaves none above it.
	try.Get(c.Register(ctx, rocl.Attrs{election.AttrName: `"role"="leader"`, election.AttrClaim: "9223372036854775807"}))(t)
	try.Fails(election.Hold(ctx, c, role))(t, election.ErrNumbers)
}
