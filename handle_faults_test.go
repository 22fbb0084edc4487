// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A panic in the handler of a request ends the call: with ErrNoReply, or with the reply if the
// handler has sent it. The memory of the request is given back, and the panic is counted.
func TestHandlerPanicsInCall(t *testing.T) {
	const before, after, held = 0, 1, 2 // when the handler panics
	eachMode(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context, opts []rocl.HandleOption) {
		c := open()
		client, server := newResource(t, open(), nil), newResource(t, c, nil)
		panics := func(m *dispatch.Message) {
			switch m.Tag() {
			case after:
				try.Check(t, server.ReplyBytes(t.Context(), m, m.Bytes()))
			case held:
				defer m.Buffer().Release()
			}
			panic(fmt.Sprint("at ", m.Tag()))
		}
		end := handling(t, server, panics, append(opts, rocl.OnPanic(func(*dispatch.Message, any) {}))...)
		const rounds = 20
		for range rounds {
			for tag, want := range []error{dispatch.ErrNoReply, nil, dispatch.ErrNoReply} {
				m, err := client.CallBytes(t.Context(), server.ID(), uint64(tag), make([]byte, 5000))
				if !errors.Is(err, want) {
					t.Errorf("panic at %d: %v, want %v", tag, err, want)
				}
				if err == nil {
					m.Release()
				}
			}
		}
		end()
		if n := c.Stats().HandlerPanics; n != 3*rounds {
			t.Errorf("%d panics are counted, want %d", n, 3*rounds)
		}
		if k, _ := server.Waiting(); k != 0 {
			t.Errorf("%d messages are left", k)
		}
	})
}

// A handler that ends its goroutine ends only its own call: Handle goes on, and returns.
func TestHandlerExits(t *testing.T) {
	eachMode(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context, opts []rocl.HandleOption) {
		if opts == nil {
			return // the goroutine is the caller's
		}
		client, server := newResource(t, open(), nil), newResource(t, open(), nil)
		end := handling(t, server, func(m *dispatch.Message) {
			if m.Tag() == 0 {
				runtime.Goexit()
			}
			try.Check(t, server.ReplyBytes(t.Context(), m, nil))
		}, opts...)
		for i := range uint64(10) {
			m, err := client.CallBytes(t.Context(), server.ID(), i%2, nil)
			if want := []error{dispatch.ErrNoReply, nil}[i%2]; !errors.Is(err, want) {
				t.Errorf("call %d: %v, want %v", i, err, want)
			}
			if err == nil {
				m.Release()
			}
		}
		end()
	})
}

// When receiving fails, all workers end: Handle returns the error once, and handles no message
// that comes later.
//
// Promise (Receiving): With `Workers`, an error of receiving ends all workers, and `Handle` returns
// it once.
func TestHandleFails(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	c := cl.Open(0, rocl.WithMailbox(64<<10), rocl.WithGiveUp(100*time.Millisecond))
	client, server := newResource(t, cl.Open(0), nil), newResource(t, c, nil)
	begun, goOn := make(chan struct{}), make(chan struct{})
	var handled atomic.Int32
	ended := make(chan error, 1)
	go func() {
		ended <- server.Handle(t.Context(), func(*dispatch.Message) {
			if handled.Add(1) == 1 {
				close(begun)
				<-goOn
			}
		}, rocl.Workers(2), rocl.Handling(dispatch.Tag(1)))
	}()
	try.OK(t, client.SendBytes(t.Context(), server.ID(), 1, nil))
	<-begun
	// Messages that no worker selects fill the mailbox, and one more waits there: the idle worker
	// is stuck.
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan error, 1)
	go func() {
		for {
			if err := client.SendBytes(ctx, server.ID(), 2, make([]byte, 8<<10)); err != nil {
				sent <- err
				return
			}
		}
	}()
	if _, err := server.Recv(t.Context(), dispatch.Tag(1)); !errors.Is(err, dispatch.ErrStuck) {
		t.Fatalf("receiving from a full mailbox: %v", err)
	}
	close(goOn) // the busy worker would also be stuck a while later
	if err := <-ended; !errors.Is(err, dispatch.ErrStuck) || strings.Count(err.Error(), dispatch.ErrStuck.Error()) != 1 {
		t.Errorf("Handle returned %v", err)
	}
	cancel()
	try.Fails(<-sent)(t, context.Canceled)
	for {
		m, err := server.TryRecv()
		if err != nil {
			break
		}
		m.Release()
	}
	if n := handled.Load(); n != 1 {
		t.Errorf("%d messages are handled", n)
	}
}

