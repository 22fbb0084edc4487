// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// lines is a handler of log records that calls a function.
type lines func(slog.Record)

func (lines) Enabled(context.Context, slog.Level) bool        { return true }
func (f lines) Handle(_ context.Context, r slog.Record) error { f(r); return nil }
func (f lines) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f lines) WithGroup(string) slog.Handler                 { return f }
func logging(f func(slog.Record)) rocl.Option                 { return rocl.WithLogger(slog.New(lines(f))) }

// The log handler may send and receive over the context that logs, find resources, and close the
// context: the library holds no lock meanwhile.
//
// Promise (Receiving): The log handler of `WithLogger` may block and call the library. Lines that
// it does not come to are dropped and counted. See also TestBlockedHandler.
func TestLogHandlerMayCall(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	tr := newFlaky()
	b := cl.Open(0, rocl.WithTransports(tr))
	you := newResource(t, b, nil)
	var me atomic.Pointer[rocl.Resource]
	var a *rocl.Context
	lost, closed := make(chan error, 100), make(chan error, 1)
	var calls atomic.Int32
	a = cl.Open(0, rocl.WithTransports(tr), logging(func(r slog.Record) {
		me := me.Load()
		if r.Message != "dispatch: connection lost" || me == nil {
			return
		}
		ctx, cancel := context.WithTimeout(bg, eventually.Timeout)
		defer cancel()
		_, err := a.Lookup(ctx, you.ID())
		lost <- errors.Join(err, me.SendBytes(ctx, you.ID(), 7, []byte(r.Message)), me.SendBytes(ctx, me.ID(), 8, nil))
		if calls.Add(1) == 2 {
			closed <- a.Close()
		}
	}))
	me.Store(newResource(t, a, nil))
	send(t, me.Load(), you.ID(), "hello")
	expect(t, you, "hello")
	for range 2 {
		eventually.Returns(t, "the log handler", func() {
			for {
				tr.cut()
				select {
				case err := <-lost:
					try.Check(t, err)
					return
				case <-time.After(time.Second): // a peer that dials at once may come before the end is noticed
				}
			}
		})
		eventually.Returns(t, "what was logged", func() { expect(t, you, "dispatch: connection lost") })
	}
	try.Check(t, eventually.Value(t, "the log handler closes", closed))
	eventually.Returns(t, "closing again", func() { a.Close() })
}

// A log handler that never returns blocks nothing, and Close waits for it no longer than the linger
// time. Lines that do not reach the handler are counted.
func TestLogHandlerBlocks(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	tr := newFlaky()
	begun, goOn := make(chan struct{}, 1), make(chan struct{})
	a := cl.Open(0, rocl.WithTransports(tr), rocl.WithLinger(100*time.Millisecond), logging(func(slog.Record) {
		select {
		case begun <- struct{}{}:
		default:
		}
		<-goOn
	}))
	defer close(goOn)
	b := cl.Open(0, rocl.WithTransports(tr))
	me, you := newResource(t, a, nil), newResource(t, b, nil)
	for range 5 {
		eventually.Returns(t, "messages", func() { send(t, me, you.ID(), "hello"); expect(t, you, "hello") })
		eventually.Returns(t, "a cut", tr.cut)
	}
	eventually.Value(t, "a line", begun)
	eventually.Returns(t, "a flush", func() { // else Close, which waits for the linger time, may report a message
		try.Check(t, me.Flush(bg))
	})
	eventually.Returns(t, "closing", func() { a.Close() })
	if a.Stats().LogLinesDropped == 0 {
		t.Error("no line was dropped")
	}
}
