// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rocl-go/rocl"
)

// ErrWorker is returned by Source.Give for a worker that has ended.
var ErrWorker = errors.New("group: the worker has ended")

// A watchRequest asks a sink to watch a worker, and to report to the sender.
type watchRequest struct{ Worker rocl.GID }

// A report tells a source how many items of a worker the sink has taken since the request.
type report struct {
	Worker rocl.GID
	Taken  uint64
	Ended  bool // no further result counts
}

// A Source knows which items the workers hold between this resource, which gives items to them, and
// a [Sink], to which they send the results. When a worker has ended, the source gets the items that
// it held, exactly: those that it was given, without those whose results the sink has taken. The
// source need not have noticed the end of the worker.
//
// A worker sends one message for each item, in the order of the items, from the resource by which
// the source names it to that of the sink. It gets items from one source. Source and sink use a tag
// for their own messages, which the program uses for nothing else. The methods may be called
// concurrently.
type Source[T any] struct {
	me   *rocl.Resource
	sink rocl.GID
	tag  uint64

	mu      sync.Mutex // no call waits while it is held
	workers map[rocl.GID]*held[T]
}

// held has the items that a worker has, as far as the source knows.
type held[T any] struct {
	items   []T
	taken   uint64 // of the items given, how many are not in items any more
	isEnded bool
}

// NewSource returns a Source whose resource is me. sink is the resource of the Sink.
func NewSource[T any](me *rocl.Resource, sink rocl.GID, tag uint64) *Source[T] {
	return &Source[T]{me: me, sink: sink, tag: tag, workers: map[rocl.GID]*held[T]{}}
}

// Give notes that a worker is about to get an item. The program then sends it. If that fails, the
// item is among those that the worker held. Give waits, until ctx ends, while the sink's mailbox
// has no room. It fails with ErrWorker if the worker has ended, and as Resource.Send does if the
// sink has. Then nothing is noted.
func (s *Source[T]) Give(ctx context.Context, worker rocl.GID, item T) error {
	s.mu.Lock()
	h := s.workers[worker]
	isNew := h == nil
	if isNew {
		h = &held[T]{}
		s.workers[worker] = h
	}
	if h.isEnded {
		s.mu.Unlock()
		return fmt.Errorf("group: give to %v: %w", worker, ErrWorker)
	}
	h.items = append(h.items, item)
	s.mu.Unlock()
	if !isNew {
		return nil
	}
	if err := rocl.SendValue(ctx, s.me, s.sink, s.tag, watchRequest{worker}); err != nil {
		s.mu.Lock()
		delete(s.workers, worker)
		s.mu.Unlock()
		return fmt.Errorf("group: give to %v: %w", worker, err)
	}
	return nil
}

// Handle handles a message that the resource has received. isMine is false if it is the program's.
// If the message says that a worker has ended, Handle returns the worker and the items that it
// held, in the order of Give. The caller releases m.
func (s *Source[T]) Handle(m *rocl.Message) (worker rocl.GID, items []T, isMine bool) {
	if m.Tag() != s.tag || m.From() != s.sink {
		return worker, nil, false
	}
	r, err := rocl.Value[report](m)
	if err != nil {
		return worker, nil, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.workers[r.Worker]
	if h == nil || h.isEnded {
		return worker, nil, true
	}
	if n := r.Taken - h.taken; r.Taken > h.taken && n <= uint64(len(h.items)) {
		clear(h.items[:n]) // for the garbage collector
		h.items, h.taken = h.items[n:], r.Taken
	}
	if !r.Ended {
		return worker, nil, true
	}
	items, h.items, h.isEnded = h.items, nil, true
	return r.Worker, items, true
}

// A Sink counts the results that workers send to its resource, and tells the [Source] of each
// worker. It monitors the workers: the message of a monitor comes behind the last result. The
// methods may be called concurrently.
type Sink struct {
	me  *rocl.Resource
	tag uint64

	mu      sync.Mutex // no call waits while it is held
	workers map[rocl.GID]*counted
}

// counted has what came from a worker.
type counted struct {
	source  rocl.GID // zero before its request
	taken   uint64
	told    uint64 // of taken
	isEnded bool
}

// NewSink returns a Sink whose resource is me. tag is that of the sources.
func NewSink(me *rocl.Resource, tag uint64) *Sink {
	return &Sink{me: me, tag: tag, workers: map[rocl.GID]*counted{}}
}

// tellEvery is after how many results a source is told, so that it forgets the items.
const tellEvery = 64

// of returns the entry of a worker. mu must be held.
func (k *Sink) of(worker rocl.GID) *counted {
	c := k.workers[worker]
	if c == nil {
		c = &counted{}
		k.workers[worker] = c
	}
	return c
}

// Take counts a message with a result that the resource has received from a worker. If ok is false,
// the worker counts as ended, although it was merely out of reach: its source has got the item
// back, and the result must be dropped.
func (k *Sink) Take(worker rocl.GID) (ok bool) {
	k.mu.Lock()
	c := k.of(worker)
	if c.isEnded {
		k.mu.Unlock()
		return false
	}
	c.taken++
	r, source := report{Worker: worker, Taken: c.taken}, c.source
	isDue := c.taken-c.told >= tellEvery && !source.IsZero()
	if isDue {
		c.told = c.taken
	}
	k.mu.Unlock()
	if isDue {
		b, err := rocl.EncodeValue(context.Background(), k.me.Context(), r)
		if err == nil && k.me.TrySend(source, k.tag, b) != nil { // a later report tells
			b.Release()
		}
	}
	return true
}

// Handle handles a message that the resource has received, and reports whether it is one of this
// package. Otherwise it is the program's. If a worker has ended, Handle tells its source, and waits
// for room there until ctx ends. It fails as Resource.Monitor and Resource.Send do. The caller
// releases m.
func (k *Sink) Handle(ctx context.Context, m *rocl.Message) (isMine bool, err error) {
	switch {
	case m.Tag() != k.tag:
		return false, nil
	case m.IsGone():
		return true, k.end(ctx, m.From())
	}
	q, err := rocl.Value[watchRequest](m)
	if err != nil {
		return true, fmt.Errorf("group: a request of %v: %w", m.From(), err)
	}
	k.mu.Lock()
	c := k.of(q.Worker)
	c.source = m.From()
	isEnded := c.isEnded
	k.mu.Unlock()
	if isEnded {
		return true, k.end(ctx, q.Worker)
	}
	if _, err = k.me.Monitor(ctx, q.Worker, k.tag); errors.Is(err, rocl.ErrGone) {
		return true, k.end(ctx, q.Worker)
	}
	return true, err
}

// end tells the source that a worker has ended.
func (k *Sink) end(ctx context.Context, worker rocl.GID) error {
	k.mu.Lock()
	c := k.of(worker)
	c.isEnded = true
	r, source := report{worker, c.taken, true}, c.source
	k.mu.Unlock()
	if source.IsZero() {
		return nil
	}
	return rocl.SendValue(ctx, k.me, source, k.tag, r)
}
