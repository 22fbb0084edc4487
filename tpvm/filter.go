// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl"
)

// A Filter selects messages in whichever message context. Recv selects in one.
type Filter struct {
	From       TID // or AnyTask
	Tag        int // or AnyTag
	Context    MsgContext
	AnyContext bool // Context is not looked at
}

// Matches reports whether the Filter selects m.
func (f Filter) Matches(m *Message) bool {
	return (f.From.IsZero() || f.From == m.From()) &&
		(f.Tag == AnyTag || f.Tag == m.Tag()) &&
		(f.AnyContext || f.Context == m.Context())
}

// selects returns the condition of the Filter.
func (f Filter) selects() (rocl.Select, error) {
	var s rocl.Select
	if f.Tag != AnyTag && (f.Tag < 0 || f.Tag > MaxTag) {
		return s, fmt.Errorf("tag %d: %w", f.Tag, ErrBadParam)
	}
	if f.Context >= 1<<contextBits {
		return s, fmt.Errorf("message context %d: %w", f.Context, ErrBadParam)
	}
	mask, value := uint64(ownTag), uint64(0)
	if f.Tag != AnyTag {
		mask, value = mask|tagMask, uint64(f.Tag)
	}
	if !f.AnyContext {
		mask, value = mask|contextMask, value|uint64(f.Context)<<contextShift
	}
	s = rocl.TagMask(mask, value)
	if !f.From.IsZero() {
		s = rocl.All(rocl.From(f.From), s)
	}
	return s, nil
}

// filter returns the condition for what any of the Filters selects.
func filter(fs []Filter) (rocl.Select, error) {
	var all []rocl.Select
	for _, f := range fs {
		s, err := f.selects()
		if err != nil {
			return s, err
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return rocl.Select{}, errors.New("no filter")
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return rocl.Any(all...), nil
}

// RecvFilter is Recv for messages that at least one of the Filters selects.
func (t *Thread) RecvFilter(ctx context.Context, fs ...Filter) (*Message, error) {
	s, err := filter(fs)
	if err == nil {
		var m *rocl.Message
		if m, err = t.r.Recv(ctx, s); err == nil {
			return newMessage(m)
		}
	}
	return nil, fmt.Errorf("tpvm: receive: %w", err)
}

// TryRecvFilter is RecvFilter without waiting: it fails with rocl.ErrEmpty where no such message
// is there.
func (t *Thread) TryRecvFilter(fs ...Filter) (*Message, error) {
	s, err := filter(fs)
	if err == nil {
		var m *rocl.Message
		if m, err = t.r.TryRecv(s); err == nil {
			return newMessage(m)
		}
	}
	return nil, fmt.Errorf("tpvm: receive: %w", err)
}

// PutBack gives a message back that the thread has received, as if it had not been. See
// [rocl.Resource.PutBack].
func (t *Thread) PutBack(m *Message) error { return t.r.PutBack(m.m) }

// Context returns the message context in which the message was sent.
func (m *Message) Context() MsgContext {
	return MsgContext(m.m.Tag() & contextMask >> contextShift)
}
