// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
)

// Await returns when enough resources match at one time, even if some come and go meanwhile.
//
// Promise (Resources): `Await` returns when n resources match at one time, without polling. See
// also TestFindAcrossNodes.
func TestAwait(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0), cl.Open(0)
	worker := resource.Match{"role": "worker"}
	type result struct {
		found []rocl.Found
		err   error
	}
	done := make(chan result)
	go func() {
		f, err := a.Await(bg, worker, 3, rocl.At("load", resource.Lt, 1), rocl.Want("name"))
		done <- result{f, err}
	}()
	load := func(r *rocl.Resource, v string) {
		t.Helper()
		try.OK(t, r.Set(bg, "load", v))
	}
	one := newResource(t, b, resource.Attrs{"role": "worker", "name": "1", "load": "0"})
	gone := newResource(t, b, resource.Attrs{"role": "worker", "name": "gone", "load": "0"})
	gone.Close()
	two := newResource(t, b, resource.Attrs{"role": "worker", "name": "2", "load": "5"})
	load(one, "1") // the resource does not match any more
	three := newResource(t, b, resource.Attrs{"role": "worker", "name": "3", "load": "-0.5"})
	load(two, "0.5")
	select {
	case r := <-done:
		t.Fatal("two are enough for three:", r)
	default:
	}
	load(one, "0.99")
	r := <-done
	if r.err != nil || len(r.found) != 3 {
		t.Fatal(r)
	}
	ids := []resource.GID{one.ID(), two.ID(), three.ID()}
	for _, f := range r.found {
		if !slices.Contains(ids, f.ID) || f.Attrs.String() != fmt.Sprintf("{role=worker, name=%d}", 1+slices.Index(ids, f.ID)) || f.Context != b.ID() {
			t.Error(f.ID, &f.Attrs)
		}
	}
	// The resources that match already suffice, and are returned in order.
	found, err := a.Await(bg, worker, 1, rocl.Most("load"))
	if err != nil || len(found) != 3 || found[0].ID != one.ID() || found[2].ID != three.ID() {
		t.Error(found, err)
	}
	// Without an order, no more than are asked for are returned. With an order, its attribute is in
	// the answers only if it is wanted or in the pattern.
	if found, err = a.Await(bg, worker, 2, rocl.Want("name")); err != nil || len(found) != 2 {
		t.Error(found, err)
	}
	for want, opts := range map[string][]rocl.FindOption{
		"{role=worker, name=1}":            {rocl.Most("load"), rocl.Want("name"), rocl.At("load", resource.Lt, 1)},
		"{role=worker, name=1, load=0.99}": {rocl.Most("load"), rocl.Want("name", "load")},
	} {
		if found, err = a.Await(bg, worker, 3, opts...); err != nil || len(found) != 3 || found[0].Attrs.String() != want {
			t.Error(found, err, "want", want)
		}
	}
	if found, err = a.Await(bg, resource.Match{"load": "0.5"}, 1, rocl.Most("load"), rocl.Want("name")); err != nil || found[0].Attrs.String() != "{load=0.5, name=2}" {
		t.Error(found, err)
	}
	ctx, cancel := context.WithCancelCause(bg)
	why := errors.New("enough of it")
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	try.Fails(a.Await(ctx, worker, 4))(t, why)
	try.Fails(a.Await(bg, worker, 0))(t, resource.ErrCondition)
	go func() {
		_, err := a.Await(bg, worker, 4)
		done <- result{nil, err}
	}()
	a.Close()
	if r := <-done; !errors.Is(r.err, dispatch.ErrClosed) {
		t.Error(r.err)
	}
}

// load is a number with a text of its own, as time.Duration is.
type load float64

func (load) String() string { return "much" }

