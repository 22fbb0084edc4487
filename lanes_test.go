// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// inThreeWays returns a function that opens contexts on one node. They reach each other in memory,
// by shared memory and over TCP, in this order of preference.
func inThreeWays(t *testing.T) func(...rocl.Option) *rocl.Context {
	cl := rocltest.Cluster(t, 1)
	near := inproc.NewNetwork().Transport()
	return func(more ...rocl.Option) *rocl.Context {
		return cl.Open(0, append([]rocl.Option{rocl.WithTransports(near, shm.New(), tcp.New())}, more...)...)
	}
}

// overOf returns the transports over which f makes c send messages.
func overOf(c *rocl.Context, f func()) (over map[string]uint64) {
	before := c.Stats().Sent
	f()
	over = c.Stats().Sent
	for name, n := range before {
		if over[name] -= n; over[name] == 0 {
			delete(over, name)
		}
	}
	return over
}

// isOver checks that f makes c send n messages over one transport, and no others.
func isOver(t *testing.T, c *rocl.Context, what, transport string, n uint64, f func()) {
	t.Helper()
	if got := overOf(c, f); len(got) != 1 || got[transport] != n {
		t.Errorf("%s: %v, want %d over %s", what, got, n, transport)
	}
}

// A resource that is registered with Over is reached over its transports, by every kind of message,
// whatever the rules of the sender. Its replies use them too. Changes of its attributes leave them.
//
// Promise (Transports): All messages, calls and replies of a resource use the transports that its
// `Over`, or the sender's first matching rule, names, in order. Without `*`, they use no others.
// See also TestOverUnreachable, TestRules, TestLanes, TestLanesOfNetworks.
func TestOver(t *testing.T) {
	open := inThreeWays(t)
	a, b := open(rocl.WithRules(rocl.Rule{Over: []string{"shm"}})), open()
	me := newResource(t, a, nil)
	you, err := b.Register(bg, resource.Attrs{"name": "you"}, rocl.Over("tcp", "shm"), rocl.MailboxMessages(10))
	try.OK(t, err)
	check := func(when string) {
		t.Helper()
		isOver(t, a, when, "tcp", 1, func() { send(t, me, you.ID(), "hello"); expect(t, you, "hello") })
		if f, err := a.Find(bg, resource.Match{"name": "you"}); err != nil || f.Attrs.GetString(rocl.AttrOver) != "tcp,shm" {
			t.Errorf("%s: %v, %v", when, &f.Attrs, err)
		}
	}
	isOver(t, a, "TrySend", "tcp", 1, func() {
		for {
			p, err := a.Buffer(5)
			try.OK(t, err)
			copy(p.Bytes(), "hello")
			if err = me.TrySend(you.ID(), 0, p); err == nil {
				break
			}
			p.Release()
			if err != dispatch.ErrFull {
				t.Fatal(err)
			}
			_, _ = me.TryRecv() // makes progress
		}
		expect(t, you, "hello")
	})
	check("at first")
	try.OK(t, you.Set(bg, "color", "red"))
	check("after Set")
	try.OK(t, you.Update(bg, resource.Attrs{"name": "you"}))
	check("after Update")
	done := make(chan struct{})
	go func() {
		defer close(done)
		m, err := you.Recv(bg)
		if err != nil {
			t.Error(err)
			return
		}
		isOver(t, b, "the reply", "tcp", 1, func() {
			try.Check(t, you.ReplyBytes(bg, m, []byte("hello")))
		})
		m.Release()
	}()
	m := try.Get(me.CallBytes(bg, you.ID(), 1, nil))(t)
	m.Release()
	<-done
	other := newResource(t, b, nil)
	isOver(t, a, "another resource", "shm", 1, func() { send(t, me, other.ID(), "hello"); expect(t, other, "hello") })
	mine := try.Get(a.Register(bg, nil, rocl.Over("tcp")))(t)
	isOver(t, b, "the other way", "tcp", 1, func() { send(t, you, mine.ID(), "hello"); expect(t, mine, "hello") })
	send(t, me, mine.ID(), "within the context")
	expect(t, mine, "within the context")
}

// A context that lacks the transports of a resource does not reach it, and reaches other resources
// of the same context.
func TestOverUnreachable(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	near := inproc.NewNetwork().Transport()
	a := cl.Open(0, rocl.WithTransports(near), rocl.WithGiveUp(100*time.Millisecond), rocl.WithUndelivered(func(dispatch.Undelivered) {}))
	b := cl.Open(0, rocl.WithTransports(near, shm.New(), tcp.New()))
	me := newResource(t, a, nil)
	far := try.Get(b.Register(bg, nil, rocl.Over("shm", "tcp")))(t)
	try.Fails(me.CallBytes(bg, far.ID(), 1, nil))(t, dispatch.ErrUnreachable)
	any := try.Get(b.Register(bg, nil, rocl.Over("tcp", "*")))(t)
	for _, to := range []*rocl.Resource{any, newResource(t, b, nil)} {
		send(t, me, to.ID(), "hello")
		expect(t, to, "hello")
	}
}