// A handler calls another resource, which calls it meanwhile. A handler closes its own context:
// Handle returns nil, and the caller gets an error.
func TestHandlerCallsAndCloses(t *testing.T) {
	eachMode(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context, opts []rocl.HandleOption) {
		if opts == nil {
			return // the call back would wait for ever
		}
		c := open()
		client, server, back := newResource(t, open(), nil), newResource(t, c, nil), newResource(t, open(), nil)
		const call, inner, end = 0, 1, 2
		closed := make(chan error, 1)
		defer handling(t, back, func(m *dispatch.Message) {
			reply, err := back.CallBytes(t.Context(), server.ID(), inner, m.Bytes())
			if err != nil {
				t.Error(err)
				return
			}
			defer reply.Release()
			try.Check(t, back.ReplyBytes(t.Context(), m, append([]byte("back, "), reply.Bytes()...)))
		})()
		done := make(chan error, 1)
		go func() {
			done <- server.Handle(t.Context(), func(m *dispatch.Message) {
				switch m.Tag() {
				case inner:
					try.Check(t, server.ReplyBytes(t.Context(), m, append([]byte("inner, "), m.Bytes()...)))
				case call:
					reply, err := server.CallBytes(t.Context(), back.ID(), 0, m.Bytes())
					if err != nil {
						t.Error(err)
						return
					}
					defer reply.Release()
					try.Check(t, server.ReplyBytes(t.Context(), m, reply.Bytes()))
				case end:
					closed <- c.Close()
				}
			}, opts...)
		}()
		reply := try.Get(client.CallBytes(t.Context(), server.ID(), call, []byte("hello")))(t)
		if string(reply.Bytes()) != "back, inner, hello" {
			t.Errorf("%q", reply.Bytes())
		}
		reply.Release()
		try.Fails(client.CallBytes(t.Context(), server.ID(), end, nil))(t, dispatch.ErrGone, "the call to a server that closes")
		try.Check(t, errors.Join(<-closed, <-done))
	})
}

// Handlers in several goroutines end when another goroutine closes their resource. Each message is
// handled once or reported.
func TestHandleWhileClosed(t *testing.T) {
	eachMode(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context, opts []rocl.HandleOption) {
		const most = 2000
		accepted := 0
		var handled, reported atomic.Int32
		sender := open(rocl.WithUndelivered(func(dispatch.Undelivered) { reported.Add(1) }))
		client, server := newResource(t, sender, nil), newResource(t, open(), nil)
		ended := make(chan error, 1)
		go func() {
			ended <- server.Handle(context.Background(), func(*dispatch.Message) {
				if handled.Add(1) == 100 {
					try.Check(t, server.Close())
				}
			}, opts...)
		}()
		for range most {
			if err := client.SendBytes(t.Context(), server.ID(), 1, make([]byte, 100)); err != nil {
				if !errors.Is(err, dispatch.ErrGone) {
					t.Error(err)
				}
				break
			}
			accepted++
		}
		try.Check(t, <-ended)
		all := func() bool { return int(handled.Load()+reported.Load()) >= accepted }
		eventually.True(t, "each message is handled or reported", all)
		if err := sender.Close(); err != nil && !errors.Is(err, dispatch.ErrGone) {
			t.Error(err)
		}
		if int(handled.Load()+reported.Load()) != accepted {
			t.Errorf("%d messages accepted, %d handled, %d reported", accepted, handled.Load(), reported.Load())
		}
	})
}

// A function or a rocl.Context that is missing is refused when it is given, not when it is used.
func TestNothingGiven(t *testing.T) {
	var none context.Context
	if c, err := rocl.Open(none); err == nil {
		c.Close()
		t.Error("opened without a rocl.Context")
	}
	r := newResource(t, rocltest.Cluster(t, 1).Open(0), nil)
	if err := r.Handle(t.Context(), nil); err == nil {
		t.Error("messages are handled without a function")
	}
}
