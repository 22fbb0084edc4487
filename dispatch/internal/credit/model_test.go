// SPDX-License-Identifier: Apache-2.0

package credit

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"pgregory.net/rapid"
)

// A peer is a context that sends to the mailbox of the model, and both sides of its account.
type peer struct {
	m       *model
	r       *Receiver
	name    int
	account Account
	sender  Sender
	waiting []Outgoing // messages that wait for credit, in order
	taken   []uint64   // charges of messages that have their credit and are not sent yet
	up      []frame    // frames on their way to the receiver
	down    []answer   // answers on their way to the sender
	stored  []uint64   // charges of the messages in the mailbox
	tries   bool       // credit was asked for that no message waits for
}

// A frame has the charge of a message, or else asks for credit, or gives some back.
type frame struct {
	message     uint64
	need        uint64
	o           Outgoing
	limit, held uint64
}

// An answer is the credit of a sender, or refuses the message o.
type answer struct {
	granted uint64
	need    uint64 // for which credit was asked
	o       Outgoing
}

// A model is two mailboxes of a context with their senders. The test moves each frame.
type model struct {
	t       *rapid.T
	budget  Budget
	rs      [2]Receiver
	peers   []*peer
	awaited map[int]bool // receivers wait for messages of these peers
	byName  bool         // and name them
	freed   bool         // senders that wait may get credit
}

func (p *peer) IsAwaited(byName bool) bool {
	return p.m.awaited[p.name] && (!byName || p.m.byName && len(p.m.awaited) == 1)
}
func (p *peer) HasReceivers() bool {
	return slices.ContainsFunc(p.m.peers, func(o *peer) bool { return o.r == p.r && p.m.awaited[o.name] })
}
func (p *peer) HasMemory(Outgoing, uint64) bool { return false }

// newModel makes a model with some senders.
func newModel(t *rapid.T, memory int64, bounded bool) *model {
	m := &model{t: t, awaited: map[int]bool{}}
	pool := buffers.New(buffers.WithLimit(memory))
	m.budget.Init(pool, func() { m.freed = true })
	first := uint64(First)
	for i := range m.rs {
		limit := rapid.Uint64Range(1, 1<<20).Draw(t, "limit")
		if bounded {
			m.rs[i].InitBounded(&m.budget, limit, rapid.Uint64Range(0, 20).Draw(t, "messages"))
			first = 0
		} else {
			m.rs[i].Init(&m.budget, limit)
		}
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "senders") {
		p := &peer{m: m, r: &m.rs[min(i%3, 1)], name: i, sender: NewSender(first)}
		p.account = NewAccount(p, nil)
		m.peers = append(m.peers, p)
	}
	return m
}

// send sends a message, or makes it wait for credit.
func (p *peer) send(o Outgoing) {
	if c := p.sender.Charge(int(o.Size)); len(p.waiting) == 0 && p.sender.Take(c) {
		p.taken = append(p.taken, c)
		return
	}
	p.waiting = append(p.waiting, o)
	p.serve()
}

// try sends a message if it has credit, and else asks for that.
func (p *peer) try(o Outgoing) {
	c := p.sender.Charge(int(o.Size))
	switch {
	case len(p.waiting) > 0:
	case p.sender.Take(c):
		p.taken = append(p.taken, c)
	default:
		p.tries = true
		if !p.sender.HasAsked(c) {
			if need, isNew := p.sender.Ask(c, o); isNew {
				p.up = append(p.up, frame{need: need, o: o})
			}
		}
	}
}

// dropTry takes back what try has asked for.
func (p *peer) dropTry() {
	p.tries = false
	if len(p.waiting) > 0 {
		return
	}
	if limit, isOpen := p.sender.Withdraw(); isOpen {
		p.up = append(p.up, frame{need: limit})
	}
	p.giveBack(true)
}

// serve sends what has credit, and asks for more.
func (p *peer) serve() {
	for len(p.waiting) > 0 {
		o := p.waiting[0]
		c := p.sender.Charge(int(o.Size))
		if !p.sender.Take(c) {
			if need, isNew := p.sender.Ask(c, o); isNew {
				p.up = append(p.up, frame{need: need, o: o})
			}
			return
		}
		p.taken = append(p.taken, c)
		p.waiting = p.waiting[1:]
	}
	p.giveBack(false)
}

// giveBack returns credit that no message waits for.
func (p *peer) giveBack(hasGivenUp bool) {
	if limit, held, gives := p.sender.GiveBack(hasGivenUp); gives {
		p.up = append(p.up, frame{limit: limit, held: held})
	}
}

// put sends the next message that has its credit. Frames that ask for credit, or give some back,
// may have overtaken it.
func (p *peer) put() {
	p.up = append(p.up, frame{message: p.taken[0]})
	p.taken = p.taken[1:]
}