// The first rule that matches a resource says over which transports it is reached. The choice stays
// when the attributes change, so that the messages to it keep their order.
func TestRules(t *testing.T) {
	open := inThreeWays(t)
	b, other := open(), open()
	a := open(rocl.WithRules(
		rocl.Rule{Match: resource.Match{"role": "control"}, Over: []string{"tcp"}},
		rocl.Rule{Match: resource.Match{"role": "near"}},
		rocl.Rule{Match: resource.Match{rocl.AttrContext: other.ID().String()}, Over: []string{"tcp", "*"}},
		rocl.Rule{Over: []string{"shm", "*"}},
	))
	me, elsewhere := newResource(t, a, nil), newResource(t, b, nil)
	for _, c := range []struct {
		at        *rocl.Context
		role, via string
	}{{b, "control", "tcp"}, {b, "near", "inproc"}, {b, "", "shm"}, {other, "", "tcp"}, {other, "near", "inproc"}} {
		you := newResource(t, c.at, resource.Attrs{"role": c.role})
		isOver(t, a, c.role, c.via, 1, func() { send(t, me, you.ID(), "one"); expect(t, you, "one") })
		try.OK(t, you.Set(bg, "role", "control"))
		send(t, me, elsewhere.ID(), "the resource keeps the flow of its last message")
		expect(t, elsewhere, "the resource keeps the flow of its last message")
		rocl.CacheOwner(a, you.ID(), c.at.ID()) // forgets the flow
		n := questions(a, func() {
			via := c.via
			if via == "inproc" { // where nothing is under way when Send returns
				via = "tcp"
			}
			isOver(t, a, "after the change of "+c.role, via, 1, func() { send(t, me, you.ID(), "two"); expect(t, you, "two") })
		})
		if n < 1 { // a link that is being made asks for addresses too
			t.Errorf("%s: %d questions", c.role, n)
		}
	}
}

// Only contexts with rules, and only resources with Over, cost a question for the lane.
func TestLaneQuestions(t *testing.T) {
	open := inThreeWays(t)
	a, b := open(), open()
	all := open(rocl.WithRules(rocl.Rule{Over: []string{"tcp"}}))
	for _, c := range []*rocl.Context{a, all} {
		me := newResource(t, c, nil)
		first, plain := newResource(t, b, nil), newResource(t, b, nil)
		send(t, me, first.ID(), "now the contexts are linked")
		expect(t, first, "now the contexts are linked")
		if n := questions(c, func() { send(t, me, plain.ID(), "hello") }); n != 0 {
			t.Errorf("%d questions for a plain resource", n)
		}
		for _, isLinked := range []bool{false, true} { // a link that is being made asks for addresses too
			routed := try.Get(b.Register(bg, nil, rocl.Over("shm")))(t)
			n := questions(c, func() {
				for range 2 {
					send(t, me, routed.ID(), "hello")
					expect(t, routed, "hello")
				}
			})
			if n < 1 || isLinked && n > 1 {
				t.Errorf("%d questions for a resource with Over", n)
			}
		}
	}
}

func TestRulesChecked(t *testing.T) {
	c := inThreeWays(t)()
	for _, over := range [][]string{{"pigeon"}, {"tcp", "tcp"}, {"*", "tcp"}, {""}, {"tcp://10.0.0.1"}} {
		try.Fails(c.Register(bg, nil, rocl.Over(over...)))(t, dispatch.ErrRule, "Over %q", over)
		try.Fails(rocl.Open(bg, rocl.WithRules(rocl.Rule{Over: over})))(t, dispatch.ErrRule, "a rule with %q", over)
	}
	for _, match := range []resource.Match{{"": "x"}, {rocl.AttrContext: "x"}} {
		try.Fails(rocl.Open(bg, rocl.WithRules(rocl.Rule{Match: match})))(t, dispatch.ErrRule, "a rule for %v", match)
	}
	for _, over := range [][]string{nil, {"*"}, {"tls"}, {"tcp://10.0.0.0/8", "*"}} {
		if _, err := c.Register(bg, nil, rocl.Over(over...)); err != nil {
			t.Errorf("Over %q: %v", over, err)
		}
	}
}
