// SPDX-License-Identifier: Apache-2.0

// Package logqueue puts a queue in front of the user's log handler. The library logs with locks
// held. A handler that blocks must not stop the library, and a handler that calls the library must
// not deadlock.
package logqueue

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/internal/callqueue"
)

// most is the number of lines that may wait.
const most = 1024

// A Queue passes the lines of a logger to the user's handler, from a goroutine of its own, one at a
// time and in order. Lines beyond the limit are dropped and counted.
type Queue struct {
	lines      callqueue.Queue[line]
	user       slog.Handler
	dropped    atomic.Uint64
	unreported atomic.Uint64 // dropped since the last report to the handler
}

type line struct {
	ctx    context.Context
	h      slog.Handler
	record slog.Record
}

// New returns a Queue in front of log's handler. A nil log discards all lines.
func New(log *slog.Logger) *Queue {
	q := &Queue{user: slog.DiscardHandler}
	if log != nil {
		q.user = log.Handler()
	}
	q.lines.Call, q.lines.Most = q.write, most
	return q
}

// Logger returns the logger whose lines go through the queue.
func (q *Queue) Logger() *slog.Logger {
	if q.user == slog.DiscardHandler {
		return slog.New(q.user)
	}
	return slog.New(handler{q, q.user})
}

// Dropped returns how many lines the user's handler has not received.
func (q *Queue) Dropped() uint64 { return q.dropped.Load() }

// Drain waits until the handler has all lines, as [callqueue.Queue.Drain] does.
func (q *Queue) Drain(ctx context.Context) {
	q.dropped.Add(uint64(q.lines.Drain(ctx)))
}

// write calls the handler, and then reports dropped lines to it.
func (q *Queue) write(l line) {
	_ = l.h.Handle(l.ctx, l.record) // as slog does
	if n := q.unreported.Swap(0); n > 0 && q.user.Enabled(l.ctx, slog.LevelWarn) {
		// Cause (warn): the program's log handler is slow. Remedy: use a faster one.
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "rocl: log lines were dropped, because the handler did not return in time", 0)
		r.AddAttrs(slog.Uint64("dropped", n))
		_ = q.user.Handle(l.ctx, r)
	}
}

// handler queues lines for h, which is the user's handler or was derived from it.
type handler struct {
	q *Queue
	h slog.Handler
}

// Enabled asks the user's handler directly, without the queue.
func (h handler) Enabled(ctx context.Context, level slog.Level) bool { return h.h.Enabled(ctx, level) }

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if !h.q.lines.Add(line{ctx, h.h, r.Clone()}) {
		h.q.dropped.Add(1)
		h.q.unreported.Add(1)
	}
	return nil
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.q, h.h.WithAttrs(attrs)}
}

func (h handler) WithGroup(name string) slog.Handler { return handler{h.q, h.h.WithGroup(name)} }
