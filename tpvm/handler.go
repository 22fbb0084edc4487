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

// A HandlerFunc handles a message. ctx ends when the thread ends and when the handler has been
// removed. The message is released when the function returns.
type HandlerFunc func(ctx context.Context, m *Message)

// A HandlerOption changes one default of AddHandler.
type HandlerOption func(*handler)

// Workers lets a handler handle up to n messages at the same time, in any order.
func Workers(n int) HandlerOption { return func(h *handler) { h.workers = n } }

// Serial makes a handler run only while no other Serial handler of the thread runs.
func Serial() HandlerOption { return func(h *handler) { h.serial = true } }

// handlers are the handlers of a thread. One goroutine, the pump, receives the messages that they
// want and queues them; the handlers' own goroutines handle them. A receive that could get a
// handler's message too is left to the pump, which gives it the messages that no handler wants. So
// one goroutine takes all of these messages, and they keep their order.
type handlers struct {
	t      *Thread
	serial sync.Mutex // held while a Serial handler runs

	mu        sync.Mutex
	all       []*handler
	waiting   []*receiver
	isOn      bool   // the pump runs
	interrupt func() // makes the pump look at all and waiting again
}

// A receiver is a receive that the pump does for a caller.
type receiver struct {
	filter Filter
	isTry  bool
	got    chan received // has room for one; closed when the pump has ended
}

type received struct {
	m   *rocl.Message
	err error
}

// A handler is a handler that AddHandler has added.
type handler struct {
	filter  Filter
	f       HandlerFunc
	workers int
	serial  bool
	ctx     context.Context
	cancel  context.CancelFunc

	// Guarded by the mu of handlers:
	isStarted bool // the workers run, or have ended
	queue     []*rocl.Message
	ready     sync.Cond // signals that the queue is not empty, or that ctx has ended

	done sync.WaitGroup // of the workers
}

// queued is how many messages of a handler are received before they are handled. The queue may be
// longer if a receive waits for messages behind them.
const queued = 64

// goneTag is the tag of the messages that tell the pump of the end of a sender for which a receive
// waits.
const goneTag = ownTag | math.MaxUint32

// AddHandler makes the library call f for each message from a task or thread, or AnyTask, with a
// tag, or AnyTag, in a message context, or AnyContext (pvm_addmhf). Recv, TryRecv and Probe do not
// see these messages. If several handlers want a message, the one that was added first gets it. The
// messages of Notify have tags, and may be handled.
//
// Unlike PVM's handlers, these need no other call to run. A goroutine of the library calls f, for
// one message after the other in their order, beside the thread's own goroutine and beside other
// handlers; see Workers and Serial. f may do all that the thread may. A panic of f is logged, and
// ends that call only, as runtime.Goexit does.
//
// f may be called before AddHandler has returned.
//
// After remove, Recv returns messages that the handler has not taken. Up to 64 messages that it has
// taken are still handled, with an ended ctx; remove does not wait for them. A thread's handlers
// end with it. If a Recv is in progress when the handler is added, one message may reach the
// handler late.
//
// AddHandler fails with ErrHandler if the thread has a handler for the same sender, tag and
// context.
func (t *Thread) AddHandler(from TID, tag int, mc MsgContext, f HandlerFunc, opts ...HandlerOption) (remove func(), err error) {
	h := &handler{filter: Filter{from, tag, mc}, f: f, workers: 1}
	for _, o := range opts {
		if o != nil {
			o(h)
		}
	}
	err = h.filter.check()
	switch {
	case err != nil:
	case f == nil:
		err = errNoFunc
	case h.workers < 1:
		err = badParam("%d workers are not positive", h.workers)
	}
	if err != nil {
		return nil, fmt.Errorf("tpvm: add a handler for tag %d: %w", tag, err)
	}
	hs := t.handlers.Load()
	if hs == nil {
		t.handlers.CompareAndSwap(nil, &handlers{t: t, interrupt: func() {}})
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
	if slices.ContainsFunc(hs.all, func(o *handler) bool { return o.filter == h.filter }) {
		return ErrHandler
	}
	if !hs.isOn && !hs.t.task.work.goes(hs.pump) { // the pump waits for mu
		return ErrExited
	}
	hs.isOn = true
	h.ready.L = &hs.mu
	h.ctx, h.cancel = context.WithCancel(hs.t.ctx)
	hs.all = append(hs.all, h)
	hs.interrupt()
	return nil
}

// startLocked starts the workers of a handler for its first message. So handlers that are added and
// removed in quick succession leave no goroutines behind. It reports false if the task exits. mu
// must be held.
func (hs *handlers) startLocked(h *handler) bool {
	if h.isStarted {
		return true
	}
	h.isStarted = hs.t.task.work.goes(func() {
		for range h.workers {
			h.done.Go(func() { hs.work(h) })
		}
		<-h.ctx.Done()
		hs.mu.Lock()
		h.ready.Broadcast()
		hs.mu.Unlock()
		h.done.Wait()
	})
	return h.isStarted
}

func (hs *handlers) remove(h *handler) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.all = slices.DeleteFunc(hs.all, func(o *handler) bool { return o == h })
	h.cancel()
	hs.interrupt()
}

