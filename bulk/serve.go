// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rocl-go/rocl"
)

const (
	// copied is the size up to which bytes are copied into a message. For so few bytes a copy costs
	// less than tracking lent memory.
	copied = 8 << 10
	// quick is the size up to which the goroutine that receives requests copies bytes itself. For
	// so few bytes another goroutine costs more than the copy.
	quick = 256 << 10
	// viewWait is how long a view waits for memory of the origin. The views of a pipeline may hold
	// that memory, so the pipeline has to give some of them back.
	viewWait = 100 * time.Millisecond
)

// receive takes requests until the resource is closed. It answers quick requests itself, and starts
// goroutines for the others.
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
	if !ep.limit(m).begin(m.From(), ep.cfg.most) {
		ep.counts.refused.Add(1)
		_ = ep.r.ReplyBytes(ended, m, refusal(q.Len, errBusy)) // if the target has no room for the reply, its call ends with ErrNoReply
		m.Release()
		return
	}
	n := q.Len // of the reply
	switch m.Tag() {
	case tagOffer, tagTake, tagWrite, tagExport, tagRecall:
		n = 0
	}
	if err == nil {
		err = ep.answer(m, &q, data)
	}
	if err != nil {
		ep.refuse(m, n, err)
	}
}

// answer answers a request, and then owns m. If it fails, it has not answered, and the caller owns
// m.
func (ep *Endpoint) answer(m *rocl.Message, q *request, data []byte) error {
	switch m.Tag() {
	case tagRead, tagPull, tagFetch:
		return ep.read(m, q)
	case tagOffer:
		return ep.accept(m, q, data)
	case tagLocate:
		return ep.locate(m, q)
	case tagTake:
		return ep.take(m, q)
	case tagWrite:
		return ep.write(m, q, data)
	case tagExport:
		return ep.export(m, q)
	case tagRecall:
		return ep.recalled(m, q)
	}
	return errProtocol
}

// refuse replies with an error to a request for n bytes. It owns m.
func (ep *Endpoint) refuse(m *rocl.Message, n uint64, err error) {
	ep.counts.refused.Add(1)
	ep.replyBytes(m, refusal(n, err))
}

// ended is a context that has ended. A Reply or BufferWait with it does not wait.
var ended = func() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}()

// reply calls send, which replies to m, and calls failed if it fails. reply does not wait: if the
// target's context has no room for the reply, another goroutine waits. It owns m.
func (ep *Endpoint) reply(m *rocl.Message, send func(context.Context) error, failed func()) {
	if send(ended) == nil {
		ep.served(m)
		return
	}
	ep.server.Go(func() {
		defer ep.served(m)
		if send(ep.life) != nil { // the target or this endpoint has ended
			failed()
		}
	})
}

// replyBytes replies with p to a request, also if no memory of the context is free. It owns m
// and p.
func (ep *Endpoint) replyBytes(m *rocl.Message, p []byte) {
	ep.reply(m, func(ctx context.Context) error {
		err := ep.r.ReplyBytes(ctx, m, p)
		if !errors.Is(err, rocl.ErrLimit) {
			return err
		}
		b := ep.c.Lend(p, func() {})
		if err = ep.r.Reply(ctx, m, b); err != nil {
			b.Release()
		}
		return err
	}, func() {})
}

// served releases a request after the reply.
func (ep *Endpoint) served(m *rocl.Message) {
	from, s := m.From(), ep.limit(m)
	m.Release()
	s.end(from)
}

// limit returns the limit of requests to which m belongs. The requests by which an origin fetches
// offered bytes have a limit of their own. Otherwise two endpoints that push to each other could
// serve so many offers that they refuse the requests that these wait for.
func (ep *Endpoint) limit(m *rocl.Message) *serving {
	if m.Tag() == tagFetch {
		return &ep.fetching
	}
	return &ep.serving
}

// admit checks a request. It returns the region, and the offset of the request's range in it. The
// caller must call the region's end.
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

// write copies data to a region: see answer.
func (ep *Endpoint) write(m *rocl.Message, q *request, data []byte) error {
	if uint64(len(data)) != q.Len {
		return errProtocol
	}
	r, off, err := ep.admit(q, WriteOnly)
	if err != nil {
		return err
	}
	write := func() {
		ep.counts.copiedBytes.Add(q.Len)
		r.mem.write(data, off)
		ep.written(m, q, r, nil)
	}
	if len(data) <= quick {
		write()
	} else {
		ep.server.Go(write)
	}
	return nil
}

