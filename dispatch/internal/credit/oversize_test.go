// SPDX-License-Identifier: Apache-2.0

package credit

import (
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// newPeers makes a mailbox with the smallest limit, and contexts that send to it.
func newPeers(n int) *model {
	m := &model{awaited: map[int]bool{}}
	m.budget.Init(buffers.New(), func() { m.freed = true })
	m.rs[0].Init(&m.budget, First)
	for i := range n {
		p := &peer{m: m, r: &m.rs[0], name: i, sender: NewSender(First)}
		p.account = NewAccount(p, nil)
		p.r.Open(&p.account)
		m.peers = append(m.peers, p)
	}
	return m
}

// ask lets the receiver know that p waits for credit for a message of some bytes behind what it has
// sent.
func (p *peer) ask(t *testing.T, size uint32) (grant uint64) {
	t.Helper()
	o := Outgoing{Tag: 1, Size: size}
	need, _ := p.sender.Ask(p.sender.Charge(int(size)), o)
	grant, _, err := p.r.Ask(&p.account, need, o)
	try.OK(t, err)
	return grant
}

// A sender gives back the rest of a grant beyond the limit before the message arrives that has used
// a part of it. No other sender gets such a grant before that message has left the mailbox.
func TestGiveBackBeforeMessage(t *testing.T) {
	m := newPeers(2)
	r, a, b := &m.rs[0], m.peers[0], m.peers[1]
	a.sender.Grant(a.ask(t, sizeMost))
	c := Charge(sizeMost / 2)
	if !a.sender.Take(c) { // the message for which a has asked was given up
		t.Fatal("a has no credit")
	}
	limit, held, gives := a.sender.GiveBack(true)
	if !gives {
		t.Fatal("a keeps its credit")
	}
	try.OK(t, r.GiveBack(&a.account, limit, held))
	if grant := b.ask(t, sizeMost); grant != 0 {
		t.Fatalf("b was granted %d while a message of a is under way: %d are promised, the limit is %d", grant, r.Promised(), r.Limit())
	}
	try.OK(t, r.Arrive(&a.account, c))
	if next := r.Next(); next != nil {
		t.Fatal("b gets credit while the message of a is stored")
	}
	r.Consume(&a.account, c)
	if r.NextAfter(&a.account) != &b.account {
		t.Fatal("b gets no credit")
	}
}

// The second of two waiting messages asks for credit before the first one is sent, which has got a
// grant beyond the limit. It waits behind another sender that has asked before.
func TestGrantUsedBeforeQuestion(t *testing.T) {
	m := newPeers(2)
	r, a, b := &m.rs[0], m.peers[0], m.peers[1]
	a.sender.Grant(a.ask(t, sizeMost))
	if grant := b.ask(t, sizeMost); grant != 0 {
		t.Fatal("b has a second grant beyond the limit")
	}
	c := Charge(sizeMost)
	if !a.sender.Take(c) {
		t.Fatal("a has no credit")
	}
	if grant := a.ask(t, sizeMost); grant != 0 {
		t.Fatalf("a was granted %d before b, which has waited for longer", grant)
	}
	try.OK(t, r.Arrive(&a.account, c))
	r.Consume(&a.account, c)
	if r.NextAfter(&a.account) != &b.account {
		t.Fatal("b is not the next one")
	}
}
