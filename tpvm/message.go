// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// The tag of a rocl message has the tag of the user in its lower 32 bits, then the message
// context, and ownTag where the message is the library's.
//
// The payload has the packed values, and behind them a byte: the encoding, and typedFlag.
const (
	contextShift = 32
	contextBits  = 30
	ownTag       = 1 << 63
	typedFlag    = 0x80

	tagMask     = math.MaxUint32
	contextMask = (1<<contextBits - 1) << contextShift
)

// AnyTag, as the tag of a receive, is any tag.
const AnyTag = -1

// AnyTask, as the sender of a receive, is any task or thread.
var AnyTask TID

// MaxTag is the highest tag of a message.
const MaxTag = math.MaxInt32

// tag returns the rocl tag of a message.
func (t *Thread) tag(tag int) (uint64, error) {
	if tag < 0 || tag > MaxTag {
		return 0, fmt.Errorf("tag %d: %w", tag, ErrBadParam)
	}
	return uint64(t.msgContext.Load())<<contextShift | uint64(tag), nil
}

// selects returns the condition for messages from a sender with a tag, in the thread's message
// context.
func (t *Thread) selects(from TID, tag int) (rocl.Select, error) {
	mc := uint64(t.msgContext.Load()) << contextShift
	var s rocl.Select
	switch {
	case tag == AnyTag:
		s = rocl.Tags(mc, mc|tagMask)
	case tag < 0 || tag > MaxTag:
		return s, fmt.Errorf("tag %d: %w", tag, ErrBadParam)
	default:
		s = rocl.Tag(mc | uint64(tag))
	}
	if !from.IsZero() {
		s = rocl.All(rocl.From(from), s)
	}
	return s, nil
}

// Buffer returns an empty buffer to pack a message into.
func (t *Thread) Buffer(enc pack.Encoding) *pack.Buffer { return pack.NewBuffer(enc) }

// encode writes the message of b into memory of the context.
func (t *Thread) encode(ctx context.Context, b *pack.Buffer) (*rocl.Buffer, error) {
	n := 0
	if b != nil {
		n = b.Size()
	}
	m, err := t.task.c.BufferWait(ctx, n+1)
	if err != nil {
		return nil, err
	}
	p, how := m.Bytes(), byte(0)
	if b != nil {
		if _, err := b.Encode(p[:n]); err != nil {
			m.Release()
			return nil, err
		}
		how = byte(b.Encoding())
		if b.Typed() {
			how |= typedFlag
		}
	}
	p[n] = how
	return m, nil
}

// Send sends the values of b to a task or thread, with a tag for its receives to select by,
// 0 to MaxTag. It waits, until ctx ends, while the receiver has no room. b stays the
// caller's, and may be sent again; nil is a message without values. Messages from one thread
// to another arrive in the order in which they were sent.
//
// Send fails as [rocl.Resource.Send] does: with rocl.ErrGone if the receiver has ended.
func (t *Thread) Send(ctx context.Context, to TID, tag int, b *pack.Buffer) error {
	tg, err := t.tag(tag)
	if err == nil {
		err = t.send(ctx, to, tg, b)
	}
	if err != nil {
		return fmt.Errorf("tpvm: send to %v: %w", to, err)
	}
	return nil
}

// send is Send with a rocl tag.
func (t *Thread) send(ctx context.Context, to TID, tag uint64, b *pack.Buffer) error {
	m, err := t.encode(ctx, b)
	if err != nil {
		return err
	}
	if err := t.r.Send(ctx, to, tag, m); err != nil {
		m.Release()
		return err
	}
	return nil
}

// Mcast sends the values of b to each of several tasks and threads, as Send does. The message
// is encoded once. Its error names those that it could not be sent to; see
// [rocl.Resource.SendAll].
func (t *Thread) Mcast(ctx context.Context, to []TID, tag int, b *pack.Buffer) error {
	tg, err := t.tag(tag)
	if err == nil {
		err = t.mcast(ctx, to, tg, b)
	}
	if err != nil {
		return fmt.Errorf("tpvm: mcast to %d: %w", len(to), err)
	}
	return nil
}

// mcast is Mcast with a rocl tag.
func (t *Thread) mcast(ctx context.Context, to []TID, tag uint64, b *pack.Buffer) error {
	m, err := t.encode(ctx, b)
	if err != nil {
		return err
	}
	if err := t.r.SendAll(ctx, to, tag, m); err != nil {
		m.Release()
		return err
	}
	return nil
}

