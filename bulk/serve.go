// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// copied is how many bytes are copied into a message rather than sent from where they lie, because
// that costs less than to keep an account of them.
const copied = 8 << 10

// serve answers the requests to an endpoint. Each has a goroutine of its own.
func (ep *Endpoint) serve(m *rocl.Message) {
	if !m.IsCall() {
		return
	}
	q, data, err := parseRequest(m.Bytes())
	n := q.Len // bytes of a reply that is no error
	if err == nil {
		switch m.Tag() {
		case tagRead:
			err = ep.read(m, &q)
		case tagWrite:
			err, n = ep.write(m, &q, data), 0
		default:
			err = errProtocol
		}
	}
	if err != nil {
		ep.counts.refused.Add(1)
		_ = ep.r.ReplyBytes(ep.life, m, refusal(n, err)) // it fails if the target has ended
	}
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

// write copies data to a region.
func (ep *Endpoint) write(m *rocl.Message, q *request, data []byte) error {
	if uint64(len(data)) != q.Len {
		return errProtocol
	}
	r, off, err := ep.admit(q, WriteOnly)
	if err != nil {
		return err
	}
	r.mem.write(data, off)
	r.end()
	ep.counts.writes.Add(1)
	ep.counts.writtenBytes.Add(q.Len)
	_ = ep.r.ReplyBytes(ep.life, m, nil) // it fails if the target has ended
	return nil
}

// read replies with bytes of a region.
func (ep *Endpoint) read(m *rocl.Message, q *request) error {
	if q.Len > rocl.MaxMessage {
		return rocl.ErrTooLarge
	}
	r, off, err := ep.admit(q, ReadOnly)
	if err != nil {
		return err
	}
	b, err := r.take(m.From(), off, int(q.Len))
	if err != nil {
		return err
	}
	ep.counts.reads.Add(1)
	ep.counts.readBytes.Add(q.Len)
	if ep.r.Reply(ep.life, m, b) != nil { // the target has ended
		b.Release()
	}
	return nil
}

// take returns n bytes from off on as a buffer to send: the memory itself where that can be sent
// to another resource without a copy, and otherwise a copy. It calls end when the memory is not
// read any more. Lent registered memory is awaited by Region.returned.
func (r *Region) take(to rocl.GID, off int64, n int) (*rocl.Buffer, error) {
	if n > copied {
		if i, at := r.mem.find(off); len(r.mem.parts[i])-at >= n {
			switch {
			case r.bufs != nil && r.bufs[i] != nil:
				defer r.end()
				return r.bufs[i].Slice(at, n), nil
			case !r.ep.sharing.with(r.ep.c, to):
				return r.ep.c.Lend(r.mem.parts[i][at:at+n], r.end), nil
			}
		}
	}
	defer r.end()
	b, err := r.ep.c.BufferWait(r.ep.life, n)
	if err == nil {
		r.mem.read(b.Bytes(), off)
	}
	return b, err
}

// sharing knows with which contexts memory is shared. To them registered memory is lent, and
// plain memory would be copied twice: into the transport's ring and out of it.
type sharing struct {
	mu     sync.Mutex
	looked time.Time
	peers  map[rocl.GID]bool
}

// sharingFor is how long an answer of sharing is believed. A wrong one costs a copy.
const sharingFor = time.Second

// with reports whether messages to a resource go over shared memory.
func (s *sharing) with(c *rocl.Context, to rocl.GID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer := to.Context()
	if _, isKnown := s.peers[peer]; !isKnown || time.Since(s.looked) > sharingFor {
		s.looked, s.peers = time.Now(), map[rocl.GID]bool{peer: false}
		for _, r := range c.Routes() {
			s.peers[r.Peer] = s.peers[r.Peer] || r.Transport == "shm"
		}
	}
	return s.peers[peer]
}
