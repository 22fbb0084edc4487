// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// in joins a server in memory with the Remote r, which may be nil.
func in(t *testing.T, r *remote) (*Server, *Client) {
	t.Helper()
	s := NewServer()
	t.Cleanup(func() { s.Close() })
	if r != nil {
		s.Attach(r)
	}
	c := try.Get(Join(t.Context(), s.Dialer()))(t)
	t.Cleanup(func() { c.Close() })
	return s, c
}

// The resource of a node that is a member has the member's address, under a later revision.
func TestNodeInCluster(t *testing.T) {
	s, c := in(t, nil)
	before := try.Get(c.Lookup(t.Context(), NodeResource(s.Node())))(t)
	members := nothing()
	members.addr = "10.0.0.7:7946"
	s.Attach(members)
	a, err := c.Find(t.Context(), list(t, resource.Match{AttrKind: "node"}))
	if err != nil || a.Attrs.GetString(AttrAddr) != "10.0.0.7:7946" || a.Revision <= before.Revision || s.db.Len() != 1 {
		t.Errorf("%+v, %v; before %+v; %d in the database", a, err, before, s.db.Len())
	}
}

// FindAll ends with ErrPartial if a node could not be asked. FindCovering reports the nodes
// instead.
//
// Promise (Resources): A program can learn which nodes were asked, and which could not be asked.
// See also TestAllForgotten.
func TestCoverage(t *testing.T) {
	ctx := t.Context()
	node := resource.NodeID(7)
	f := holding(resource.Record{ID: resource.MakeGID(node, 1, 1), Owner: resource.MakeGID(node, 1, 0), Revision: 1}, nil)
	_, c := in(t, f)
	find := func(cov *Coverage) (n int, err error) {
		for _, e := range c.FindCovering(ctx, list(t, resource.Match{"type": "x"}), cov) {
			if e != nil {
				return n, e
			}
			n++
		}
		return n, nil
	}
	var cov Coverage
	if n, err := find(&cov); n != 1 || err != nil || !reflect.DeepEqual(cov, Coverage{Covered: 3}) {
		t.Errorf("%d, %v, %+v", n, err, cov)
	}
	try.Gives(find(nil))(t, 1)
	f.failed = []resource.NodeID{8, 9}
	if n, err := find(&cov); n != 1 || err != nil || !reflect.DeepEqual(cov, Coverage{3, []resource.NodeID{8, 9}}) || !errors.Is(cov.Err(), ErrPartial) {
		t.Errorf("%d, %v, %+v", n, err, cov)
	}
	if n, err := find(nil); n != 1 || !errors.Is(err, ErrPartial) {
		t.Errorf("%d, %v", n, err)
	}
	_, alone := in(t, nil)
	for range alone.FindCovering(ctx, list(t, nil), &cov) {
		t.Error("something")
	}
	if !reflect.DeepEqual(cov, Coverage{Covered: 1}) {
		t.Errorf("without a cluster: %+v", cov)
	}
}

// A trace begins with this node's result. The other steps are those that the Remote reports.
func TestTrace(t *testing.T) {
	ctx := t.Context()
	there := resource.MakeGID(7, 1, 1)
	told, refusal, asked := Trace{
		Found: there, Covered: 2, Failed: []resource.NodeID{9}, Sent: 2, Received: 1, Messages: 5,
		Steps: []TraceStep{{Node: 7, How: "tree", Members: 2, Asked: time.Millisecond, Took: time.Millisecond, Outcome: "found", Found: there}, {Node: 9, How: "flat", Members: 1}},
	}, error(nil), []strategy.Strategy(nil)
	s, c := in(t, &remote{trace: func(by strategy.Strategy) (Trace, error) {
		asked = append(asked, by)
		for begun := time.Now(); time.Since(begun) == 0; { // until a coarse clock moves
		}
		return told, refusal
	}})
	tr, err := c.Trace(ctx, strategy.Tree, list(t, resource.Match{"type": "x"}))
	if err != nil || tr.Node != s.Node() || tr.Strategy != "tree" || tr.Found != there || tr.Covered != 3 || tr.Messages != 5 || tr.Took <= 0 || !slices.Equal(tr.Failed, told.Failed) {
		t.Fatalf("%+v, %v", tr, err)
	}
	if len(tr.Steps) != 3 || tr.Steps[0].How != "local" || tr.Steps[0].Outcome != "none" || tr.Steps[1].Found != there || tr.Steps[1].Asked < time.Millisecond {
		t.Errorf("%+v", tr.Steps)
	}
	id := c.Self().WithSerial(1)
	try.Get(c.Register(ctx, id, list(t, resource.Attrs{"type": "x"})))(t)
	if tr, err = c.Trace(ctx, strategy.Unicast, list(t, resource.Match{"type": "x"})); err != nil || tr.Found != id || tr.Steps[0].Found != id || len(tr.Steps) != 3 {
		t.Errorf("%+v, %v", tr, err)
	}
	refusal = ErrClosed
	try.Fails(c.Trace(ctx, strategy.Auto, list(t, nil)))(t, ErrClosed) // a cluster that fails
	if !slices.Equal(asked, []strategy.Strategy{strategy.Tree, strategy.Unicast, strategy.Auto}) {
		t.Errorf("asked for %v", asked)
	}
	if _, err := c.Trace(ctx, strategy.Strategy(9), list(t, nil)); err == nil || !strings.Contains(err.Error(), "unknown search strategy 9") {
		t.Errorf("an unknown strategy: %v", err)
	}
	gone, stop := context.WithCancel(ctx)
	stop()
	try.Fails(c.Trace(gone, strategy.Auto, list(t, nil)))(t, context.Canceled) // cancelled
	_, alone := in(t, nil)
	if tr, err := alone.Trace(ctx, strategy.Auto, list(t, resource.Match{"type": "x"})); err != nil || !tr.Found.IsZero() || tr.Covered != 1 || len(tr.Steps) != 1 || tr.Messages != 0 {
		t.Errorf("without a cluster: %+v, %v", tr, err)
	}
}

// A malformed question for a trace ends its own connection, with the reason, and no other one.
//
// Promise (Directory): A malformed request for a trace ends its connection only. See also
// FuzzServer.
func TestTraceMalformed(t *testing.T) {
	s, c := in(t, nil)
	good := append([]byte{0}, list(t, resource.Match{"a": "b"}).Wire()...)
	for _, body := range [][]byte{nil, {0}, {byte(len(traceCodes)), 0, 0, 6, 0, 0, 0}, good[:len(good)-1], append(slices.Clone(good), 0), {255, 255, 255, 255, 255, 255, 255}} {
		a := &askConn{c: raw(t, s.Dialer(), wire.KindAsk)}
		if _, err := a.exchange(t.Context(), wire.MsgTrace, wire.MsgTraced, func(b *wire.Builder) { b.Append(body) }); !errors.Is(err, ErrProtocol) {
			t.Errorf("% x: %v", body, err)
		}
		_ = a.c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := a.c.Read(make([]byte, 1)); err == nil || errors.Is(err, net.ErrClosed) {
			t.Errorf("% x: the connection goes on: %v", body, err)
		}
	}
	try.Get(c.Trace(t.Context(), strategy.Auto, list(t, nil)))(t)
}