// A Message is a message that was received. Its values are unpacked in the order in which they
// were packed. It belongs to its receiver until Release.
type Message struct {
	pack.Reader
	m *rocl.Message
}

// From returns the sender, or, where IsGone, the task or thread that has ended.
func (m *Message) From() TID { return m.m.From() }

// Tag returns the tag that the sender gave.
func (m *Message) Tag() int { return int(m.m.Tag() & tagMask) }

// Len returns how many bytes the packed values take.
func (m *Message) Len() int { return max(0, m.m.Len()-1) }

// IsGone reports whether the message tells that the task or thread From has ended; see Notify.
func (m *Message) IsGone() bool { return m.m.IsGone() }

// Release gives the memory of the message back. Values that were unpacked stay.
func (m *Message) Release() { m.m.Release() }

// message makes a rocl message a Message.
func message(m *rocl.Message) (*Message, error) {
	p := m.Bytes()
	enc, typed := pack.Default, false
	if n := len(p) - 1; n >= 0 {
		enc, typed = pack.Encoding(p[n]&^typedFlag), p[n]&typedFlag != 0
		p = p[:n]
	}
	msg := &Message{m: m}
	if err := msg.Reader.Init(enc, typed, p); err != nil {
		err = fmt.Errorf("tpvm: message from %v with tag %d: %w", m.From(), m.Tag()&tagMask, err)
		m.Release()
		return nil, err
	}
	return msg, nil
}

// Recv waits for a message from a task or thread, or AnyTask, with a tag, or AnyTag, and
// returns it. Messages of other message contexts are left. It fails with the cause of ctx's
// end, and, where it waits for one sender, with rocl.ErrGone when that has ended and has left
// no such message.
func (t *Thread) Recv(ctx context.Context, from TID, tag int) (*Message, error) {
	s, err := t.selects(from, tag)
	if err == nil {
		var m *rocl.Message
		if m, err = t.r.Recv(ctx, s); err == nil {
			return message(m)
		}
	}
	return nil, fmt.Errorf("tpvm: receive: %w", err)
}

// TryRecv is Recv without waiting: it fails with rocl.ErrEmpty where no such message is there.
func (t *Thread) TryRecv(from TID, tag int) (*Message, error) {
	s, err := t.selects(from, tag)
	if err == nil {
		var m *rocl.Message
		if m, err = t.r.TryRecv(s); err == nil {
			return message(m)
		}
	}
	return nil, fmt.Errorf("tpvm: receive: %w", err)
}

// Info describes a message that has not been received.
type Info struct {
	From TID
	Tag  int
	Len  int // bytes that the packed values take
}

// Probe describes the message that TryRecv would return. It fails with rocl.ErrEmpty where
// there is none.
func (t *Thread) Probe(from TID, tag int) (Info, error) {
	s, err := t.selects(from, tag)
	if err == nil {
		var e rocl.Envelope
		if e, err = t.r.Peek(s); err == nil {
			return Info{From: e.From, Tag: int(e.Tag & tagMask), Len: max(0, e.Len-1)}, nil
		}
	}
	return Info{}, fmt.Errorf("tpvm: probe: %w", err)
}

// Notify has a message with a tag sent to the thread when a task or thread has ended,
// whether it returned, exited, was killed or was lost with its host: one message From each of
// ids, for which IsGone reports true, behind the last message that it sent here. For one that
// has ended already, the message comes at once. stop withdraws what has not been told.
// See [rocl.Resource.Monitor].
func (t *Thread) Notify(ctx context.Context, tag int, ids ...TID) (stop func(), err error) {
	tg, err := t.tag(tag)
	if err != nil {
		return nil, fmt.Errorf("tpvm: notify: %w", err)
	}
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	for _, id := range ids {
		s, err := t.r.Monitor(ctx, id, tg)
		if err != nil {
			stop()
			return nil, fmt.Errorf("tpvm: notify of %v: %w", id, err)
		}
		stops = append(stops, s)
	}
	return stop, nil
}

// isEnd reports whether err tells that a target has ended.
func isEnd(err error) bool {
	return errors.Is(err, rocl.ErrGone) || errors.Is(err, rocl.ErrUnreachable)
}
