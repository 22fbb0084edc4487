// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// maxTaken is about how many bytes of requests the writer takes at a time. A request that is not
// taken yet can still be withdrawn.
const maxTaken = 64 << 10

// registrationConn is a registration connection with the requests under way on it. Callers put
// requests into a queue and never write themselves, so a server that hangs blocks only the writing
// goroutine.
type registrationConn struct {
	c    *wire.Conn    // the reading goroutine uses it; the writing one calls only Write and Close
	gone chan struct{} // closed when the connection has ended
	wake chan struct{} // has a value when the queue may have a request
	// asked counts questions over other connections until the index is asked for. The client's mu
	// must be held.
	asked int

	mu      sync.Mutex          // guards the following fields
	next    uint64              // the number of the last request
	queue   []*request          // requests that the writer has not taken
	pending map[uint64]*request // requests that wait for their answers, by number
	silent  bool                // a caller has given up, and no answer has come since
}

// newRegistrationConn returns a registration connection whose goroutines are not started.
func newRegistrationConn(c *wire.Conn) *registrationConn {
	return &registrationConn{c: c, gone: make(chan struct{}), wake: make(chan struct{}, 1), pending: map[uint64]*request{}}
}

// A request is one message of a client and its answer.
type request struct {
	typ          byte
	id           resource.GID
	body         func(*wire.Builder) // writes what follows the identifier; may be nil
	acknowledged func(rev uint64)    // called by the reading goroutine before the answer is delivered; may be nil
	mustSend     bool                // the request is sent even if its caller gives up

	// The following fields are set by put.
	n      uint64     // the number on the connection; 0: no caller waits for the answer
	bytes  []byte     // the message; nil once the writer has taken it
	answer chan reply // has room for the answer, so the reading goroutine never waits
}

// reply is the server's answer to a request.
type reply struct {
	rev uint64
	err error
}

// put queues a copy of q and returns the copy. waits says that the caller waits for the answer.
func (lc *registrationConn) put(q request, waits bool) *request {
	r := &q
	lc.mu.Lock()
	if waits {
		lc.next++
		r.n = lc.next
		r.answer = make(chan reply, 1)
		lc.pending[r.n] = r
	}
	var b wire.Builder
	b.Begin(r.typ, r.n)
	if r.typ != wire.MsgLeave {
		b.GID(r.id)
	}
	if r.body != nil {
		r.body(&b)
	}
	r.bytes = b.Finish()
	lc.queue = append(lc.queue, r)
	lc.mu.Unlock()
	select {
	case lc.wake <- struct{}{}:
	default:
	}
	return r
}

// withdraw is called when the caller of r gives up. It reports whether the server may still get r;
// then the answer is still noted.
func (lc *registrationConn) withdraw(r *request) (maybeSent bool) {
	lc.mu.Lock()
	defer lc.mu.Unlock()
	lc.silent = true
	if i := slices.Index(lc.queue, r); i >= 0 && !r.mustSend {
		lc.queue = slices.Delete(lc.queue, i, i+1)
		delete(lc.pending, r.n)
		return false
	}
	return true
}

// takeQueued removes the next requests from the queue and appends their messages to b.
func (lc *registrationConn) takeQueued(b []byte) []byte {
	lc.mu.Lock()
	defer lc.mu.Unlock()
	n := 0
	for n < len(lc.queue) && (n == 0 || len(b)+len(lc.queue[n].bytes) <= maxTaken) {
		b = append(b, lc.queue[n].bytes...)
		lc.queue[n].bytes = nil
		n++
	}
	lc.queue = slices.Delete(lc.queue, 0, n)
	return b
}

// write sends what is queued until the connection ends. It runs in a goroutine of its own.
func (lc *registrationConn) write() {
	var b []byte
	for {
		select {
		case <-lc.wake:
		case <-lc.gone:
			return
		}
		for b = lc.takeQueued(b[:0]); len(b) > 0; b = lc.takeQueued(b[:0]) {
			if _, err := lc.c.Write(b); err != nil {
				lc.c.Close() // the reading goroutine notices, and the client joins again
				return
			}
			if cap(b) > 1<<20 {
				b = nil
			}
		}
	}
}

// answered passes the answer m to the request that waits for it. The reading goroutine calls it.
func (lc *registrationConn) answered(m *wire.Message) {
	a := reply{}
	switch {
	case m.Type == wire.MsgError:
		a.err = wire.ParseError(m.Body)
	case m.Type == wire.MsgDone && len(m.Body) == 8:
		a.rev = binary.LittleEndian.Uint64(m.Body)
	default:
		a.err = fmt.Errorf("%w: message type %d", ErrProtocol, m.Type)
	}
	lc.mu.Lock()
	lc.silent = false
	r := lc.pending[m.ID]
	delete(lc.pending, m.ID)
	lc.mu.Unlock()
	if r == nil {
		return
	}
	if a.err == nil && r.acknowledged != nil {
		r.acknowledged(a.rev)
	}
	r.answer <- a
}

// isSilent reports whether a caller has given up and no answer has come since.
func (lc *registrationConn) isSilent() bool {
	lc.mu.Lock()
	defer lc.mu.Unlock()
	return lc.silent
}

// call sends q to the server and waits for the answer, again if the server is lost meanwhile. If
// ctx ends, maybeSent reports whether the present server may have q or still get it.
func (c *Client) call(ctx context.Context, q request) (rev uint64, maybeSent bool, err error) {
	for {
		lc, err := c.current(ctx)
		if err != nil {
			return 0, false, err
		}
		r := lc.put(q, true)
		select {
		case a := <-r.answer:
			return a.rev, true, a.err
		case <-lc.gone:
			select { // an answer that came before the end counts
			case a := <-r.answer:
				return a.rev, true, a.err
			default:
			}
		case <-ctx.Done():
			return 0, lc.withdraw(r), context.Cause(ctx)
		}
		c.lost(lc) // the goroutine in keepJoined may not have noticed yet
	}
}

// notify queues a message whose answer is ignored. Without a server it does nothing, because the
// next server is offered only what the context owns by then.
func (c *Client) notify(typ byte, id resource.GID) {
	c.mu.Lock()
	lc := c.conn
	c.mu.Unlock()
	if lc != nil {
		lc.put(request{typ: typ, id: id}, false)
	}
}
