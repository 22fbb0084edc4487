// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"sync"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dataflow/internal/frames"
)

// A WorkFor names an elastic farm: the graph's name, the run of [Config], which is the name of the
// graph if it is empty, and the farm's name.
type WorkFor struct{ Graph, Run, Farm string }

// Work is a worker of an elastic farm: s processes items until the farm's run has ended, or until
// ctx ends. The farm may begin later, and s must not send before its first item. The item on which
// s works when ctx ends is finished, and Work returns when the farm has its outputs. c stays the
// caller's.
//
// Work returns nil if the run has ended well, or if ctx has ended. If the run has failed it returns
// the *RunError, and if the farm's process is lost an error that matches ErrLost. An error of s,
// and a panic, end the run. The ctx that s gets ends when the run has failed.
func Work[I, O any](ctx context.Context, c *rocl.Context, farm WorkFor, s Stage[I, O], o ...Option) error {
	opts := newOptions(o)
	w := &working[I, O]{farm: farm, stage: s, in: findCodec[I](opts), out: findCodec[O](opts), done: make(chan struct{})}
	err := errNothing
	if c != nil && s != nil {
		err = w.work(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("dataflow: work for farm %s of graph %s: %w", farm.Farm, farm.Graph, err)
	}
	return nil
}

var errNothing = fmt.Errorf("%w: the context or the stage is nil", fs.ErrInvalid)

// working is a worker of an elastic farm.
type working[I, O any] struct {
	farm  WorkFor
	stage Stage[I, O]
	in    rocl.Codec[I]
	out   rocl.Codec[O]
	self  *rocl.Resource
	ctx   context.Context // ends the handling of messages
	end   context.CancelFunc
	err   error // why the handling has ended

	mu        sync.Mutex
	known     rocl.GID // the farm, when it has said hello
	isLeaving bool

	isDone bool          // the stage has returned Done; the handling goroutine's
	done   chan struct{} // closed with isDone
}

// work registers the worker and handles the farm's messages.
func (w *working[I, O]) work(ctx context.Context, c *rocl.Context) (err error) {
	defer func() { err = errors.Join(err, closeStage(w.stage)) }()
	w.ctx, w.end = context.WithCancel(context.WithoutCancel(ctx))
	defer w.end()
	if s, ok := w.stage.(Starter[O]); ok {
		if err := s.Start(w.ctx, &workOut[O]{isEarly: true}); err != nil {
			return err
		}
	}
	a := farmAttributes(w.farm)
	a["in"], a["out"] = typeName[I](), typeName[O]()
	if w.self, err = c.Register(ctx, a); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		w.leave(ctx)
	}()
	if err = w.self.Handle(w.ctx, w.handle); err == nil && w.ctx.Err() == nil {
		err = fmt.Errorf("%w: the worker's context", rocl.ErrClosed)
	}
	w.end()
	<-left
	return errors.Join(err, w.err, w.self.Close())
}

// leave waits until ctx ends or the stage is done, and takes leave of the farm.
func (w *working[I, O]) leave(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-w.done:
	case <-w.ctx.Done():
		return
	}
	defer w.end()
	w.mu.Lock()
	w.isLeaving = true
	known := w.known
	w.mu.Unlock()
	if known.IsZero() {
		return // no item can be here
	}
	if m, err := w.self.CallBytes(w.ctx, known, tagLeave, nil); err == nil {
		m.Release()
	}
}

// handle does what a message of the farm says.
func (w *working[I, O]) handle(m *rocl.Message) {
	var reply []byte
	switch {
	case m.IsGone():
		w.finish(fmt.Errorf("%w: the farm", ErrLost))
		return
	case m.Tag() == tagEnd && len(m.Bytes()) != 0:
		w.finish(decodeFailure(w.farm.Graph, m.Bytes()))
		return
	case m.Tag() == tagEnd:
		w.finish(nil)
		return
	case !m.IsCall():
		return
	case m.Tag() == tagHello:
		reply = w.hello(m.From())
	case m.Tag() == tagItem:
		reply = w.process(m)
	}
	_ = w.self.ReplyBytes(w.ctx, m, reply) // the monitor tells if the farm is gone
}

// finish ends the handling of messages.
func (w *working[I, O]) finish(err error) {
	if w.ctx.Err() == nil {
		w.err = err
		w.end()
	}
}

// hello answers the first message of a farm.
func (w *working[I, O]) hello(farm rocl.GID) []byte {
	w.mu.Lock()
	isLeaving := w.isLeaving
	if !isLeaving {
		w.known = farm
	}
	w.mu.Unlock()
	if isLeaving {
		return []byte{statusLeaving}
	}
	if _, err := w.self.Monitor(w.ctx, farm, tagGone); err != nil {
		return []byte{statusLeaving}
	}
	return []byte{statusOK}
}

// process calls the stage for an item, and returns the reply.
func (w *working[I, O]) process(m *rocl.Message) (reply []byte) {
	defer func() {
		if v := recover(); v != nil {
			reply = fmt.Appendf([]byte{statusPanic}, "%v: %v\n%s", ErrPanic, v, debug.Stack())
		}
	}()
	ctx, cancel := context.WithCancelCause(w.ctx)
	defer cancel(nil)
	defer m.OnCancel(cancel)()
	out := &workOut[O]{}
	item, err := rocl.Value(m, w.in)
	if err == nil {
		err = w.stage.Process(ctx, Item[I]{Value: item}, out)
	}
	if errors.Is(err, Done) && !w.isDone {
		w.isDone = true
		close(w.done)
		err = nil
	}
	if err == nil {
		reply, err = frames.New(w.out).AppendMany([]byte{statusOK}, out.items)
	}
	if err != nil {
		return append([]byte{statusError}, err.Error()...)
	}
	return reply
}

// A workOut is the Out of a worker. It keeps the outputs of one item.
type workOut[O any] struct {
	items   []O
	isEarly bool // before the first item
}

func (o *workOut[O]) Send(_ context.Context, v O) error {
	if o.isEarly {
		return fmt.Errorf("%w: a worker of an elastic farm sends before its first item", ErrChannel)
	}
	o.items = append(o.items, v)
	return nil
}

func (o *workOut[O]) SendTo(ctx context.Context, ch int, v O) error {
	if ch != 0 {
		return fmt.Errorf("%w: forward channel %d of 1", ErrChannel, ch)
	}
	return o.Send(ctx, v)
}

func (o *workOut[O]) SendBack(_ context.Context, ch int, _ O) error {
	return fmt.Errorf("%w: feedback channel %d of 0", ErrChannel, ch)
}

func (o *workOut[O]) Flush(context.Context) error { return nil }

func (o *workOut[O]) Channels() (forward, back int) { return 1, 0 }