// giveUp drops a message that waits.
func (p *peer) giveUp(i int) {
	p.waiting = append(p.waiting[:i:i], p.waiting[i+1:]...)
	p.skip()
}

// skip goes on without a message that has waited.
func (p *peer) skip() {
	p.serve()
	if len(p.waiting) == 0 {
		if limit, isOpen := p.sender.Withdraw(); isOpen {
			p.up = append(p.up, frame{need: limit})
		}
		p.giveBack(true)
	}
}

// arrive lets the next frame arrive.
func (p *peer) arrive() {
	f := p.up[0]
	p.up = p.up[1:]
	r, a := p.r, &p.account
	switch {
	case f.message > 0:
		if !a.IsOpen() {
			r.Open(a)
		}
		p.m.check(r.Arrive(a, f.message))
		p.stored = append(p.stored, f.message)
		if o, _, hasCome := r.Oversize(); o == a && hasCome {
			p.m.grant(p.r)
		}
	case f.held > 0:
		p.m.check(r.GiveBack(a, f.limit, f.held))
		p.m.grant(p.r)
	default:
		if !a.IsOpen() && r.Opens(f.need) {
			r.Open(a)
		}
		grant, others, err := r.Ask(a, f.need, f.o)
		if errors.Is(err, ErrTooLarge) {
			p.down, err = append(p.down, answer{need: f.need, o: f.o}), nil
		}
		p.m.check(err)
		if grant != 0 {
			p.tell()
		}
		if others {
			p.m.grant(p.r)
		}
	}
}

// tell tells the sender what it was granted.
func (p *peer) tell() {
	if granted, isNew := p.account.Announce(); isNew {
		p.down = append(p.down, answer{granted: granted})
	}
}

// learn lets the next answer reach the sender.
func (p *peer) learn() {
	for len(p.taken) > 0 { // their goroutines run before the next answer comes
		p.put()
	}
	d := p.down[0]
	p.down = p.down[1:]
	if d.need > 0 {
		if p.sender.Refused(d.need, d.o) && len(p.waiting) > 0 && p.waiting[0] == d.o {
			p.giveUp(0)
		}
		return
	}
	if unit := p.account.Unit(); unit > 0 && !p.sender.SetUnit(unit) {
		p.m.t.Fatalf("unit %d was refused", unit)
	}
	if p.sender.Grant(d.granted) {
		p.serve()
	}
}

// consume takes a message out of the mailbox.
func (p *peer) consume(i int) {
	c, r, a := p.stored[i], p.r, &p.account
	p.stored = append(p.stored[:i:i], p.stored[i+1:]...)
	r.Consume(a, c)
	if next := r.NextAfter(a); next != nil {
		r.GrantNeed(next)
		next.Owner().(*peer).tell()
		p.m.grant(p.r)
	} else if r.Renew(a) != 0 {
		p.tell()
	}
}

// grant grants what senders to a mailbox wait for.
func (m *model) grant(r *Receiver) {
	for a := r.Next(); a != nil; a = r.Next() {
		r.GrantNeed(a)
		a.Owner().(*peer).tell()
	}
}

// grantFreed grants what senders to all mailboxes wait for, if the budget has said so.
func (m *model) grantFreed() {
	for m.freed {
		m.freed = false
		for i := range m.rs {
			if len(m.rs[i].Waiting()) > 0 {
				m.budget.Queue()
			}
			m.grant(&m.rs[i])
		}
	}
}

// String describes the mailboxes and senders.
func (m *model) String() string {
	s := ""
	for i := range m.rs {
		r := &m.rs[i]
		s += fmt.Sprintf("\nmailbox %d: limit %d, %d promised", i, r.limit, r.promise)
		for _, p := range m.peers {
			if a := &p.account; p.r == r {
				s += fmt.Sprintf("\n  sender %d: %d consumed, %d received, %d granted, needs %d, is over %v; %d sent, limit %d, asked %d, not waited for %v, %d messages wait",
					p.name, a.consumed, a.received, a.granted, a.need, r.oversize == a, p.sender.sent, p.sender.limit, p.sender.asked, p.sender.unasked, len(p.waiting))
			}
		}
	}
	return s
}

func (m *model) check(err error) {
	if err != nil {
		m.t.Fatalf("the receiver refuses what a sender may do: %v", err)
	}
}

