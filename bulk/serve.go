// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"

	"github.com/rocl-go/rocl"
)

const (
	// copied is how many bytes are copied into a message rather than sent from where they lie,
	// because that costs less than to keep an account of them.
	copied = 8 << 10
	// quick is how many bytes are copied at most by the goroutine that receives requests.
	quick = 64 << 10
)

// receive takes requests until the resource is closed. What can be answered quickly it answers
// itself; the rest it leaves to other goroutines.
func (ep *Endpoint) receive() {
	for {
		m, err := ep.r.Recv(context.Background())
		if err != nil {
			return
		}
		ep.serve(m)
	}
}

// serve answers a request. It owns m.
func (ep *Endpoint) serve(m *rocl.Message) {
	if !m.IsCall() {
		m.Release()
		return
	}
	q, data, err := parseRequest(m.Bytes())
	if !ep.serving.begin(m.From(), ep.cfg.most) {
		ep.counts.refused.Add(1)
		_ = ep.r.ReplyBytes(ended, m, refusal(q.Len, errBusy)) // without room the target sees ErrNoReply
		m.Release()
		return
	}
	switch {
	case err != nil:
		ep.refuse(m, q.Len, err)
	case m.Tag() == tagRead:
		ep.read(m, &q)
	case m.Tag() == tagPlace:
		ep.place(m, &q)
	case m.Tag() == tagTake:
		ep.take(m, &q)
	case m.Tag() == tagWrite:
		ep.write(m, &q, data)
	default:
		ep.refuse(m, q.Len, errProtocol)
	}
}

// background runs f, in a goroutine of its own unless it is quick.
func (ep *Endpoint) background(isQuick bool, f func()) {
	if isQuick {
		f()
	} else {
		ep.server.Go(f)
	}
}

// refuse replies that a request has failed, whose reply would have n bytes. It owns m.
func (ep *Endpoint) refuse(m *rocl.Message, n uint64, err error) {
	ep.counts.refused.Add(1)
	p := refusal(n, err)
	ep.reply(m, func(ctx context.Context) error { return ep.r.ReplyBytes(ctx, m, p) }, func() {})
}

// ended is a context that has: a Reply with it does not wait.
var ended = func() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}()

// reply calls send, which replies to m, and calls failed if it fails. It does not wait: where the
// target's context has no room for the reply, another goroutine does. It owns m.
func (ep *Endpoint) reply(m *rocl.Message, send func(context.Context) error, failed func()) {
	if send(ended) == nil {
		ep.served(m)
		return
	}
	ep.server.Go(func() {
		defer ep.served(m)
		if send(ep.life) != nil { // the target has ended, or this endpoint
			failed()
		}
	})
}

// served releases a request that has been replied to.
func (ep *Endpoint) served(m *rocl.Message) {
	from := m.From()
	m.Release()
	ep.serving.end(from)
}

// admit returns the region of a request, and where in it the range begins. The region's end must
// be called.
func (ep *Endpoint) admit(q *request, want Rights) (*Region, int64, error) {
	h := (*Handle)(&q.Handle)
	if h.origin != ep.ID() || !h.verify(&ep.secret) {
		return nil, 0, ErrKey
	}
	s := h.last()
	if s.Rights&want == 0 {
		return nil, 0, ErrRights
	}
	off, n := int64(q.Off), int64(q.Len)
	if !isWithin(off, n, int64(s.Len)) {
		return nil, 0, ErrRange
	}
	ep.mu.Lock()
	r := ep.regions[h.region]
	ep.mu.Unlock()
	if r == nil || !r.begin() {
		return nil, 0, ErrRevoked
	}
	return r, int64(s.Off) + off, nil
}

// write copies data to a region. It owns m.
func (ep *Endpoint) write(m *rocl.Message, q *request, data []byte) {
	if uint64(len(data)) != q.Len {
		ep.refuse(m, 0, errProtocol)
		return
	}
	r, off, err := ep.admit(q, WriteOnly)
	if err != nil {
		ep.refuse(m, 0, err)
		return
	}
	ep.background(len(data) <= quick, func() {
		r.mem.write(data, off)
		r.end()
		ep.written(m, q.Len)
	})
}

// written replies that n bytes have been written to a region. It owns m.
func (ep *Endpoint) written(m *rocl.Message, n uint64) {
	ep.counts.writes.Add(1)
	ep.counts.writtenBytes.Add(n)
	ep.reply(m, func(ctx context.Context) error { return ep.r.ReplyBytes(ctx, m, nil) }, func() {})
}

// read replies with bytes of a region. It owns m.
func (ep *Endpoint) read(m *rocl.Message, q *request) {
	if q.Len > rocl.MaxMessage {
		ep.refuse(m, q.Len, rocl.ErrTooLarge)
		return
	}
	r, off, err := ep.admit(q, ReadOnly)
	if err != nil {
		ep.refuse(m, q.Len, err)
		return
	}
	n := int(q.Len)
	answer := func(b *rocl.Buffer) {
		ep.counts.reads.Add(1)
		ep.counts.readBytes.Add(uint64(n))
		ep.reply(m, func(ctx context.Context) error { return ep.r.Reply(ctx, m, b) }, b.Release)
	}
	if b := r.lend(m.From(), off, n); b != nil {
		answer(b)
		return
	}
	ep.background(n <= quick, func() {
		b, err := r.copy(off, n)
		if err != nil {
			ep.refuse(m, uint64(n), err)
			return
		}
		answer(b)
	})
}

// lend returns n bytes from off on as a buffer over the memory itself, where that can be sent to
// another resource without a copy; then it sees to it that end is called. Otherwise it returns nil.
func (r *Region) lend(to rocl.GID, off int64, n int) *rocl.Buffer {
	if n <= copied {
		return nil
	}
	if b := r.lendRegistered(off, n); b != nil {
		return b
	}
	i, at := r.mem.find(off)
	if isShared, _ := r.ep.sharing.with(r.ep.c, to); isShared || len(r.mem.parts[i])-at < n {
		return nil
	}
	return r.ep.c.Lend(r.mem.parts[i][at:at+n], r.end)
}

// lendRegistered is lend of registered memory, which is awaited by Region.returned.
func (r *Region) lendRegistered(off int64, n int) *rocl.Buffer {
	i, at := r.mem.find(off)
	if r.bufs == nil || r.bufs[i] == nil || len(r.mem.parts[i])-at < n {
		return nil
	}
	defer r.end()
	return r.bufs[i].Slice(at, n)
}

// copy returns a copy of n bytes from off on, and calls end.
func (r *Region) copy(off int64, n int) (*rocl.Buffer, error) {
	defer r.end()
	b, err := r.ep.c.BufferWait(r.ep.life, n)
	if err == nil {
		r.mem.read(b.Bytes(), off)
	}
	return b, err
}