// written ends a request to write to a region, with an error if that has failed. It owns m.
func (ep *Endpoint) written(m *rocl.Message, q *request, r *Region, err error) {
	r.end()
	if err != nil {
		ep.refuse(m, 0, err)
		return
	}
	ep.counts.writes.Add(1)
	ep.counts.writtenBytes.Add(q.Len)
	ep.replyBytes(m, nil)
}

// read replies with bytes of a region: see answer.
func (ep *Endpoint) read(m *rocl.Message, q *request) error {
	if q.Len > rocl.MaxMessage {
		return rocl.ErrTooLarge
	}
	r, off, err := ep.admit(q, ReadOnly)
	if err != nil {
		return err
	}
	n := int(q.Len)
	route := ep.sharing.route(ep.c, m.From())
	if m.Tag() != tagRead && route != shared {
		n = r.mem.part(off, n)
	}
	if b := r.lend(off, n, route); b != nil {
		ep.granted(m, uint64(n), b)
		return nil
	}
	if most := ep.copyMost(); n > most {
		if m.Tag() == tagRead {
			r.end()
			return fmt.Errorf("%w: a copy of %d bytes, at most %d in the origin's memory", rocl.ErrTooLarge, n, most)
		}
		n = most
	}
	if n <= quick {
		if b, err := r.copy(ended, off, n); err == nil {
			r.end()
			ep.granted(m, uint64(n), b)
			return nil
		}
	}
	ep.server.Go(func() { // copying takes long, or memory has to become free
		ctx, wait := ep.life, func() {}
		if m.Tag() == tagRead {
			ctx, wait = context.WithTimeoutCause(ctx, viewWait, errBusy)
		}
		b, err := r.copy(ctx, off, n)
		wait()
		r.end()
		if err != nil {
			ep.refuse(m, q.Len, err)
			return
		}
		ep.granted(m, uint64(n), b)
	})
	return nil
}

// copyMost returns how many bytes of a region a reply has at most if they are copied: a small part
// of the context's memory, if that is limited.
func (ep *Endpoint) copyMost() int {
	if ep.memory == 0 {
		return rocl.MaxMessage
	}
	return int(min(max(ep.memory/8, partLeast), rocl.MaxMessage))
}

// granted replies with b, by which the target reads n bytes of a region. It owns m and b.
func (ep *Endpoint) granted(m *rocl.Message, n uint64, b *rocl.Buffer) {
	ep.counts.reads.Add(1)
	ep.counts.readBytes.Add(n)
	ep.reply(m, func(ctx context.Context) error { return ep.r.Reply(ctx, m, b) }, b.Release)
}

// lend returns the n bytes from off as a buffer over the memory itself, and makes sure that end is
// called. It returns nil, and end remains to be called, if the bytes cannot be sent over the route
// without a copy.
func (r *Region) lend(off int64, n int, via route) *rocl.Buffer {
	if n <= copied {
		return nil
	}
	if b := r.lendRegistered(off, n); b != nil {
		return b
	}
	i, at := r.mem.find(off)
	if via == shared || len(r.mem.parts[i])-at < n {
		return nil
	}
	return r.ep.c.Lend(r.mem.parts[i][at:at+n], r.end)
}

// lendRegistered is lend for registered memory only. Revoke waits until the buffer is
// released.
func (r *Region) lendRegistered(off int64, n int) *rocl.Buffer {
	i, at := r.mem.find(off)
	if r.bufs == nil || r.bufs[i] == nil || len(r.mem.parts[i])-at < n {
		return nil
	}
	defer r.end()
	return r.bufs[i].Slice(at, n)
}

// copy returns a copy of the n bytes from off. It waits for memory until ctx ends.
func (r *Region) copy(ctx context.Context, off int64, n int) (*rocl.Buffer, error) {
	b, err := r.ep.c.BufferWait(ctx, n)
	if err == nil {
		r.ep.counts.copiedBytes.Add(uint64(n))
		r.mem.read(b.Bytes(), off)
	}
	return b, err
}
