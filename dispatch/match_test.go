// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// sent is a message of the model of a mailbox.
type sent struct {
	from uint32
	tag  uint64
	n    int
}

// checkMatcher compares the chains of a mailbox with its list.
func checkMatcher(t *rapid.T, m *Mailbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.matcher
	if x == nil {
		return
	}
	kinds, slots, inChains := 0, 0, 0
	for _, is := range x.kinds {
		if is {
			kinds++
		}
	}
	hasPassed := x.until == nil
	for msg := m.messages.First(); msg != nil; msg = msg.place.Next() {
		n := 0
		for s := msg.slot; s != nil; s = s.also {
			if s.msg != msg || s.chain.key != keyOf(s.chain.key.kind, msg.from, msg.tag) || x.chains[s.chain.key] != s.chain {
				t.Fatalf("a slot of tag %d is of another message or chain", msg.tag)
			}
			n++
		}
		if want := kinds; hasPassed && n != 0 || !hasPassed && n != want {
			t.Fatalf("a message is in %d chains, %v behind the last one", n, hasPassed)
		}
		slots += n
		if msg == x.until {
			hasPassed = true
		}
	}
	for _, c := range x.chains {
		var prev *slot
		for s := c.slots.First(); s != nil; prev, s = s, s.place.Next() {
			if s.place.Prev() != prev || prev != nil && prev.order >= s.order || s.order < x.lowest {
				t.Fatalf("a chain of %+v is out of order", c.key)
			}
			inChains++
		}
		if c.slots.Last() != prev || prev == nil {
			t.Fatalf("a chain of %+v has no end", c.key)
		}
	}
	if !hasPassed || slots != inChains || slots != x.used {
		t.Fatalf("%d slots in messages, %d in chains, %d counted", slots, inChains, x.used)
	}
}

// A mailbox is a list, from which a receive takes the first message that matches. That holds for
// any selectors of earlier receives, and while messages are copied out of their blocks.
//
// Promise (Receiving): A receive returns the first message in the mailbox that its selectors match.
// A new message goes to the receiver that has waited longest. See also TestReceiversModel.
//
// Promise (Receiving): A message put back by `PutBack` is received next, once, and counts against
// credit again. See also TestPutBack.
//
// Promise (Receiving): `Peek` describes the message that a receive with the same selectors would
// return. See also TestPutBack.
func TestMailboxModel(t *testing.T) {
	w := newWorld()
	d := w.node(t, 1, inproc.NewNetwork().Transport())
	serial := uint32(0)
	rapid.Check(t, func(t *rapid.T) {
		serial++
		m, err := d.Mailbox(serial, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		f, err := d.Flow(d.self, serial)
		if err != nil {
			t.Fatal(err)
		}
		var kept []sent
		var held []*Message
		n := 0
		send := func(from uint32, tag uint64) {
			n++
			b, err := d.cfg.Pool.Get(8)
			if err == nil {
				copy(b.Bytes(), fmt.Sprintf("%08d", n))
				err = f.Send(context.Background(), from, tag, b)
			}
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, sent{from, tag, n})
		}
		of := func(msg *Message) sent {
			n, _ := strconv.Atoi(string(msg.Bytes()))
			return sent{msg.From().Serial(), msg.Tag(), n}
		}
		froms, tags := rapid.Uint32Range(1, 8), rapid.Uint64Range(0, 15)
		var used []Select // used again and again
		var is []condition
		receive := func(t *rapid.T) {
			var sel Select
			var c condition
			if len(used) > 0 && rapid.Bool().Draw(t, "again") {
				i := rapid.IntRange(0, len(used)-1).Draw(t, "which")
				sel, c = used[i], is[i]
			} else {
				sel, c = drawFrom(t, d.self)
				used, is = append(used, sel), append(is, c)
			}
			i := slices.IndexFunc(kept, func(k sent) bool { return c(d.self.WithSerial(k.from), k.tag) })
			e, errPeek := m.Peek(sel)
			msg, err := m.TryRecv(sel)
			if !errors.Is(err, errPeek) {
				t.Fatalf("%v, and a peek before: %v", err, errPeek)
			}
			if i < 0 {
				if !errors.Is(err, ErrEmpty) && !errors.Is(err, ErrSelect) {
					t.Fatalf("%v, %v where nothing matches", msg, err)
				}
				return
			}
			if err != nil || of(msg) != kept[i] || e != (Envelope{From: msg.From(), Tag: msg.Tag(), Len: 8}) {
				t.Fatalf("%+v, %v after the peek %+v, want %+v", msg, err, e, kept[i])
			}
			kept = slices.Delete(kept, i, i+1)
			held = append(held, msg)
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { checkMatcher(t, m) },
			"send": func(t *rapid.T) {
				send(froms.Draw(t, "from"), tags.Draw(t, "tag"))
			},
			"burst": func(t *rapid.T) {
				from, tag := froms.Draw(t, "from"), tags.Draw(t, "tag")
				for i := range rapid.IntRange(1, 60).Draw(t, "messages") {
					if i%3 == 0 {
						from = from%8 + 1
					}
					send(from, tag)
				}
			},
			"receive": func(t *rapid.T) {
				receive(t)
			},
			"receive many": func(t *rapid.T) {
				for range rapid.IntRange(1, 12).Draw(t, "receives") {
					receive(t)
				}
			},
			"release": func(t *rapid.T) {
				for _, msg := range held {
					msg.Release()
				}
				held = held[:0]
			},
			"put back": func(t *rapid.T) {
				for range min(len(held), rapid.IntRange(1, 20).Draw(t, "messages")) {
					i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
					k := of(held[i])
					if err := m.PutBack(held[i]); err != nil {
						t.Fatal(err)
					}
					kept, held = slices.Insert(kept, 0, k), slices.Delete(held, i, i+1)
				}
			},
			"drain": func(t *rapid.T) {
				for range min(len(kept), rapid.IntRange(1, 80).Draw(t, "messages")) {
					msg, err := m.TryRecv()
					if err != nil || of(msg) != kept[0] {
						t.Fatalf("%v, %v", msg, err)
					}
					kept = kept[1:]
					msg.Release()
				}
			},
		})
		for _, k := range kept {
			msg, err := m.TryRecv()
			if err != nil || of(msg) != k {
				t.Fatalf("%v, %v, want %+v", msg, err, k)
			}
			msg.Release()
		}
		m.mu.Lock()
		if m.credit.Stored() != 0 || f.in.Stored() != 0 {
			t.Errorf("%d bytes are stored in an empty mailbox, %d of %d are consumed", m.credit.Stored(), f.in.Received()-f.in.Stored(), f.in.Received())
		}
		m.mu.Unlock()
		for _, msg := range held {
			msg.Release()
		}
	})
}