// compare compares the sums of the receiver with its accounts.
func (m *model) compare() {
	m.grantFreed()
	whole := uint64(0)
	for i := range m.rs {
		r := &m.rs[i]
		stored, promise, open := uint64(0), uint64(0), 0
		for _, p := range m.peers {
			if p.r != r {
				continue
			}
			a := &p.account
			stored += a.Stored()
			promise += a.granted - a.consumed
			if a.isOpen {
				open++
			}
			if p.sender.Sent() > a.granted && a.isOpen {
				m.t.Fatalf("sender %d has sent %d of %d", p.name, p.sender.Sent(), a.granted)
			}
		}
		// One sender has a message beyond the limit, and behind it another one that a receiver
		// names. The question for the next message of each may overtake the first one.
		most := 2*r.Limit() + uint64(open)*First + 4*Charge(sizeMost)
		if stored != r.Stored() || promise != r.Promised() || promise > most {
			m.t.Fatalf("the accounts have %d stored of %d promised bytes, the receiver %d of %d; at most %d", stored, promise, r.Stored(), r.Promised(), most)
		}
		whole += promise
	}
	if m.budget.memory > 0 && uint64(m.budget.Promised()) != whole {
		m.t.Fatalf("%d bytes are promised, %d of the budget", whole, m.budget.Promised())
	}
}

// sizeMost is the size of the longest messages of the model, which a little memory never holds.
const sizeMost = 5 << 19

// In whatever order frames and receives come, no sender is refused what it may send, none waits for
// ever, and what is promised is bounded and counted.
func TestCredit(t *testing.T) {
	for name, memory := range map[string]int64{"no limit": 0, "memory": 32 << 20, "little memory": 3 << 20} {
		for _, bounded := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, bounded %v", name, bounded), rapid.MakeCheck(func(t *rapid.T) {
				m := newModel(t, memory, bounded)
				some := func(has func(*peer) bool) *peer {
					var able []*peer
					for _, p := range m.peers {
						if has(p) {
							able = append(able, p)
						}
					}
					if len(able) == 0 {
						t.Skip("nobody can")
					}
					return rapid.SampledFrom(able).Draw(t, "peer")
				}
				t.Repeat(map[string]func(*rapid.T){
					"": func(*rapid.T) { m.compare() },
					"send": func(t *rapid.T) {
						size := rapid.OneOf(rapid.Uint32Range(0, 100), rapid.Uint32Range(0, First), rapid.Uint32Range(0, sizeMost)).Draw(t, "size")
						some(func(*peer) bool { return true }).send(Outgoing{Tag: 1, Size: size})
					},
					"give up": func(t *rapid.T) {
						p := some(func(p *peer) bool { return len(p.waiting) > 0 })
						p.giveUp(rapid.IntRange(0, len(p.waiting)-1).Draw(t, "message"))
					},
					"try": func(t *rapid.T) {
						some(func(*peer) bool { return true }).try(Outgoing{Tag: 2, Size: rapid.Uint32Range(0, sizeMost).Draw(t, "size")})
					},
					"put":      func(*rapid.T) { some(func(p *peer) bool { return len(p.taken) > 0 }).put() },
					"drop try": func(*rapid.T) { some(func(p *peer) bool { return p.tries }).dropTry() },
					"arrive":   func(*rapid.T) { some(func(p *peer) bool { return len(p.up) > 0 }).arrive() },
					"learn":    func(*rapid.T) { some(func(p *peer) bool { return len(p.down) > 0 }).learn() },
					"consume": func(t *rapid.T) {
						p := some(func(p *peer) bool { return len(p.stored) > 0 })
						p.consume(rapid.IntRange(0, len(p.stored)-1).Draw(t, "message"))
					},
					"await": func(t *rapid.T) {
						clear(m.awaited)
						m.byName = rapid.Bool().Draw(t, "by name")
						for range rapid.IntRange(0, 2).Draw(t, "receivers") {
							m.awaited[rapid.IntRange(0, len(m.peers)-1).Draw(t, "peer")] = true
						}
						for i := range m.rs {
							m.grant(&m.rs[i])
						}
					},
				})
				m.settle()
			}))
		}
	}
}

// settle lets everything arrive, and takes all messages. It fails if a sender still waits.
func (m *model) settle() {
	clear(m.awaited)
	for isIdle := false; !isIdle; {
		isIdle = true
		for _, p := range m.peers {
			switch {
			case len(p.taken) > 0:
				p.put()
			case len(p.up) > 0:
				p.arrive()
			case len(p.down) > 0:
				p.learn()
			case len(p.stored) > 0:
				p.consume(0)
			case p.tries:
				p.dropTry()
			default:
				continue
			}
			isIdle = false
			m.compare()
		}
	}
	for _, p := range m.peers {
		if len(p.waiting) > 0 {
			m.t.Fatalf("sender %d waits for ever: %v", p.name, m)
		}
	}
	for _, p := range m.peers {
		p.r.Close(&p.account)
	}
	if m.rs[0].Promised()+m.rs[1].Promised() != 0 || m.budget.Promised() != 0 || m.budget.outstanding != 0 {
		m.t.Fatalf("%d bytes are promised to nobody, %d of the budget", m.rs[0].Promised()+m.rs[1].Promised(), m.budget.Promised())
	}
}
