// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// The tag of a rocl message has the user's tag in its lower 31 bits, then bareFlag, then the
// message context. ownTag is set in messages of the library itself.
//
// The payload has the packed values, and behind them one byte: the encoding, typedFlag, and
// markBits. Messages of programs without this package lack markBits. A message with bareFlag has no
// such byte: it is of encoding InPlace and untyped. So a buffer of the caller is sent as it is.
const (
	bareFlag     = 1 << 31
	contextShift = 32
	contextBits  = 30
	ownTag       = 1 << 63
	typedFlag    = 0x80
	markBits     = 0x54
	encodingBits = 0x03

	tagMask     = math.MaxInt32
	contextMask = (1<<contextBits - 1) << contextShift
)

// AnyTag, as the tag of a receive, selects any tag.
const AnyTag = -1

// AnyTask, as the sender of a receive, selects any task or thread.
var AnyTask TID

// MaxTag is the highest tag of a message.
const MaxTag = math.MaxInt32

// tag returns the rocl tag of a message in the thread's message context.
func (t *Thread) tag(tag int) (uint64, error) {
	if tag < 0 || tag > MaxTag {
		return 0, badParam("tag %d: a tag is 0 to MaxTag", tag)
	}
	return uint64(t.msgContext.Load())<<contextShift | uint64(tag), nil
}

// filter returns the Filter of a receive in the thread's message context.
func (t *Thread) filter(from TID, tag int) Filter {
	return Filter{From: from, Tag: tag, Context: MsgContext(t.msgContext.Load())}
}

// selectors keeps the conditions of a thread's latest receives, so that a receive need not make
// them again.
type selectors struct {
	kept atomic.Pointer[[keptSelectors]atomic.Pointer[keptSelector]]
}

const keptSelectors = 64

type keptSelector struct {
	filter Filter
	sel    []rocl.Select // one; a slice, so that it is not copied for each receive
}