// drawFrom is drawSelect for messages of one context.
func drawFrom(t *rapid.T, c resource.GID) (Select, condition) {
	if rapid.Bool().Draw(t, "simple") {
		from, tag := rapid.Uint32Range(0, 8).Draw(t, "from"), rapid.Uint64Range(0, 16).Draw(t, "tag")
		sel, hasFrom, hasTag := Select{}, from > 0, tag < 16
		if hasFrom {
			sel = From(c.WithSerial(from))
		}
		if hasTag {
			sel = All(sel, Tag(tag))
		}
		return sel, func(f resource.GID, n uint64) bool {
			return (!hasFrom || f == c.WithSerial(from)) && (!hasTag || n == tag)
		}
	}
	sel, is := drawSelect(t, 2)
	if sel.err() != nil {
		return sel, func(resource.GID, uint64) bool { return false }
	}
	return sel, is
}

// A mailbox that has used chains gives back their memory when it is small again. Until then it
// takes no memory for each message.
func TestMatcherMemory(t *testing.T) {
	w := newWorld()
	d := w.node(t, 1, inproc.NewNetwork().Transport())
	m := box(t, d, 1, 1<<30)
	f := flow(t, d, m)
	send := func(tag uint64) {
		if err := f.SendBytes(t.Context(), 1, tag, nil); err != nil {
			t.Fatal(err)
		}
	}
	const many = 5000
	for i := range uint64(many) {
		send(i)
	}
	a := d.self.WithSerial(1)
	take := func(_ *testing.T, m *Mailbox, sel ...Select) {
		msg, err := m.Recv(t.Context(), sel...)
		if err != nil {
			t.Fatal(err)
		}
		msg.Release()
	}
	steady := func() {
		send(many)
		take(t, m, Tag(many))
		send(many)
		take(t, m, From(a), Tag(many))
		for range uint64(passedFew + 2) { // these messages are put into chains
			send(many + 1)
		}
		send(many)
		take(t, m, Tag(many))
		for range passedFew + 2 {
			take(t, m, Tag(many+1))
		}
	}
	for range 100 {
		steady()
	}
	if m.matcher == nil || m.matcher.used < many {
		t.Fatal("messages that were passed over are not in chains")
	}
	made := m.matcher.made
	for range 1000 {
		steady()
	}
	if n := m.matcher.made; n != made {
		t.Errorf("%d slots instead of %d, for as many messages as before", n, made)
	}
	for i := range uint64(many) {
		take(t, m, Tag(many-1-i))
	}
	if x := m.matcher; x.made > sparedSlots || len(x.chains) > 0 {
		t.Errorf("an empty mailbox keeps %d slots, %d chains", x.made, len(x.chains))
	}
}

// The cost of a receive with a selector while so many other messages wait.
func BenchmarkRecvTag(b *testing.B) {
	for _, others := range []int{0, 10_000, 100_000} {
		for name, sel := range map[string]Select{"tag": Tag(1), "range": Tags(1, 99), "any": Any(Tag(1, 2), From(id(1)))} {
			b.Run(fmt.Sprintf("%s/%d", name, others), func(b *testing.B) {
				w := newWorld()
				d := w.node(b, 1, inproc.NewNetwork().Transport())
				m := box(b, d, 1, 1<<30)
				f := flow(b, d, m)
				ctx := context.Background()
				send := func(tag uint64) {
					if err := f.SendBytes(ctx, 1, tag, nil); err != nil {
						b.Fatal(err)
					}
				}
				for i := range others {
					send(100 + uint64(i))
				}
				one := func() {
					send(1)
					msg, err := m.Recv(ctx, sel)
					if err != nil {
						b.Fatal(err)
					}
					msg.Release()
				}
				one() // passes over the other messages
				b.ReportAllocs()
				for b.Loop() {
					one()
				}
			})
		}
	}
}

// The cost of the replies to as many calls in flight, each of which waits for its own reply.
func BenchmarkReceivers(b *testing.B) {
	for _, others := range []int{0, 8, 1000} {
		b.Run(strconv.Itoa(others), func(b *testing.B) {
			var l receivers
			for i := range uint64(others) {
				l.push(&waiter{sel: Tag(100 + i)})
			}
			w := &waiter{sel: Tag(1)}
			msg := &Message{tag: 1}
			b.ReportAllocs()
			for b.Loop() {
				l.push(w)
				if l.findLocked(msg) != w {
					b.Fatal("not found")
				}
				l.remove(w)
			}
		})
	}
}
