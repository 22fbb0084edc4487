// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"context"
	"fmt"

	"github.com/rocl-go/rocl/resource"
)

// Posted is memory that waits for one message (see [Mailbox.Post]). Wait must be called once.
type Posted struct {
	m    *Mailbox
	key  posting
	into landing
	w    *waiter
	stop func() bool // cancels OnEnd

	// m.mu guards the following fields.
	next    *Posted // the next Posted with the same key
	msg     *Message
	err     error
	isFired bool
}

// A posting is the origin and the tag of a message that comes to posted memory.
type posting struct {
	from resource.GID
	tag  uint64
}

// Post makes the next message from a resource with the given tag come to dst instead of the
// mailbox's receivers. If such a message is stored already, Post takes the first one. If several
// memories are posted for the same origin and tag, messages come to them in order. A message that
// is longer than dst comes too, but lies elsewhere.
//
// dst belongs to the library until Wait has returned. A message of a monitor does not come to
// posted memory.
//
// Post waits, until ctx ends, while the link to the resource's context has no room for a frame.
func (m *Mailbox) Post(ctx context.Context, from resource.GID, tag uint64, dst []byte) (*Posted, error) {
	if ctx.Err() != nil {
		return nil, m.receiving(context.Cause(ctx))
	}
	p := &Posted{m: m, key: posting{from, tag}, into: landing{mem: dst, isWanted: true}, w: m.d.waiter()}
	m.mu.Lock()
	switch msg := m.matchLocked(&Select{from: from, hasFrom: true, first: tag, mask: ^uint64(0), value: tag, hasTag: true}); {
	case msg != nil:
		p.handLocked(msg)
		m.mu.Unlock()
		return p, nil
	case m.closed:
		m.mu.Unlock()
		m.d.doneWaiting(p.w)
		return nil, m.receiving(ErrClosed)
	}
	p.enlistLocked()
	m.grantQueuedLocked() // the sender of a message that does not fit may wait for a receiver
	stop, err := m.d.OnEnd(ctx, from.Context(), from.Serial(), p.fail)
	if p.stop = stop; err != nil {
		p.fail(err)
	}
	return p, nil
}

// fail notes that no message will come because of err. OnEnd calls it.
func (p *Posted) fail(err error) {
	p.m.mu.Lock()
	p.failLocked(err)
	p.m.mu.Unlock()
}

// failLocked is fail with m.mu held. A message may still come until Wait returns.
func (p *Posted) failLocked(err error) {
	if p.err == nil {
		p.err = err
	}
	p.fireLocked()
}

// fireLocked wakes the goroutine in Wait. m.mu must be held.
func (p *Posted) fireLocked() {
	if !p.isFired {
		p.isFired = true
		p.w.fire()
	}
}

// handLocked gives a message of the mailbox to p, which is in no list. m.mu must be held.
func (p *Posted) handLocked(msg *Message) {
	p.msg = msg
	p.m.consumeEarlyLocked(msg)
	p.fireLocked()
}

// enlistLocked puts p behind the others with the same key. m.mu must be held.
func (p *Posted) enlistLocked() {
	m := p.m
	m.posted.Add(1)
	if m.posts == nil {
		m.posts = map[posting]*Posted{}
	}
	last := m.posts[p.key]
	if last == nil {
		m.posts[p.key] = p
		return
	}
	for last.next != nil {
		last = last.next
	}
	last.next = p
}

// unlistLocked takes p from the list. m.mu must be held.
func (p *Posted) unlistLocked() {
	m := p.m
	m.posted.Add(-1)
	if o := m.posts[p.key]; o != p {
		for o.next != p {
			o = o.next
		}
		o.next, p.next = p.next, nil
		return
	}
	if m.posts[p.key] = p.next; p.next == nil {
		delete(m.posts, p.key)
	}
	if p.next = nil; len(m.posts) == 0 {
		m.posts = nil
	}
}

// handToPostedLocked hands msg to the memory that was posted for it, and reports whether there is
// such memory. mu must be held.
func (m *Mailbox) handToPostedLocked(msg *Message) bool {
	p := m.posts[posting{msg.from, msg.tag}]
	if p == nil || msg.gone != nil {
		return false
	}
	p.unlistLocked()
	p.handLocked(msg)
	return true
}

// landing returns the memory for the message from a resource with a tag, or nil. mu must not be
// held.
func (m *Mailbox) landing(from resource.GID, tag uint64) *landing {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.posts[posting{from, tag}]; p != nil {
		return &p.into
	}
	return nil
}

// endPostsLocked ends all Posteds, because the mailbox is closed. mu must be held.
func (m *Mailbox) endPostsLocked() {
	for _, p := range m.posts {
		for ; p != nil; p = p.next {
			p.failLocked(ErrClosed)
		}
	}
}

// Wait waits for the message and returns it. The message belongs to the caller until Release. Its
// payload lies at the beginning of the posted memory, unless it is longer than that. Otherwise Wait
// fails: with ErrGone or ErrUnreachable if the origin has ended, with ErrClosed if the mailbox is
// closed, or with the cause of ctx's end. In any case the posted memory belongs to the caller
// again, and no message comes to it any more. A message that comes as ctx ends is returned, or
// stored. If only a part of a large message has come, and there is no memory to store the message,
// the link to its sender's context ends with ErrUnreachable.
//
// Wait does not fail with ErrStuck, as [Mailbox.Recv] does, if the mailbox is full of other
// messages and the sender waits for room behind them. Posted memory often waits while its program
// does other work, so a mailbox in which nothing moves does not show that the program is stuck.
func (p *Posted) Wait(ctx context.Context) (*Message, error) {
	m := p.m
	err := m.d.wait(ctx, p.w)
	m.mu.Lock()
	hasCome := p.msg != nil
	m.mu.Unlock()
	if !hasCome {
		p.withdraw()
	}
	if p.stop != nil {
		p.stop()
	}
	m.mu.Lock()
	p.isFired = true         // from now on the waiter may belong to another goroutine
	msg, end := p.msg, p.err // the function of OnEnd may still set err, unless stop came first
	m.mu.Unlock()
	m.d.doneWaiting(p.w)
	if msg != nil {
		msg = m.finishHandOut(msg, nil, 0)
		p.into.copyIn(m.d, msg)
		return msg, nil
	}
	err = m.d.Explain(err, p.key.from)
	return nil, m.receiving(fmt.Errorf("for memory posted for a message from %v: %w", p.key.from, cmp.Or(end, err)))
}

// withdraw takes the memory back unless a message has come. No message can be read into the memory
// between the check and the move, since the token is held.
func (p *Posted) withdraw() {
	m := p.m
	m.d.takeToken()
	defer m.d.giveToken()
	m.mu.Lock()
	hasCome := p.msg != nil
	if !hasCome {
		p.unlistLocked()
	}
	m.mu.Unlock()
	if !hasCome {
		p.into.move(m.d)
	}
}
