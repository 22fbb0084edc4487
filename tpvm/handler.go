// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/rocl-go/rocl"
)

// AnyContext, as the message context of a handler, is any message context.
const AnyContext MsgContext = math.MaxUint32

// A HandlerFunc handles a message. ctx ends when the thread ends and when the handler has been
// removed. The message is released when the function returns.
type HandlerFunc func(ctx context.Context, m *Message)

// A HandlerOption changes one default of AddHandler.
type HandlerOption func(*handler)

// Workers has a handler handle up to n messages at the same time, in no order.
func Workers(n int) HandlerOption { return func(h *handler) { h.workers = n } }

// Serial has a handler run only while no other Serial handler of the thread runs.
func Serial() HandlerOption { return func(h *handler) { h.serial = true } }

// handlers are those of a thread. One goroutine, the pump, receives the messages that they want
// and queues them; the handlers' own goroutines handle them. A Recv that gets such a message puts
// it back for the pump, so that the pump sees them all in their order.
type handlers struct {
	t      *Thread
	serial sync.Mutex // held while a Serial handler runs

	mu      sync.Mutex
	all     []*handler
	isOn    bool          // the pump runs
	changed func()        // has the pump look at all again
	moved   chan struct{} // closed when the pump takes a message, and when all changes
}

type handler struct {
	key     handlerKey
	f       HandlerFunc
	workers int
	serial  bool
	ctx     context.Context
	cancel  context.CancelFunc
	queue   chan *rocl.Message
	done    sync.WaitGroup // of the workers
}

// A handlerKey says which messages a handler wants.
type handlerKey struct {
	from TID
	tag  int
	mc   MsgContext
}

// queued is how many messages of a handler are received before they are handled.
const queued = 64

func (k handlerKey) matches(from TID, tag uint64) bool {
	return tag&ownTag == 0 && (k.from.IsZero() || k.from == from) &&
		(k.tag == AnyTag || uint64(k.tag) == tag&tagMask) &&
		(k.mc == AnyContext || uint64(k.mc) == tag&contextMask>>contextShift)
}

// selector returns the condition for the messages.
func (k handlerKey) selector() rocl.Select {
	var s rocl.Select
	switch {
	case k.mc != AnyContext:
		s, _ = selectKey{from: k.from, tag: k.tag, mc: uint32(k.mc)}.selector()
		return s
	case k.tag == AnyTag:
		s = rocl.TagMask(ownTag, 0)
	default:
		s = rocl.TagMask(ownTag|tagMask, uint64(k.tag))
	}
	if !k.from.IsZero() {
		s = rocl.All(rocl.From(k.from), s)
	}
	return s
}

// AddHandler has f called for each message from a task or thread, or AnyTask, with a tag, or
// AnyTag, in a message context, or AnyContext (pvm_addmhf). Recv, TryRecv and Probe do not see
// these messages. Where several handlers want a message, the one that was added first gets it. The
// messages of Notify have tags, and may be handled.
//
// Unlike PVM's, handlers need no other call to run: f is called by a goroutine of the
// library, for one message after the other in their order, beside the thread's own and beside
// other handlers; see Workers and Serial. f may do all that the thread may. A panic of f is
// logged, and ends that call only.
//
// remove removes the handler: Recv sees what it has not taken. Up to 64 messages that it has taken
// are handled still, with a ctx that has ended; remove does not wait for that. A thread's handlers
// end with it. AddHandler fails with ErrHandler if the thread has a handler for the same sender,
// tag and context.
func (t *Thread) AddHandler(from TID, tag int, mc MsgContext, f HandlerFunc, opts ...HandlerOption) (remove func(), err error) {
	h := &handler{key: handlerKey{from, tag, mc}, f: f, workers: 1, queue: make(chan *rocl.Message, queued)}
	for _, o := range opts {
		o(h)
	}
	if f == nil || tag < AnyTag || tag > MaxTag || mc >= 1<<contextBits && mc != AnyContext || h.workers < 1 {
		return nil, fmt.Errorf("tpvm: add a handler for tag %d: %w", tag, ErrBadParam)
	}
	hs := t.handlers.Load()
	if hs == nil {
		t.handlers.CompareAndSwap(nil, &handlers{t: t, changed: func() {}, moved: make(chan struct{})})
		hs = t.handlers.Load()
	}
	if err := hs.add(h); err != nil {
		return nil, fmt.Errorf("tpvm: add a handler for tag %d: %w", tag, err)
	}
	return sync.OnceFunc(func() { hs.remove(h) }), nil
}

func (hs *handlers) add(h *handler) error {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if slices.ContainsFunc(hs.all, func(o *handler) bool { return o.key == h.key }) {
		return ErrHandler
	}
	h.ctx, h.cancel = context.WithCancel(hs.t.ctx)
	for range h.workers {
		h.done.Go(func() { hs.work(h) })
	}
	hs.t.task.work.Go(h.done.Wait)
	hs.all = append(slices.Clone(hs.all), h)
	hs.changed()
	hs.moveLocked()
	if !hs.isOn {
		hs.isOn = true
		hs.t.task.work.Go(hs.pump)
	}
	return nil
}