// get returns the condition of f.
func (s *selectors) get(f Filter) ([]rocl.Select, error) {
	kept := s.kept.Load()
	if kept == nil {
		kept = new([keptSelectors]atomic.Pointer[keptSelector])
		if !s.kept.CompareAndSwap(nil, kept) {
			kept = s.kept.Load()
		}
	}
	slot := &kept[(uint32(f.Tag)*31+f.From.Serial()*7+uint32(f.From.Ctx())+uint32(f.Context))%keptSelectors]
	if have := slot.Load(); have != nil && have.filter == f {
		return have.sel, nil
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	have := &keptSelector{filter: f, sel: []rocl.Select{f.selector()}}
	slot.Store(have)
	return have.sel, nil
}

// Buffer returns an empty buffer to pack a message into.
func (t *Thread) Buffer(enc pack.Encoding) *pack.Buffer { return pack.NewBuffer(enc) }

// trailer returns the byte behind the values of b. A nil b has no values.
func trailer(b *pack.Buffer) byte {
	if b == nil {
		return markBits
	}
	how := markBits | byte(b.Encoding())
	if b.Typed() {
		how |= typedFlag
	}
	return how
}

// encode writes the message of b into a buffer of the context.
func (t *Thread) encode(ctx context.Context, b *pack.Buffer) (*rocl.Buffer, error) {
	n := 0
	if b != nil {
		n = b.Size()
	}
	m, err := t.task.c.BufferWait(ctx, n+1)
	if err != nil {
		return nil, err
	}
	p := m.Bytes()
	if b != nil {
		if _, err := b.Encode(p[:n]); err != nil {
			m.Release()
			return nil, err
		}
	}
	p[n] = trailer(b)
	return m, nil
}

// Send sends the values of b to a task or thread, with a tag, 0 to MaxTag, by which receives
// select. While the receiver's mailbox is full, Send waits until ctx ends. b stays the caller's,
// and may be sent again; nil is a message without values. Messages from one thread to another
// arrive in the order in which they were sent.
//
// The values are copied once, into memory of the library, before Send returns. If b is one
// rocl.Buffer that was packed InPlace, and is untyped, nothing is copied: the receiver may read
// that memory. It must not be written until rocl.Buffer.Wait says that it is sent and released.
//
// Send fails as [rocl.Resource.Send] does: with rocl.ErrGone if the receiver has ended.
func (t *Thread) Send(ctx context.Context, to TID, tag int, b *pack.Buffer) error {
	if to.IsZero() {
		return fmt.Errorf("tpvm: send: %w", errZeroTID)
	}
	tg, err := t.tag(tag)
	if err == nil {
		err = t.send(ctx, to, tg, b)
	}
	if err != nil {
		return fmt.Errorf("tpvm: send to %v: %w", to, err)
	}
	return nil
}

// outgoing returns a buffer with the message of b, and the rocl tag to send it with.
func (t *Thread) outgoing(ctx context.Context, tag uint64, b *pack.Buffer) (*rocl.Buffer, uint64, error) {
	if b != nil && tag&ownTag == 0 {
		if m, ok := b.Whole(); ok {
			return m.Retain(), tag | bareFlag, nil
		}
	}
	m, err := t.encode(ctx, b)
	return m, tag, err
}

// send is Send with a rocl tag.
func (t *Thread) send(ctx context.Context, to TID, tag uint64, b *pack.Buffer) error {
	m, tag, err := t.outgoing(ctx, tag, b)
	if err != nil {
		return err
	}
	if err := t.r.Send(ctx, to, tag, m); err != nil {
		m.Release()
		return err
	}
	return nil
}

// Mcast sends the values of b to each of several tasks and threads, as Send does. The message is
// encoded once. The error names the receivers to which it could not be sent; see
// [rocl.Resource.SendAll]. If a receiver is the zero TID, nothing is sent.
func (t *Thread) Mcast(ctx context.Context, to []TID, tag int, b *pack.Buffer) error {
	tg, err := t.tag(tag)
	if err == nil && slices.ContainsFunc(to, TID.IsZero) {
		err = errZeroTID
	}
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
	m, tag, err := t.outgoing(ctx, tag, b)
	if err != nil {
		return err
	}
	if err := t.r.SendAll(ctx, to, tag, m); err != nil {
		m.Release()
		return err
	}
	return nil
}

// A Message is a message that was received. Its values are unpacked in the order in which they were
// packed. It belongs to its receiver until Release, and must not be used afterwards.
type Message struct {
	pack.Reader
	m    *rocl.Message // nil: released, or of an entry of the message box
	from TID           // the owner of that entry
	len  int
	task *Task // the task that uses the Message again after its Release; nil: none does
}

// From returns the sender. If IsGone reports true, it returns the task or thread that has ended.
func (m *Message) From() TID {
	if m.m == nil {
		return m.from
	}
	return m.m.From()
}

// Tag returns the tag that the sender gave, or 0 for a message of the message box.
func (m *Message) Tag() int {
	if m.m == nil {
		return 0
	}
	return int(m.m.Tag() & tagMask)
}

// Trace returns the trace in which the message was sent, if the sender's task traces:
// rocl.WithTrace is among the options of its context.
func (m *Message) Trace() rocl.Trace {
	if m.m == nil {
		return rocl.Trace{}
	}
	return m.m.Trace()
}

// Len returns how many bytes the packed values take.
func (m *Message) Len() int { return m.len }

// IsGone reports whether the message tells that the task or thread From has ended; see Notify.
func (m *Message) IsGone() bool { return m.m != nil && m.m.IsGone() }

// Release gives the memory of the message back. Values that were unpacked stay valid.
func (m *Message) Release() {
	if m.m == nil {
		return
	}
	m.m.Release()
	m.m = nil
	if m.task != nil {
		m.task.messages.Put(m)
	}
}

// message returns the Message of a rocl message. The Message is used again after its Release. If
// the rocl message is not one of this package, message releases it, and fails.
func (t *Thread) message(m *rocl.Message) (*Message, error) {
	msg, _ := t.task.messages.Get().(*Message)
	if msg == nil {
		msg = &Message{task: t.task}
	}
	if err := msg.init(m); err != nil {
		return nil, err
	}
	return msg, nil
}

// init makes msg the message of the rocl message m. If it fails, it releases m.
func (msg *Message) init(m *rocl.Message) error {
	enc, typed, p, err := payload(m)
	if err == nil {
		err = msg.Reader.Init(enc, typed, p)
	}
	if err != nil {
		err = fmt.Errorf("tpvm: unpack the message from %v with tag %d: %w", m.From(), m.Tag()&tagMask, err)
		m.Release()
		return err
	}
	msg.m, msg.len = m, msg.Remaining()
	return nil
}

// payload returns the values of a rocl message and how they are encoded.
func payload(m *rocl.Message) (enc pack.Encoding, typed bool, p []byte, err error) {
	switch {
	case m.Tag()&(ownTag|bareFlag) == bareFlag:
		return pack.InPlace, false, m.Bytes(), nil
	case m.IsGone():
		return pack.Default, false, nil, nil
	}
	return splitPayload(m.Bytes())
}

// splitPayload splits a payload that encode has written.
func splitPayload(p []byte) (enc pack.Encoding, typed bool, values []byte, err error) {
	n := len(p) - 1
	if n < 0 || p[n]&^(typedFlag|encodingBits) != markBits {
		return 0, false, nil, ErrForeign
	}
	return pack.Encoding(p[n] & encodingBits), p[n]&typedFlag != 0, p[:n], nil
}

// Recv waits for a message from a task or thread, or AnyTask, with a tag, or AnyTag, and returns
// it. Messages of other message contexts stay in the mailbox. Recv fails with the cause of ctx's
// end. If it waits for one sender, it fails with rocl.ErrGone when that sender has ended and has
// left no such message.
//
// A message that does not come from a program of this package, or is damaged, is dropped. Recv then
// fails with ErrForeign or pack.ErrDamaged, and names the sender. The next Recv goes on with the
// other messages.
//
// PVM's pvm_trecv is Recv with a context from [context.WithTimeout].
func (t *Thread) Recv(ctx context.Context, from TID, tag int) (*Message, error) {
	return t.receive(ctx, t.filter(from, tag), false)
}

// receive waits for a message, unless isTry is set.
func (t *Thread) receive(ctx context.Context, f Filter, isTry bool) (*Message, error) {
	s, err := t.selectors.get(f)
	if err == nil {
		var m *rocl.Message
		if m, err = t.recv(ctx, f, s, isTry); err == nil {
			return t.message(m)
		}
	}
	return nil, fmt.Errorf("tpvm: receive %v: %w", f, err)
}

// recv returns the next message that s, the condition of f, selects and that no handler wants.
func (t *Thread) recv(ctx context.Context, f Filter, s []rocl.Select, isTry bool) (*rocl.Message, error) {
	for {
		if hs := t.handlers.Load(); hs != nil {
			if got, ok := hs.recv(ctx, f, isTry); ok {
				return got.m, got.err
			}
		}
		var m *rocl.Message
		var err error
		if isTry {
			m, err = t.r.TryRecv(s...)
		} else {
			m, err = t.r.Recv(ctx, s...)
		}
		if err != nil {
			return nil, err
		}
		if hs := t.handlers.Load(); hs == nil || !hs.wants(m) {
			return m, nil
		}
		t.putBack([]*rocl.Message{m}) // the handler was added meanwhile
	}
}

// TryRecv is Recv without waiting: it fails with rocl.ErrEmpty if the mailbox has no such message.
func (t *Thread) TryRecv(from TID, tag int) (*Message, error) {
	return t.receive(t.ctx, t.filter(from, tag), true)
}

// Info describes a message that has not been received.
type Info struct {
	From TID
	Tag  int
	Len  int // bytes that the packed values take; from Probe and in RecvFunc, with the description of a typed message
}

func infoOf(e rocl.Envelope) Info {
	i := Info{From: e.From, Tag: int(e.Tag & tagMask), Len: e.Len}
	if e.Tag&bareFlag == 0 {
		i.Len = max(0, e.Len-1)
	}
	return i
}

// Probe describes the message that TryRecv would return. It fails with rocl.ErrEmpty if there is
// none.
func (t *Thread) Probe(from TID, tag int) (Info, error) {
	f := t.filter(from, tag)
	s, err := t.selectors.get(f)
	if err == nil {
		var e rocl.Envelope
		if e, err = t.peek(f, s); err == nil {
			return infoOf(e), nil
		}
	}
	return Info{}, fmt.Errorf("tpvm: probe %v: %w", f, err)
}

// peek describes the next message that s, the condition of f, selects and that no handler wants. If
// a handler could want it, peek receives the message and puts it back.
func (t *Thread) peek(f Filter, s []rocl.Select) (rocl.Envelope, error) {
	hs := t.handlers.Load()
	if hs == nil {
		return t.r.Peek(s...)
	}
	got, ok := hs.recv(t.ctx, f, true)
	switch {
	case !ok:
		return t.r.Peek(s...)
	case got.err != nil:
		return rocl.Envelope{}, got.err
	}
	e := rocl.Envelope{From: got.m.From(), Tag: got.m.Tag(), Len: got.m.Len()}
	if err := t.r.PutBack(got.m); err != nil {
		got.m.Release()
		return e, err
	}
	return e, nil
}

// RecvFunc waits for a message in the thread's message context for which match returns true, and
// returns it (pvm_recvf). Messages for which match returns false are put back, in order, before
// RecvFunc returns. Until then no other receive sees them, and they do not count against the
// mailbox's limit.
func (t *Thread) RecvFunc(ctx context.Context, match func(Info) bool) (*Message, error) {
	f := t.filter(AnyTask, AnyTag)
	s, err := t.selectors.get(f)
	if err != nil {
		return nil, err
	}
	var aside []*rocl.Message
	defer func() { t.putBack(aside) }()
	for {
		m, err := t.recv(ctx, f, s, false)
		if err != nil {
			return nil, fmt.Errorf("tpvm: receive %v: %w", f, err)
		}
		if match(infoOf(rocl.Envelope{From: m.From(), Tag: m.Tag(), Len: m.Len()})) {
			return t.message(m)
		}
		aside = append(aside, m)
	}
}

// putBack puts messages back into the mailbox, in their order.
func (t *Thread) putBack(ms []*rocl.Message) {
	for _, m := range slices.Backward(ms) {
		if err := t.r.PutBack(m); err != nil { // the thread has ended
			m.Release()
		}
	}
}

// Notify makes the library send the thread a message with a tag when a task or thread has ended. It
// does not matter whether the task or thread returned, exited, was killed or was lost with its
// host. There is one message From each of ids, for which IsGone reports true. It comes behind the
// last message that the ended task or thread sent here, and at once if the end was before the call.
// stop ends the notification of further ends. See [rocl.Resource.Monitor].
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