// Numbers of all kinds are compared by their values.
func TestAt(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	r := newResource(t, c, resource.Attrs{"n": "18446744073709551615", "x": "2e+06", "y": "-0.1"})
	for name, o := range map[string]rocl.FindOption{
		"uint64": rocl.At("n", resource.Eq, uint64(math.MaxUint64)), "int": rocl.At("y", resource.Lt, 0), "float64": rocl.At("x", resource.Eq, 2000000.0),
		"float32": rocl.At("y", resource.Eq, float32(-0.1)), "named": rocl.At("y", resource.Ge, load(-0.1)), "int8": rocl.At("y", resource.Gt, int8(math.MinInt8)),
	} {
		if f, err := c.Find(bg, nil, o); err != nil || f.ID != r.ID() {
			t.Errorf("%s: %v", name, err)
		}
	}
	try.Fails(c.Find(bg, nil, rocl.At("n", resource.Eq, uint64(math.MaxUint64)-1)))(t, directory.ErrNotFound, "rounded")
	for name, o := range map[string][]rocl.FindOption{
		"not finite": {rocl.At("x", resource.Lt, math.Inf(1))}, "no Op": {rocl.At("x", 0, 1)}, "two orders": {rocl.Least("x"), rocl.Most("x")},
	} {
		try.Fails(c.Find(bg, nil, o...))(t, resource.ErrCondition, name)
	}
	for _, err := range c.Watch(bg, nil, rocl.Least("x")) {
		if !errors.Is(err, resource.ErrCondition) {
			t.Fatal("a watch in an order:", err)
		}
	}
}

// Finds and watches evaluate a pattern that was parsed. A watched resource comes and goes as its
// numbers do, also if the answers are limited.
func TestParsedPattern(t *testing.T) {
	cl := rocltest.Cluster(t, 2)
	a, b := cl.Open(0), cl.Open(1)
	var zones rocl.List
	for _, v := range []string{"x", "north"} { // the second value matches
		try.OK(t, zones.AddString("zone", v))
	}
	try.OK(t, zones.AddString("load", "1"))
	r := try.Get(b.Register(bg, &zones))(t)
	newResource(t, b, rocl.Attrs{"zone": "west", "load": "1"})
	newResource(t, b, rocl.Attrs{"zone": "south", "load": "3"})
	p := try.Get(rocl.Parse("load<3 zone=north|south"))(t)
	try.Equal(t, try.Get(a.Find(bg, p))(t).ID, r.ID())
	if found := all(t, a.FindAll(bg, p, rocl.Least("load"), rocl.Want("load"))); len(found) != 1 || found[0].Attrs.String() != "{load=1}" {
		t.Error(found)
	}
	try.Fails(rocl.Parse("load<x"))(t, rocl.ErrCondition)
	for _, opts := range [][]rocl.FindOption{nil, {rocl.Want("load")}} {
		ctx, cancel := context.WithCancel(bg)
		var got []string
		for ev, err := range a.Watch(ctx, p, opts...) {
			if err != nil {
				break
			}
			got = append(got, ev.Kind.String())
			switch len(got) {
			case 1:
				if ev.ID != r.ID() || opts != nil && ev.Attrs.String() != "{load=1}" {
					t.Error(ev)
				}
			case 2:
				try.OK(t, r.Set(bg, "load", "5"))
			case 3:
				try.OK(t, r.Set(bg, "load", "1"))
			case 4:
				cancel()
			}
		}
		cancel()
		try.Equal(t, strings.Join(got, " "), "appeared synced gone appeared")
	}
}

// Find returns the first in an order. Attributes that are not numbers come last.
func TestLeast(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0), cl.Open(0)
	for _, v := range []string{"3", "none", "-1.5", "10"} {
		newResource(t, b, resource.Attrs{"role": "worker", "load": v})
	}
	newResource(t, b, resource.Attrs{"role": "worker"})
	var cov directory.Coverage
	f, err := a.Find(bg, resource.Match{"role": "worker"}, rocl.Least("load"), rocl.Covered(&cov))
	if err != nil || f.Attrs.GetString("load") != "-1.5" || cov.Covered != 1 {
		t.Error(&f.Attrs, err, cov)
	}
	if f, err = a.Find(bg, resource.Match{"role": "worker"}, rocl.Most("load"), rocl.Want("x")); err != nil || f.Attrs.String() != "{role=worker, x=?}" {
		t.Error(&f.Attrs, err)
	}
	var loads []string
	for _, f := range all(t, a.FindAll(bg, resource.Match{"role": "worker"}, rocl.Most("load"))) {
		loads = append(loads, f.Attrs.GetString("load"))
	}
	if !slices.Equal(loads[:3], []string{"10", "3", "-1.5"}) || len(loads) != 5 {
		t.Error(loads)
	}
}

