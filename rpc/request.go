// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
)

// A request is one call as the server has it.
type request struct {
	s      *Server
	m      *rocl.Message
	method *method
	h      requestHeader
	args   []byte
	ctx    *handlerContext
	came   time.Time               // zero: the call is not timed
	stop   context.CancelCauseFunc // ends ctx; nil: the caller cannot
	// results are those of a stream; else nil.
	results *results
}

// A handlerContext is the context of a handler, which may keep it when it has returned.
type handlerContext struct {
	context.Context
	info Info
}

// Value returns the value of a key: what is known of the call for InfoFrom.
func (c *handlerContext) Value(key any) any {
	if key == (infoKey{}) {
		return &c.info
	}
	return c.Context.Value(key)
}

// begin has the request in m handled. It owns m.
func (s *Server) begin(m *rocl.Message) {
	r := s.requests.Get().(*request)
	r.m = m
	if !s.running.begin() {
		r.fail(ErrClosed)
		r.free()
		return
	}
	if err := r.parse(); err != nil {
		r.fail(err)
		r.free()
		s.running.end()
		return
	}
	if r.h.number != 0 || r.h.left > 0 {
		r.limit()
	}
	if r.method.place == nil {
		go r.run()
	} else if err := r.method.place(r); err != nil {
		r.fail(fmt.Errorf("%w: %w", ErrBusy, err))
		r.end()
	}
}

// parse reads the message.
func (r *request) parse() (err error) {
	var meta Metadata
	if r.h, r.args, err = parseRequest(r.m.Bytes()); err == nil {
		meta, err = parseMetadata(r.h.meta)
	}
	if err != nil {
		r.s.log.Warn("rpc: a request that cannot be read", "server", r.s.ID(), "from", r.m.From(), "error", err)
		return err
	}
	if r.method = (*r.s.names.Load())[r.m.Tag()]; r.method == nil {
		r.s.unknown.Add(1)
		return ErrUnknownCall
	}
	if isStream := r.h.flags&flagStream != 0; isStream != r.method.isStream || isStream && (r.h.number == 0 || !r.m.IsCall()) {
		return fmt.Errorf("%w: a stream of results is wanted: %t, and offered: %t", ErrUnknownCall, isStream, r.method.isStream)
	}
	if r.method.isStream {
		r.results = newResults(r)
	}
	r.ctx = &handlerContext{r.s.life, Info{r.method.name, r.m.From(), r.s.ID(), meta}}
	if r.method.isTimed() {
		r.came = time.Now()
	}
	return nil
}

// limit gives the handler a context that ends with the deadline of the caller, when the caller
// cancels, and when its process ends.
func (r *request) limit() {
	ctx, stop := context.WithCancelCause(r.s.life)
	if r.stop = stop; r.h.left > 0 {
		timed, end := context.WithTimeout(ctx, r.h.left)
		ctx = timed
		r.stop = func(cause error) { stop(cause); end() }
	}
	r.ctx.Context = ctx
	if r.h.number != 0 {
		r.s.others.begin(r)
	}
}

// run runs the handler and replies.
func (r *request) run() {
	b, err := r.serve()
	r.method.stats.ended(r.came, err)
	switch {
	case err != nil:
		r.fail(err)
	case b != nil:
		r.reply(b)
	}
	r.end()
}

// serve runs the handler. A handler that panics, or ends its goroutine, fails.
func (r *request) serve() (b *rocl.Buffer, err error) {
	hasReturned := false
	defer func() {
		if hasReturned {
			return
		}
		v := recover()
		r.s.log.Error("rpc: a handler panicked", "call", r.method.name, "server", r.s.ID(), "from", r.m.From(), "panic", v, "stack", string(debug.Stack()))
		b, err = nil, fmt.Errorf("%w: the handler of %q", ErrPanic, r.method.name)
		if v == nil { // runtime.Goexit: run does not go on
			r.method.stats.ended(r.came, err)
			r.fail(err)
			r.end()
		}
	}()
	b, err = r.method.serve(r)
	hasReturned = true
	return b, err
}

// end gives back what the request holds.
func (r *request) end() {
	if r.h.number != 0 {
		r.s.others.end(r)
	}
	if r.stop != nil {
		r.stop(nil)
	}
	s := r.s
	r.free()
	s.running.end()
}

// free gives back the message, and the request where nothing else knows it.
func (r *request) free() {
	r.m.Release()
	if r.h.number != 0 { // a message that cancels it, or asks for results, may be at work on it
		return
	}
	s := r.s
	*r = request{s: s}
	s.requests.Put(r)
}

// reply sends b, a whole reply.
func (r *request) reply(b *rocl.Buffer) {
	if err := r.s.r.Reply(r.s.life, r.m, b); err != nil {
		b.Release()
		r.s.log.Debug("rpc: a reply that could not be sent", "call", r.method.name, "server", r.s.ID(), "to", r.m.From(), "error", err)
		if r.s.life.Err() == nil {
			r.fail(err) // such as a result that is too large
		}
	}
}