func (hs *handlers) remove(h *handler) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.all = slices.DeleteFunc(slices.Clone(hs.all), func(o *handler) bool { return o == h })
	h.cancel()
	hs.changed()
	hs.moveLocked()
}

// moveLocked wakes receives that wait for the pump. The lock must be held.
func (hs *handlers) moveLocked() {
	close(hs.moved)
	hs.moved = make(chan struct{})
}

// handler returns the handler that wants a message, or nil.
func (hs *handlers) handler(m *rocl.Message) *handler {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for _, h := range hs.all {
		if h.key.matches(m.From(), m.Tag()) {
			return h
		}
	}
	return nil
}

// pump receives messages for the handlers until there is none, or the thread has ended.
func (hs *handlers) pump() {
	for {
		hs.mu.Lock()
		if len(hs.all) == 0 || hs.t.ctx.Err() != nil {
			hs.isOn = false
			hs.mu.Unlock()
			return
		}
		ctx, cancel := context.WithCancel(hs.t.ctx)
		hs.changed = cancel
		sels := make([]rocl.Select, len(hs.all))
		for i, h := range hs.all {
			sels[i] = h.key.selector()
		}
		hs.mu.Unlock()
		err := hs.take(ctx, rocl.Any(sels...))
		again := ctx.Err() != nil // the handlers have changed
		cancel()
		if !again && err != nil && hs.t.ctx.Err() == nil {
			hs.mu.Lock()
			hs.isOn = false
			hs.moveLocked()
			hs.mu.Unlock()
			hs.t.task.log.Warn("tpvm: handlers end", "thread", hs.t, "err", err)
			return
		}
	}
}

// take queues messages for the handlers until ctx ends.
func (hs *handlers) take(ctx context.Context, s rocl.Select) error {
	for {
		m, err := hs.t.r.Recv(ctx, s)
		if err != nil {
			return err
		}
		h := hs.handler(m)
		if h == nil { // removed since
			hs.t.putBack([]*rocl.Message{m})
			return nil
		}
		select {
		case h.queue <- m:
		case <-h.ctx.Done():
			hs.t.putBack([]*rocl.Message{m})
		}
		if h.ctx.Err() != nil { // its workers may have ended
			hs.t.putBack(h.drain())
		}
		hs.mu.Lock()
		hs.moveLocked()
		hs.mu.Unlock()
	}
}

// drain takes what is queued.
func (h *handler) drain() (ms []*rocl.Message) {
	for {
		select {
		case m := <-h.queue:
			ms = append(ms, m)
		default:
			return ms
		}
	}
}

// work handles messages until the handler has been removed and its queue is empty.
func (hs *handlers) work(h *handler) {
	for {
		select {
		case m := <-h.queue:
			hs.handle(h, m)
		case <-h.ctx.Done():
			for _, m := range h.drain() {
				hs.handle(h, m)
			}
			return
		}
	}
}

func (hs *handlers) handle(h *handler, rm *rocl.Message) {
	m, err := message(rm)
	if err != nil {
		hs.t.task.log.Warn("tpvm: handler: message dropped", "thread", hs.t, "err", err)
		return
	}
	defer m.Release()
	if h.serial {
		hs.serial.Lock()
		defer hs.serial.Unlock()
	}
	defer func() {
		if v := recover(); v != nil {
			hs.t.task.log.Error("tpvm: handler panics", "thread", hs.t, "from", m.From(), "tag", m.Tag(), "panic", v)
		}
	}()
	h.f(h.ctx, m)
}

// recv returns the next message that s selects and no handler wants.
func (hs *handlers) recv(ctx context.Context, s rocl.Select) (*rocl.Message, error) {
	m, err := hs.t.r.Recv(ctx, s)
	if err != nil || hs.handler(m) == nil {
		return m, err
	}
	return hs.recvAfter(ctx, s, m)
}

// recvAfter is recv after m was received, which a handler wants.
func (hs *handlers) recvAfter(ctx context.Context, s rocl.Select, m *rocl.Message) (*rocl.Message, error) {
	for {
		hs.mu.Lock()
		moved := hs.moved
		isOn := hs.isOn
		hs.mu.Unlock()
		if hs.handler(m) == nil {
			return m, nil
		}
		hs.t.putBack([]*rocl.Message{m})
		if isOn { // the pump takes m, or another before it: then m is received here again
			select {
			case <-moved:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		var err error
		if m, err = hs.t.r.Recv(ctx, s); err != nil {
			return nil, err
		}
	}
}

// tryRecv is recv without waiting.
func (hs *handlers) tryRecv(s rocl.Select) (*rocl.Message, error) {
	var aside []*rocl.Message // for the handlers
	defer func() { hs.t.putBack(aside) }()
	for {
		m, err := hs.t.r.TryRecv(s)
		if err != nil || hs.handler(m) == nil {
			return m, err
		}
		aside = append(aside, m)
	}
}
