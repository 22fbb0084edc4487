// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"iter"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// far is a Remote made up by a test.
type far struct {
	found      []resource.Record
	failed     []resource.NodeID
	trace      Trace
	err        error
	strategies []strategy.Strategy // the strategies of the traces asked for
}

func (f *far) Find(context.Context, *resource.List) (resource.Record, error) {
	return resource.Record{}, ErrNotFound
}

func (f *far) Lookup(context.Context, resource.GID, *resource.List) (resource.Record, error) {
	return resource.Record{}, ErrNotFound
}

func (f *far) All(_ context.Context, _ *resource.List, cov *Coverage) iter.Seq2[resource.Record, error] {
	return func(yield func(resource.Record, error) bool) {
		for _, r := range f.found {
			if !yield(r, nil) {
				return
			}
		}
		cov.Covered += 2
		cov.Failed = f.failed
	}
}

func (f *far) Trace(_ context.Context, w strategy.Strategy, _ *resource.List) (Trace, error) {
	f.strategies = append(f.strategies, w)
	return f.trace, f.err
}

func (f *far) Watch(*resource.List, *database.Watch) func() { return func() {} }

func (f *far) Addr() string { return "10.0.0.7:7946" }

// in joins a server in memory with the Remote f, which may be nil.
func in(t *testing.T, f *far) (*Server, *Client) {
	t.Helper()
	s := NewServer()
	t.Cleanup(func() { s.Close() })
	if f != nil {
		s.Attach(f)
	}
	c, err := Join(t.Context(), s.Dialer())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return s, c
}

// The resource of a node that is a member has the member's address, under a later revision.
func TestNodeInCluster(t *testing.T) {
	s, c := in(t, nil)
	before, err := c.Lookup(t.Context(), NodeResource(s.Node()))
	if err != nil {
		t.Fatal(err)
	}
	s.Attach(&far{})
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
	f := &far{found: []resource.Record{{ID: resource.MakeGID(node, 1, 1), Owner: resource.MakeGID(node, 1, 0), Revision: 1}}}
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
	if n, err := find(nil); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
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
	f := &far{trace: Trace{
		Found: there, Covered: 2, Failed: []resource.NodeID{9}, Sent: 2, Received: 1, Messages: 5,
		Steps: []TraceStep{{Node: 7, How: "tree", Members: 2, Asked: time.Millisecond, Took: time.Millisecond, Outcome: "found", Found: there}, {Node: 9, How: "flat", Members: 1}},
	}}
	s, c := in(t, f)
	tr, err := c.Trace(ctx, strategy.Tree, list(t, resource.Match{"type": "x"}))
	if err != nil || tr.Node != s.Node() || tr.Strategy != "tree" || tr.Found != there || tr.Covered != 3 || tr.Messages != 5 || tr.Took <= 0 || !slices.Equal(tr.Failed, f.trace.Failed) {
		t.Fatalf("%+v, %v", tr, err)
	}
	if len(tr.Steps) != 3 || tr.Steps[0].How != "local" || tr.Steps[0].Outcome != "none" || tr.Steps[1].Found != there || tr.Steps[1].Asked < time.Millisecond {
		t.Errorf("%+v", tr.Steps)
	}
	id := c.Self().WithSerial(1)
	if _, err := c.Register(ctx, id, list(t, resource.Attrs{"type": "x"})); err != nil {
		t.Fatal(err)
	}
	if tr, err = c.Trace(ctx, strategy.Unicast, list(t, resource.Match{"type": "x"})); err != nil || tr.Found != id || tr.Steps[0].Found != id || len(tr.Steps) != 3 {
		t.Errorf("%+v, %v", tr, err)
	}
	f.err = ErrClosed
	if _, err := c.Trace(ctx, strategy.Auto, list(t, nil)); !errors.Is(err, ErrClosed) {
		t.Errorf("a cluster that fails: %v", err)
	}
	if !slices.Equal(f.strategies, []strategy.Strategy{strategy.Tree, strategy.Unicast, strategy.Auto}) {
		t.Errorf("asked for %v", f.strategies)
	}
	if _, err := c.Trace(ctx, strategy.Strategy(9), list(t, nil)); err == nil || !strings.Contains(err.Error(), "unknown search strategy 9") {
		t.Errorf("an unknown strategy: %v", err)
	}
	gone, stop := context.WithCancel(ctx)
	stop()
	if _, err := c.Trace(gone, strategy.Auto, list(t, nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
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
		nc, err := s.Dialer()(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a := &askConn{c: wire.NewConn(nc)}
		if _, err := nc.Write(wire.Greeting(wire.KindAsk)); err != nil {
			t.Fatal(err)
		}
		if _, err := a.exchange(t.Context(), wire.MsgTrace, wire.MsgTraced, func(b *wire.Builder) { b.Append(body) }); !errors.Is(err, ErrProtocol) {
			t.Errorf("% x: %v", body, err)
		}
		_ = nc.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := nc.Read(make([]byte, 1)); err == nil || errors.Is(err, net.ErrClosed) {
			t.Errorf("% x: the connection goes on: %v", body, err)
		}
		nc.Close()
	}
	if _, err := c.Trace(t.Context(), strategy.Auto, list(t, nil)); err != nil {
		t.Error(err)
	}
}
