// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// handling runs r.Handle in a goroutine. It returns a function that ends Handle and fails the test
// if Handle returns an error.
func handling(t *testing.T, r *rocl.Resource, f func(*dispatch.Message), opts ...rocl.HandleOption) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Handle(ctx, f, opts...) }()
	return func() {
		t.Helper()
		cancel()
		try.Check(t, <-done)
	}
}

// eachMode runs f with each transport and each way in which Handle makes its calls, of which the
// inline one has no options.
func eachMode(t *testing.T, f func(t *testing.T, open func(...rocl.Option) *rocl.Context, opts []rocl.HandleOption)) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		for name, opts := range map[string][]rocl.HandleOption{"inline": nil, "workers": {rocl.Workers(4)}, "each": {rocl.EachInOwn()}} {
			t.Run(name, func(t *testing.T) { f(t, open, opts) })
		}
	})
}

// numbered sends count messages, with the tags 0, 1 and so on.
func numbered(t *testing.T, from *rocl.Resource, to resource.GID, count int) {
	t.Helper()
	for i := range count {
		if err := from.SendBytes(t.Context(), to, uint64(i), []byte("work")); err != nil {
			t.Error(err)
			return
		}
	}
}

// Handlers get every message once. Inline and with workers, calls begin in order.
//
// Promise (Receiving): The function of `Handle` sees each message once, in order if inline. It may
// take any time, send, call, and close its context. See also TestHandleConcurrently.
func TestHandle(t *testing.T) {
	const count = 1000
	eachMode(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context, opts []rocl.HandleOption) {
		client, server := newResource(t, open(), nil), newResource(t, open(), nil)
		end := handling(t, server, func(m *dispatch.Message) {
			if string(m.Bytes()) != "work" {
				t.Errorf("%q", m.Bytes())
			}
			try.Check(t, server.SendBytes(t.Context(), m.From(), m.Tag(), m.Bytes()))
		}, opts...)
		defer end()
		go numbered(t, client, server.ID(), count)
		seen := make([]bool, count)
		for i := range count {
			m := recv(t, client)
			if seen[m.Tag()] || opts == nil && m.Tag() != uint64(i) {
				t.Fatalf("answer %d is to message %d", i, m.Tag())
			}
			seen[m.Tag()] = true
			m.Release()
		}
	})
}

// With Workers(n), n messages are handled at the same time, and no more. With EachInOwn, all are.
// Handle returns when the last call has returned.
func TestHandleConcurrently(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		for _, c := range []struct {
			opt    rocl.HandleOption
			sent   int
			atOnce int
		}{{rocl.Workers(3), 10, 3}, {rocl.EachInOwn(), 10, 10}} {
			client, server := newResource(t, open(), nil), newResource(t, open(), nil)
			begun, goOn := make(chan bool, c.sent), make(chan bool)
			var running, ended atomic.Int32
			end := handling(t, server, func(*dispatch.Message) {
				if n := running.Add(1); int(n) > c.atOnce {
					t.Errorf("%d calls at once, %d are allowed", n, c.atOnce)
				}
				begun <- true
				<-goOn
				running.Add(-1)
				ended.Add(1)
			}, c.opt)
			numbered(t, client, server.ID(), c.sent)
			for range c.atOnce {
				<-begun
			}
			close(goOn)
			for range c.sent - c.atOnce {
				<-begun
			}
			end()
			if int(ended.Load()) != c.sent {
				t.Errorf("Handle has returned, and %d of %d calls have", ended.Load(), c.sent)
			}
		}
	})
}

// A handler that does not return does not delay the messages of other resources.
func TestSlowHandler(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		server := open()
		slow, quick := newResource(t, server, nil), newResource(t, server, nil)
		client := newResource(t, open(), nil)
		begun, goOn := make(chan bool), make(chan bool)
		endSlow := handling(t, slow, func(*dispatch.Message) { close(begun); <-goOn })
		endQuick := handling(t, quick, func(m *dispatch.Message) {
			try.Check(t, quick.SendBytes(t.Context(), m.From(), 1, nil))
		})
		send(t, client, slow.ID(), "wait")
		<-begun
		for range 100 {
			send(t, client, quick.ID(), "go")
			m := recv(t, client, dispatch.Tag(1))
			m.Release()
		}
		close(goOn)
		endSlow()
		endQuick()
	})
}

// A handler may register, receive, call other methods and close its own resource.
func TestHandlerMayDoAnything(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		c := open()
		client, server := newResource(t, open(), nil), newResource(t, c, nil)
		done := make(chan error, 1)
		go func() {
			done <- server.Handle(t.Context(), func(m *dispatch.Message) {
				r, err := c.Register(t.Context(), resource.Attrs{"a": "temporary"})
				if err != nil {
					t.Error(err)
					return
				}
				try.Check(t, r.SendBytes(t.Context(), m.From(), 7, []byte("from a new one")))
				if m.Tag() == 1 {
					server.Close()
				}
			})
		}()
		for tag := range uint64(2) {
			try.OK(t, client.SendBytes(t.Context(), server.ID(), tag, nil))
			expect(t, client, "from a new one")
		}
		try.Check(t, <-done, "after the resource was closed")
	})
}

// A panic ends the call of the handler and nothing else.
//
// Promise (Receiving): A panic in a function of `Handle` ends that call only. Its caller gets
// `ErrNoReply`. See also TestHandlerPanicsInCall.
func TestHandlerPanics(t *testing.T) {
	var mu sync.Mutex
	var logged []string
	log := logging(func(r slog.Record) {
		mu.Lock()
		defer mu.Unlock()
		r.Attrs(func(a slog.Attr) bool { logged = append(logged, a.Key+"="+a.Value.String()); return true })
	})
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		client, server := newResource(t, open(), nil), newResource(t, open(log), nil)
		panics := func(m *dispatch.Message) {
			if m.Tag() == 0 {
				panic("the handler's own")
			}
			try.Check(t, server.SendBytes(t.Context(), m.From(), m.Tag(), nil))
		}
		caught := make(chan any, 1)
		for _, opts := range [][]rocl.HandleOption{{rocl.OnPanic(func(m *dispatch.Message, v any) { caught <- v })}, nil, {rocl.Workers(2)}, {rocl.EachInOwn()}} {
			end := handling(t, server, panics, opts...)
			numbered(t, client, server.ID(), 2)
			m, err := client.Recv(t.Context())
			if err != nil || m.Tag() != 1 {
				t.Fatalf("%v, %v", m, err)
			}
			m.Release()
			end()
		}
		if v := <-caught; v != "the handler's own" {
			t.Error(v)
		}
	})
	eventually.True(t, "three panics are logged", func() bool { // by another goroutine
		mu.Lock()
		defer mu.Unlock()
		all := strings.Join(logged, " ")
		return strings.Count(all, "panic=the handler's own") >= 3 && strings.Contains(all, "TestHandlerPanics")
	})
}

// Invalid options are refused.
func TestHandleOptions(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		r := newResource(t, open(), nil)
		none := func(*dispatch.Message) {}
		if err := r.Handle(t.Context(), none, rocl.Workers(0)); !errors.Is(err, rocl.ErrWorkers) {
			t.Error("no workers handle messages")
		}
		try.Fails(r.Handle(t.Context(), none, rocl.Handling(dispatch.Tag(1), dispatch.Tag(2))))(t, dispatch.ErrSelect, "selectors that contradict each other")
	})
}