// wants reports whether a handler wants a message.
func (hs *handlers) wants(m *rocl.Message) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return hs.isOn && slices.ContainsFunc(hs.all, func(h *handler) bool { return h.filter.matches(m.From(), m.Tag()) })
}

// pump receives messages until there is no handler, or the thread has ended.
func (hs *handlers) pump() {
	for {
		ctx, sels, try := hs.next()
		if ctx == nil {
			return
		}
		var m *rocl.Message
		var err error
		if try != nil {
			m, err = hs.t.r.TryRecv(sels...)
		} else {
			m, err = hs.t.r.Recv(ctx, rocl.Any(sels...))
		}
		hs.mu.Lock()
		ended := ctx.Err() != nil
		hs.interrupt() // releases ctx
		switch {
		case err == nil:
			hs.routeLocked(m)
		case try != nil:
			hs.giveLocked(try, received{err: err})
		case !ended: // the thread's resource has been closed
			hs.stopLocked()
			hs.mu.Unlock()
			return
		}
		hs.mu.Unlock()
	}
}

// next returns what the pump receives next: the conditions of the handlers and the waiting
// receives, or the condition of a TryRecv. ctx ends when these change. It is nil if the pump must
// end.
func (hs *handlers) next() (ctx context.Context, sels []rocl.Select, try *receiver) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if len(hs.all) == 0 || hs.t.ctx.Err() != nil {
		hs.stopLocked()
		return nil, nil, nil
	}
	ctx, cancel := context.WithCancel(hs.t.ctx)
	hs.interrupt = cancel
	for _, rc := range hs.waiting {
		if rc.isTry {
			return ctx, []rocl.Select{rc.filter.selector()}, rc
		}
	}
	sels = append(sels, rocl.Tag(goneTag))
	for _, h := range hs.all {
		if len(h.queue) < queued {
			sels = append(sels, h.filter.selector())
		}
	}
	for _, rc := range hs.waiting {
		sels = append(sels, rc.filter.selector())
	}
	return ctx, sels, nil
}

// stopLocked ends the pump. Receives go on without it. mu must be held.
func (hs *handlers) stopLocked() {
	hs.isOn = false
	hs.interrupt = func() {}
	for _, rc := range hs.waiting {
		close(rc.got)
	}
	hs.waiting = nil
}

// routeLocked gives a message to the handler or receive that wants it. mu must be held.
func (hs *handlers) routeLocked(m *rocl.Message) {
	if m.Tag() == goneTag {
		from := m.From()
		m.Release()
		for _, rc := range slices.Clone(hs.waiting) {
			if rc.filter.From == from {
				hs.giveLocked(rc, received{err: rocl.ErrGone})
			}
		}
		return
	}
	for _, h := range hs.all {
		if h.ctx.Err() == nil && h.filter.matches(m.From(), m.Tag()) && hs.startLocked(h) { // if startLocked fails, the task exits
			h.queue = append(h.queue, m)
			h.ready.Signal()
			return
		}
	}
	for _, rc := range hs.waiting {
		if rc.filter.matches(m.From(), m.Tag()) {
			hs.giveLocked(rc, received{m: m})
			return
		}
	}
	hs.t.putBack([]*rocl.Message{m}) // the handler was removed, or the receive has given up
}

