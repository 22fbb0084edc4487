// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"fmt"
	"math"

	"github.com/rocl-go/rocl"
)

// AnyContext, as the message context of a handler or a Filter, stands for any message context.
const AnyContext MsgContext = math.MaxUint32

// A Filter selects messages by their sender, their tag and their message context. Recv selects in
// the thread's message context.
type Filter struct {
	From    TID        // or AnyTask
	Tag     int        // or AnyTag
	Context MsgContext // or AnyContext
}

// String describes the sender and the tag, such as "tag 2 from any task".
func (f Filter) String() string {
	tag, from := "any tag", "any task"
	if f.Tag != AnyTag {
		tag = fmt.Sprintf("tag %d", f.Tag)
	}
	if !f.From.IsZero() {
		from = f.From.String()
	}
	return tag + " from " + from
}

// Matches reports whether the Filter selects m.
func (f Filter) Matches(m *Message) bool { return m.m != nil && f.matches(m.m.From(), m.m.Tag()) }

// matches is Matches for the sender and the rocl tag of a message.
func (f Filter) matches(from TID, tag uint64) bool {
	return tag&ownTag == 0 && (f.From.IsZero() || f.From == from) &&
		(f.Tag == AnyTag || uint64(f.Tag) == tag&tagMask) &&
		(f.Context == AnyContext || uint64(f.Context) == tag&contextMask>>contextShift)
}

// meets reports whether there are messages that both f and o select.
func (f Filter) meets(o Filter) bool {
	return (f.From.IsZero() || o.From.IsZero() || f.From == o.From) &&
		(f.Tag == AnyTag || o.Tag == AnyTag || f.Tag == o.Tag) &&
		(f.Context == AnyContext || o.Context == AnyContext || f.Context == o.Context)
}

// check fails with ErrBadParam if no message can have the tag or the message context of f.
func (f Filter) check() error {
	switch {
	case f.Tag < AnyTag || f.Tag > MaxTag:
		return badParam("a tag is 0 to MaxTag, or AnyTag")
	case f.Context >= 1<<contextBits && f.Context != AnyContext:
		return badParam("there is no message context %d", f.Context)
	}
	return nil
}

// selector returns the condition of a Filter that check accepts. A tag in one message context
// stands for two rocl tags. For these the mailbox finds messages without looking at all of them.
func (f Filter) selector() rocl.Select {
	var s rocl.Select
	mc := uint64(f.Context) << contextShift
	switch {
	case f.Context == AnyContext && f.Tag == AnyTag:
		s = rocl.TagMask(ownTag, 0)
	case f.Context == AnyContext:
		s = rocl.TagMask(ownTag|tagMask, uint64(f.Tag))
	case f.Tag == AnyTag:
		s = rocl.Tags(mc, mc|bareFlag|tagMask)
	default:
		s = rocl.Tag(mc|uint64(f.Tag), mc|bareFlag|uint64(f.Tag))
	}
	if !f.From.IsZero() {
		s = rocl.All(rocl.From(f.From), s)
	}
	return s
}

// anyOf returns the condition that selects the messages of any of the Filters.
func anyOf(fs []Filter) (rocl.Select, error) {
	if len(fs) == 0 {
		return rocl.Select{}, badParam("no filter is given")
	}
	all := make([]rocl.Select, len(fs))
	for i, f := range fs {
		if err := f.check(); err != nil {
			return rocl.Select{}, err
		}
		all[i] = f.selector()
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return rocl.Any(all...), nil
}

// RecvFilter is Recv for messages that at least one of the Filters selects. It does not regard
// handlers.
func (t *Thread) RecvFilter(ctx context.Context, fs ...Filter) (*Message, error) {
	return t.receiveAny(fs, func(s rocl.Select) (*rocl.Message, error) { return t.r.Recv(ctx, s) })
}

// TryRecvFilter is RecvFilter without waiting: it fails with rocl.ErrEmpty if the mailbox has no
// such message.
func (t *Thread) TryRecvFilter(fs ...Filter) (*Message, error) {
	return t.receiveAny(fs, func(s rocl.Select) (*rocl.Message, error) { return t.r.TryRecv(s) })
}

// receiveAny receives by recv a message that any of the Filters selects.
func (t *Thread) receiveAny(fs []Filter, recv func(rocl.Select) (*rocl.Message, error)) (*Message, error) {
	s, err := anyOf(fs)
	if err == nil {
		var m *rocl.Message
		if m, err = recv(s); err == nil {
			return t.message(m)
		}
	}
	return nil, fmt.Errorf("tpvm: receive %v: %w", fs, err)
}

// Context returns the message context in which the message was sent, or 0 for a message of the
// message box.
func (m *Message) Context() MsgContext {
	if m.m == nil {
		return 0
	}
	return MsgContext(m.m.Tag() & contextMask >> contextShift)
}