// A context finds the resources of another context by that context's identifier.
//
// Promise (Resources): A pattern with `AttrContext` matches what that context has registered.
func TestOwner(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0), cl.Open(0)
	mine := newResource(t, a, resource.Attrs{"role": "worker"})
	its := []resource.GID{newResource(t, b, resource.Attrs{"role": "worker"}).ID(), newResource(t, b, resource.Attrs{"role": "master"}).ID()}
	of := func(c *rocl.Context, more ...string) resource.Match {
		m := resource.Match{rocl.AttrContext: c.ID().String()}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	if f, err := a.Find(bg, of(b, "role", "master")); err != nil || f.ID != its[1] || f.Context != b.ID() {
		t.Error(f.ID, err)
	}
	if f, err := b.Find(bg, of(a), rocl.Want("role", rocl.AttrContext)); err != nil || f.ID != mine.ID() || f.Attrs.GetString(rocl.AttrContext) != a.ID().String() || f.Attrs.Len() != 2 {
		t.Error(f.ID, &f.Attrs, err)
	}
	try.Fails(a.Find(bg, of(a, "role", "master")))(t, directory.ErrNotFound)
	if ids := idsOf(all(t, a.FindAll(bg, of(b)))); !slices.Equal(ids, its) {
		t.Error(ids)
	}
	if f, err := a.Find(bg, of(b, rocl.AttrKind, "context")); err != nil || f.ID != b.ID() {
		t.Error(f.ID, err)
	}
	for ev, err := range a.Watch(bg, of(b)) {
		try.OK(t, err)
		if ev.Kind == directory.Synced {
			continue
		}
		if ev.Kind == directory.Gone {
			break
		}
		if !slices.Contains(its, ev.ID) {
			t.Error(ev.Kind, ev.ID)
		}
		if its = slices.DeleteFunc(its, func(id resource.GID) bool { return id == ev.ID }); len(its) == 0 {
			b.Close()
		}
	}
	try.Fails(a.Find(bg, resource.Match{rocl.AttrContext: "nobody"}))(t, resource.ErrBadGID)
}

// A watch that wants AttrContext yields it with each event of a resource, also the last. A send to
// a resource that a watch has yielded asks the directory no more.
func TestWatchOwner(t *testing.T) {
	cl := rocltest.Cluster(t, 2)
	a, b := cl.Open(0), cl.Open(1)
	me, you := newResource(t, a, nil), newResource(t, b, resource.Attrs{"type": "x"})
	seen := 0
	for ev, err := range a.Watch(bg, resource.Match{"type": "x"}, rocl.Want("load", rocl.AttrContext)) {
		try.OK(t, err)
		if ev.Kind == directory.Synced {
			if owners, _, _ := rocl.CacheSizes(a); owners != 1 {
				t.Errorf("%d owners are known after the watch", owners)
			}
			try.OK(t, you.Set(bg, "load", "1"))
			continue
		}
		seen++
		if owner := ev.Attrs.GetString(rocl.AttrContext); owner != b.ID().String() {
			t.Errorf("event %v: owner %q of {%v}", ev.Kind, owner, &ev.Attrs)
		}
		if ev.Kind == directory.Changed {
			send(t, me, you.ID(), "hello")
			expect(t, you, "hello")
			try.OK(t, you.Delete(bg))
		}
		if ev.Kind == directory.Gone {
			break
		}
	}
	if seen != 3 {
		t.Errorf("%d events", seen)
	}
	if owners, _, _ := rocl.CacheSizes(a); owners != 0 {
		t.Errorf("%d owners after the only resource was gone", owners)
	}
}

