// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/rocl-go/rocl"
)

// Two members know each other when one has answered the hello of the other. From then on each tells
// the other how it ends, and has a monitor of the other. So a member that ends without a word has
// failed. A member that ends while another one joins either answers the hello or is no member for
// it.

// An introduction says who a member is.
type introduction struct{ Member, Host string }

// watch meets each member that appears. It sends to synced when it has met those that were there.
func (g *Group) watch(synced chan<- error) {
	var meetings sync.WaitGroup // before Synced
	isSynced := false
	for ev, err := range g.c.Watch(g.life, rocl.Match{attrGroup: g.name}) {
		switch {
		case err != nil && !isSynced:
			synced <- err
			return
		case err != nil:
			g.failSelf(fmt.Errorf("watch for members: %w", err))
			return
		case ev.Kind == rocl.Synced:
			isSynced = true
			g.wg.Go(func() {
				meetings.Wait()
				synced <- nil
			})
		case ev.Kind == rocl.Appeared && ev.ID != g.me.ID:
			about, starts := describe(ev.ID, &ev.Attrs), g.wg.Go
			if !isSynced {
				starts = meetings.Go
			}
			starts(func() { g.meet(about) })
		}
	}
}

// failSelf ends the group because this member cannot go on.
func (g *Group) failSelf(err error) {
	if g.life.Err() == nil {
		e := g.me
		e.Err = err
		g.fail(&e, true)
	}
}

// meet says hello to a process that has the attributes of a member. It is a member unless it has
// ended or is about to.
func (g *Group) meet(about Error) {
	g.mu.Lock()
	isEnding := g.isOver || g.cause != nil
	if !isEnding {
		g.greeted = append(g.greeted, about.ID)
	}
	g.mu.Unlock()
	if isEnding {
		return
	}
	b, err := rocl.EncodeValue(g.life, g.c, introduction{g.me.Member, g.me.Host})
	if err != nil {
		return
	}
	m, err := g.self.Call(g.life, about.ID, tagHello, b)
	if err != nil {
		b.Release()
		return
	}
	stays := m.Len() > 0
	m.Release()
	if stays {
		g.add(about)
	}
}

// answer answers a hello. It releases m.
func (g *Group) answer(m *rocl.Message) {
	defer m.Release()
	in, err := rocl.Value[introduction](m)
	if err != nil {
		return // the sender gets rocl.ErrNoReply
	}
	var reply []byte
	if g.add(Error{Group: g.name, ID: m.From(), Member: in.Member, Host: in.Host}) {
		reply = []byte{1}
	}
	_ = g.self.ReplyBytes(g.life, m, reply) // the monitor tells if the member has ended
}

// add adds a member and watches it, unless this member is about to end.
func (g *Group) add(about Error) bool {
	g.mu.Lock()
	if g.isOver || g.cause != nil {
		g.mu.Unlock()
		return false
	}
	_, isKnown := g.members[about.ID]
	if !isKnown {
		g.members[about.ID] = &member{about: about}
	}
	g.mu.Unlock()
	if isKnown {
		return true
	}
	if _, err := g.self.Monitor(g.life, about.ID, tagGone); err != nil && g.life.Err() == nil {
		g.gone(about.ID, err)
	}
	return true
}

// receive handles the messages of the other members.
func (g *Group) receive() {
	for m, err := range g.self.Messages(g.life) {
		if err != nil {
			g.failSelf(fmt.Errorf("receive: %w", err))
			return
		}
		switch {
		case m.IsGone() && m.Tag() == tagGone:
			g.gone(m.From(), m.GoneErr())
		case m.IsCall() && m.Tag() == tagHello:
			g.wg.Go(func() { g.answer(m) })
			continue
		case m.Tag() == tagDone:
			g.mu.Lock()
			if other := g.members[m.From()]; other != nil {
				other.isDone = true
			} else { // it comes before the member's answer to this one's hello
				g.members[m.From()] = &member{isDone: true}
			}
			g.mu.Unlock()
			_ = g.self.ReplyBytes(g.life, m, nil)
		case m.Tag() == tagFailed:
			if n, err := rocl.Value[notice](m); err == nil {
				g.fail(n.failure(g.name), true)
			}
			_ = g.self.ReplyBytes(g.life, m, nil)
		}
		m.Release()
	}
	g.mu.Lock()
	g.isClosed = true
	g.mu.Unlock()
	g.failSelf(fmt.Errorf("%w: the context", rocl.ErrClosed))
}

// gone ends the group if a member has ended without a word.
func (g *Group) gone(id rocl.GID, why error) {
	g.mu.Lock()
	other := g.members[id]
	hasEndedWell := other == nil || other.isDone
	g.mu.Unlock()
	if hasEndedWell {
		return
	}
	e := other.about
	e.Err = fmt.Errorf("%w: %w", ErrEnded, why)
	g.fail(&e, true)
}

// tell tells all members that this one has ended, or why the group has failed.
func (g *Group) tell(tag uint64, n *notice) {
	g.mu.Lock()
	if g.isClosed {
		g.mu.Unlock()
		return // the monitors of the others tell
	}
	ids := slices.AppendSeq(slices.Clone(g.greeted), maps.Keys(g.members)) // a member that has not answered may know this one
	slices.SortFunc(ids, rocl.GID.Compare)
	ids = slices.Compact(ids)
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(g.life, tellWithin)
	defer cancel()
	b, err := rocl.EncodeValue(ctx, g.c, n)
	if err != nil {
		return
	}
	defer b.Release()
	var calls []rocl.Pending // not messages: it is no loss if a member ends before it has read this
	for _, id := range ids {
		if p, err := g.self.StartCallBytes(ctx, id, tag, b.Bytes()); err == nil {
			calls = append(calls, p)
		}
	}
	for _, p := range calls {
		if m, err := p.Wait(ctx); err == nil { // a member that does not get it has ended, or is told by its monitor
			m.Release()
		}
	}
}

// A notice is the cause of a failure as a message.
type notice struct {
	ID                 rocl.GID
	Member, Host, Text string
	Is                 []bool // which of kept the cause matches
}

// kept are the errors that a cause matches in other processes too.
var kept = []error{ErrEnded, ErrPanic, rocl.ErrGone, rocl.ErrUnreachable, context.Canceled, context.DeadlineExceeded}

func newNotice(e *Error) *notice {
	n := &notice{ID: e.ID, Member: e.Member, Host: e.Host, Text: e.Err.Error()}
	for _, k := range kept {
		n.Is = append(n.Is, errors.Is(e.Err, k))
	}
	return n
}

// failure returns the cause that a notice tells.
func (n *notice) failure(group string) *Error {
	told := &toldError{text: n.Text}
	for i, is := range n.Is[:min(len(n.Is), len(kept))] {
		if is {
			told.is = append(told.is, kept[i])
		}
	}
	return &Error{Group: group, ID: n.ID, Member: n.Member, Host: n.Host, Err: told}
}

// A toldError is the error of another process.
type toldError struct {
	text string
	is   []error
}

func (e *toldError) Error() string   { return e.text }
func (e *toldError) Unwrap() []error { return e.is }