// giveLocked ends a receive. mu must be held.
func (hs *handlers) giveLocked(rc *receiver, got received) {
	hs.waiting = slices.DeleteFunc(hs.waiting, func(o *receiver) bool { return o == rc })
	rc.got <- got
}

// work handles messages until the handler has been removed and its queue is empty. If the handler's
// function ends the goroutine by runtime.Goexit, another goroutine goes on.
func (hs *handlers) work(h *handler) {
	hs.mu.Lock()
	isDone := false
	defer func() {
		hs.mu.Unlock()
		if !isDone {
			h.done.Go(func() { hs.work(h) })
		}
	}()
	for {
		for len(h.queue) == 0 {
			if h.ctx.Err() != nil {
				isDone = true
				return
			}
			h.ready.Wait()
		}
		m := h.queue[0]
		h.queue[0] = nil
		if h.queue = h.queue[1:]; len(h.queue) == queued-1 {
			hs.interrupt() // the pump takes more
		}
		hs.handleLocked(h, m)
	}
}

// handleLocked releases mu, handles a message, and locks mu again. mu must be held.
func (hs *handlers) handleLocked(h *handler, m *rocl.Message) {
	hs.mu.Unlock()
	defer hs.mu.Lock() // also after runtime.Goexit
	hs.handle(h, m)
}

func (hs *handlers) handle(h *handler, rm *rocl.Message) {
	m := new(Message) // not one that is used again: h.f may have released it
	if err := m.init(rm); err != nil {
		hs.t.task.log.Warn("tpvm: handler: a message was dropped", "thread", hs.t.String(), "err", err)
		return
	}
	defer m.Release()
	if h.serial {
		hs.serial.Lock()
		defer hs.serial.Unlock()
	}
	defer func() {
		if v := recover(); v != nil {
			hs.t.task.log.Error("tpvm: a handler panicked", "thread", hs.t.String(), "from", m.From(), "tag", m.Tag(), "panic", v)
		}
	}()
	h.f(h.ctx, m)
}

// recv leaves a receive to the pump if a handler could want what f selects. ok is false if none
// could, or if the pump has ended.
func (hs *handlers) recv(ctx context.Context, f Filter, isTry bool) (got received, ok bool) {
	hs.mu.Lock()
	if !hs.isOn || !slices.ContainsFunc(hs.all, func(h *handler) bool { return h.filter.meets(f) }) {
		hs.mu.Unlock()
		return received{}, false
	}
	rc := &receiver{filter: f, isTry: isTry, got: make(chan received, 1)}
	hs.waiting = append(hs.waiting, rc)
	hs.interrupt()
	hs.mu.Unlock()
	if !f.From.IsZero() && !isTry { // the pump's own receive has other conditions, and does not fail at this end
		stop, err := hs.t.r.Monitor(ctx, f.From, goneTag)
		if err != nil {
			hs.giveUp(rc, err)
		} else {
			defer stop()
		}
	}
	return hs.wait(ctx, rc)
}

// wait returns what the pump has received for rc. ok is false if the pump has ended.
func (hs *handlers) wait(ctx context.Context, rc *receiver) (got received, ok bool) {
	select {
	case got, ok = <-rc.got:
		return got, ok
	case <-ctx.Done():
	}
	hs.giveUp(rc, context.Cause(ctx))
	got, ok = <-rc.got
	return got, ok
}

// giveUp ends a receive with an error, unless it has ended already.
func (hs *handlers) giveUp(rc *receiver, err error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if slices.Contains(hs.waiting, rc) {
		hs.giveLocked(rc, received{err: err})
	}
}