// Set changes one attribute, and concurrent changes are not lost.
func TestSet(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	var l resource.List
	for _, v := range []string{"1", "2", "3"} {
		_ = l.AddString("load", v)
		_ = l.AddString("tag", v)
	}
	r, err := c.Register(bg, &l)
	try.OK(t, err)
	is := func(want string) {
		t.Helper()
		if f, err := c.Lookup(bg, r.ID()); err != nil || f.Attrs.String() != want || f.Revision != r.Revision() {
			t.Error(&f.Attrs, f.Revision, r.Revision(), err)
		}
	}
	try.Check(t, r.Set(bg, "load", "4"))
	is("{load=4, tag=1, tag=2, tag=3}")
	try.Check(t, r.Set(bg, "new", ""))
	is("{load=4, tag=1, tag=2, tag=3, new=}")
	try.Check(t, r.Update(bg, resource.Attrs{"n": "0"}))
	var busy sync.WaitGroup
	for i := range 8 {
		busy.Go(func() {
			for n := range 20 {
				try.Check(t, r.Set(bg, fmt.Sprint("set", i), fmt.Sprint(n)))
			}
		})
	}
	for n := range 20 { // other goroutines update as well
		for {
			f, err := c.Lookup(bg, r.ID())
			try.OK(t, err)
			_ = f.Attrs.Set("n", fmt.Append(nil, n+1))
			if _, err = r.CompareAndSet(bg, f.Revision, &f.Attrs); err == nil {
				break
			}
			if !errors.Is(err, directory.ErrRevision) {
				t.Fatal(err)
			}
		}
	}
	busy.Wait()
	f, err := c.Lookup(bg, r.ID())
	if err != nil || f.Attrs.Len() != 9 || f.Attrs.GetString("n") != "20" || f.Revision != r.Revision() {
		t.Error(&f.Attrs, err)
	}
	for i := range 8 {
		if v := f.Attrs.GetString(fmt.Sprint("set", i)); v != "19" {
			t.Error(i, v)
		}
	}
	try.Fails(r.Set(bg, "rocl.x", "1"))(t, resource.ErrReservedName)
	ended, cancel := context.WithCancel(bg)
	cancel()
	try.Fails(r.Set(ended, "x", "1"))(t, context.Canceled)
	r.Close()
	try.Fails(r.Set(bg, "x", "1"))(t, dispatch.ErrClosed)
}

// SendTo skips resources that are gone, chooses by order, and leaves the buffer to the caller if it
// fails.
//
// Promise (Sending): `SendTo` and `SendToAll` pass over resources that are gone. If they fail, the
// buffer stays the caller's. See also TestSendToAll.
func TestSendTo(t *testing.T) {
	s := nodes(t, 1)[0]
	a, b := near(t, s), near(t, s)
	from := newResource(t, a, nil)
	workers := map[resource.GID]*rocl.Resource{}
	for i := range 4 {
		w := newResource(t, b, resource.Attrs{"role": "worker", "load": fmt.Sprint(i)})
		workers[w.ID()] = w
	}
	worker := resource.Match{"role": "worker"}
	to, err := from.SendTo(bg, worker, 7, fill(t, a, "hello"))
	if err != nil || workers[to] == nil {
		t.Fatal(to, err)
	}
	expect(t, workers[to], "hello")
	if to, err = from.SendTo(bg, worker, 7, fill(t, a, "most"), rocl.Most("load")); err != nil || workers[to] == nil {
		t.Fatal(to, err)
	}
	if f, err := a.Lookup(bg, to); err != nil || f.Attrs.GetString("load") != "3" {
		t.Error(&f.Attrs, err)
	}
	expect(t, workers[to], "most")
	// lost is found but does not exist, like a resource whose end the directory does not know yet.
	lost := b.ID().WithSerial(1 << 20)
	l := try.Get(resource.NewPattern(resource.Attrs{"role": "worker", "load": "-1"}))(t)
	try.OK(t, errOf(s.Database().Put(lost, b.ID(), l)))
	if to, err = from.SendTo(bg, worker, 7, fill(t, a, "least"), rocl.Least("load")); err != nil || workers[to] == nil {
		t.Fatal(to, err)
	}
	if f, err := a.Lookup(bg, to); err != nil || f.Attrs.GetString("load") != "0" {
		t.Error(&f.Attrs, err)
	}
	expect(t, workers[to], "least")
	for _, w := range workers {
		w.Close()
	}
	buf := fill(t, a, "nobody")
	try.Fails(from.SendTo(bg, worker, 7, buf))(t, dispatch.ErrGone)
	try.Fails(from.SendTo(bg, resource.Match{"role": "none"}, 7, buf))(t, directory.ErrNotFound)
	buf.Release() // the buffer is still the caller's
}