// fail replies that the call has failed.
func (r *request) fail(err error) {
	if r.results != nil {
		r.results.close(err)
		return
	}
	r.s.failMessage(r.m, r.h.flags, err)
}

// failMessage replies to a request that it has failed.
func (s *Server) failMessage(m *rocl.Message, flags byte, err error) {
	if !m.IsCall() {
		return
	}
	var room [256]byte
	p := s.words.appendError(room[:replyHead], err)
	putReply(p, statusError, flags&flagChecksum)
	if err := s.r.ReplyBytes(s.life, m, p); err != nil {
		s.log.Debug("rpc: an error that could not be sent", "server", s.ID(), "to", m.From(), "error", err)
	}
}

// Info tells a handler and interceptors of the call.
type Info struct {
	Name     string
	Caller   rocl.GID // the resource that calls
	Provider rocl.GID // the server's resource
	Metadata Metadata // from the caller; not to be changed
}

type infoKey struct{}

// InfoFrom returns what is known of the call whose handler got ctx. It returns nil if ctx is of
// no handler.
func InfoFrom(ctx context.Context) *Info {
	i, _ := ctx.Value(infoKey{}).(*Info)
	return i
}

// Callers are the requests that their callers can cancel.
type callers struct {
	mu       sync.Mutex
	requests map[rocl.GID]map[uint64]*request // by caller and number
	watched  map[rocl.GID]func()              // callers whose ends the server is told of
}

// begin lists r, and has the server told when its caller ends.
func (c *callers) begin(r *request) {
	from := r.m.From()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests == nil {
		c.requests, c.watched = map[rocl.GID]map[uint64]*request{}, map[rocl.GID]func(){}
	}
	of := c.requests[from]
	if of == nil {
		of = map[uint64]*request{}
		c.requests[from] = of
	}
	of[r.h.number] = r
	if c.watched[from] == nil {
		c.watched[from] = func() {}
		r.s.receiver.Go(func() { c.watch(r.s, from) })
	}
}

// watch asks rocl to tell the server when a caller has ended.
func (c *callers) watch(s *Server, from rocl.GID) {
	stop, err := s.r.Monitor(s.life, from, 0)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		delete(c.watched, from) // the next request asks again
	} else if c.watched[from] != nil {
		c.watched[from] = stop
	}
}

// end takes r from the list. The map of a caller stays while the caller lives.
func (c *callers) end(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.requests[r.m.From()]; of[r.h.number] == r {
		delete(of, r.h.number)
	}
}

// cancel ends the context of the request that the message m names.
func (c *callers) cancel(m *rocl.Message) {
	number, ok := parseCancel(m.Bytes())
	if !ok {
		return
	}
	c.mu.Lock()
	r := c.requests[m.From()][number]
	c.mu.Unlock()
	if r != nil {
		r.stop(context.Canceled)
	}
}

// more answers a message with tagNext. It owns m.
func (s *Server) more(m *rocl.Message) {
	var r *request
	if number, ok := parseCancel(m.Bytes()); ok {
		s.others.mu.Lock()
		r = s.others.requests[m.From()][number]
		s.others.mu.Unlock()
	}
	if r == nil || r.results == nil {
		s.failMessage(m, 0, fmt.Errorf("%w: the stream has ended", context.Canceled))
		m.Release()
		return
	}
	r.results.next(m)
}

// gone ends the contexts of the requests of a caller that has ended.
func (c *callers) gone(from rocl.GID) {
	c.mu.Lock()
	var all []*request
	for _, r := range c.requests[from] {
		all = append(all, r)
	}
	delete(c.requests, from)
	delete(c.watched, from)
	c.mu.Unlock()
	for r := range slices.Values(all) {
		r.stop(rocl.ErrGone)
	}
}

// A tally counts what is under way.
type tally struct {
	n    atomic.Int64  // less than 0 once close has been called: closing more than closing
	once sync.Once     // closes idle
	mu   sync.Mutex    // guards the making of idle
	idle chan struct{} // closed when nothing is left after close; nil before
}

const closing = math.MinInt64 / 2

// begin counts one more, unless close has been called.
func (t *tally) begin() bool {
	if t.n.Add(1) > 0 {
		return true
	}
	t.end()
	return false
}

func (t *tally) end() {
	if t.n.Add(-1) == closing {
		t.once.Do(func() { close(t.idle) })
	}
}

// close refuses more, and waits until none is left or ctx ends.
func (t *tally) close(ctx context.Context) error {
	t.mu.Lock()
	if t.idle == nil {
		t.idle = make(chan struct{})
		t.n.Add(closing + 1) // end, which looks at it, may run at once
		t.end()
	}
	t.mu.Unlock()
	select {
	case <-t.idle:
		return nil
	default:
	}
	select {
	case <-t.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d calls run: %w", t.n.Load()-closing, context.Cause(ctx))
	}
}
