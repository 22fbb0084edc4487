// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// sendInt sends a number.
func sendInt(t testing.TB, th *tpvm.Thread, to tpvm.TID, tag int, n int32) {
	t.Helper()
	try.OK(t, tpvm.SendValues(deadline(t), th, to, tag, []int32{n}))
}

func recvInt(t testing.TB, th *tpvm.Thread, from tpvm.TID, tag int) int32 {
	t.Helper()
	var v [1]int32
	if n, _, err := tpvm.RecvValues(deadline(t), th, from, tag, v[:]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	return v[0]
}

func number(m *tpvm.Message) int32 {
	n, _ := pack.UnpackOne[int32](&m.Reader)
	return n
}

// Recv, TryRecv and Probe do not see messages that handlers want. Handlers get them in order. When
// the handler has been removed, Recv returns such messages again.
//
// Promise (Package tpvm): A handler gets each message that it selects once, before any receive. See
// also TestHandlerWhileReceiving.
func TestHandlers(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1), tpvm.WithLogger(nil))
	const n = 1000
	var got []int32
	done := make(chan struct{})
	remove := try.Get(b.AddHandler(tpvm.AnyTask, 5, 0, func(_ context.Context, m *tpvm.Message) {
		got = append(got, number(m))
		if len(got) == n {
			close(done)
		}
	}, tpvm.Serial()))(t)
	try.Fails(b.AddHandler(tpvm.AnyTask, 5, 0, func(context.Context, *tpvm.Message) {}))(t, tpvm.ErrHandler)
	for i := range int32(n) {
		sendInt(t, a.Thread, b.ID(), 5, i)
		if i%10 == 0 {
			sendInt(t, a.Thread, b.ID(), 6, i)
		}
	}
	for i := int32(0); i < n; i += 10 {
		if i%20 == 0 {
			if k := recvInt(t, b.Thread, tpvm.AnyTask, tpvm.AnyTag); k != i {
				t.Fatal(k, i)
			}
			continue
		}
		for {
			e, err := b.Probe(a.ID(), tpvm.AnyTag)
			if errors.Is(err, rocl.ErrEmpty) {
				continue
			}
			if err != nil || e.Tag != 6 {
				t.Fatal(e, err)
			}
			m := try.Get(b.TryRecv(a.ID(), tpvm.AnyTag))(t)
			if k := number(m); k != i {
				t.Fatal(k, i)
			}
			m.Release()
			break
		}
	}
	<-done
	if !slices.IsSorted(got) || len(got) != n {
		t.Errorf("handled %d messages, or not in order", len(got))
	}
	remove()
	remove()
	sendInt(t, a.Thread, b.ID(), 5, 77)
	try.Equal(t, recvInt(t, b.Thread, a.ID(), 5), 77)

	// Handlers in any context, and of messages of Notify. A panic ends one call.
	mc := try.Get(a.NewContext(ctx))(t)
	var calls atomic.Int32
	handled := make(chan bool, 10)
	try.Get(b.AddHandler(a.ID(), tpvm.AnyTag, tpvm.AnyContext, func(_ context.Context, m *tpvm.Message) {
		handled <- m.IsGone()
		if calls.Add(1) == 1 {
			panic("once")
		}
	}, tpvm.Workers(4)))(t)
	sendInt(t, a.Thread, b.ID(), 1, 1)
	try.Get(a.SetContext(mc))(t)
	sendInt(t, a.Thread, b.ID(), 2, 1)
	for range 2 {
		if <-handled {
			t.Error("gone")
		}
	}
	try.Get(b.Notify(ctx, 3, a.ID()))(t)
	try.OK(t, a.Exit(ctx))
	if !<-handled {
		t.Error("not gone")
	}
	for _, bad := range []struct {
		tag  int
		mc   tpvm.MsgContext
		f    tpvm.HandlerFunc
		opts []tpvm.HandlerOption
	}{
		{tag: -2, f: func(context.Context, *tpvm.Message) {}},
		{mc: 1 << 30, f: func(context.Context, *tpvm.Message) {}},
		{},
		{f: func(context.Context, *tpvm.Message) {}, opts: []tpvm.HandlerOption{tpvm.Workers(0)}},
	} {
		try.Fails(b.AddHandler(tpvm.AnyTask, bad.tag, bad.mc, bad.f, bad.opts...))(t, tpvm.ErrBadParam)
	}
}

// A receive that waits when a handler is added does not take the handler's messages. A handler may
// do all that its thread may.
func TestHandlerWhileReceiving(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 1)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(0))
	got := make(chan int32)
	go func() { got <- recvInt(t, b.Thread, tpvm.AnyTask, tpvm.AnyTag) }()
	try.Get(b.AddHandler(tpvm.AnyTask, 1, tpvm.AnyContext, func(ctx context.Context, m *tpvm.Message) {
		try.OK(t, tpvm.SendValues(ctx, b.Thread, m.From(), 2, []int32{number(m) + 1}))
	}))(t)
	for i := range int32(100) {
		sendInt(t, a.Thread, b.ID(), 1, i)
		if k := recvInt(t, a.Thread, b.ID(), 2); k != i+1 {
			t.Fatal(k)
		}
	}
	sendInt(t, a.Thread, b.ID(), 9, 42)
	try.Equal(t, <-got, 42)
	// The receive learns of the end of the sender although a handler wants some of its messages.
	d := enrol(t, c.Open(0))
	go func() {
		try.Fails(b.Recv(ctx, d.ID(), tpvm.AnyTag))(t, rocl.ErrGone)
		got <- 0
	}()
	try.OK(t, d.Exit(ctx))
	<-got
	short, cancel := context.WithCancel(ctx)
	cancel()
	try.Fails(b.Recv(short, tpvm.AnyTask, tpvm.AnyTag))(t, context.Canceled)
}

// A receive in progress does not take the message of a handler that is added, whether the thread
// has had handlers before or not.
func TestHandlerAddedWhileReceiving(t *testing.T) {
	task := enrol(t, alone(t))
	for i := range int32(100) {
		got := make(chan int32)
		go func() { got <- recvInt(t, task.Thread, tpvm.AnyTask, tpvm.AnyTag) }()
		if i%2 == 0 {
			runtime.Gosched()
		}
		handled := make(chan int32, 1)
		remove := try.Get(task.AddHandler(tpvm.AnyTask, 1, tpvm.AnyContext, func(_ context.Context, m *tpvm.Message) {
			handled <- number(m)
		}))(t)
		sendInt(t, task.Thread, task.ID(), 1, i)
		select {
		case k := <-handled:
			try.Equal(t, k, i)
		case k := <-got:
			t.Fatalf("round %d: a receive returned %d", i, k)
		}
		sendInt(t, task.Thread, task.ID(), 9, -i)
		try.Equal(t, <-got, -i)
		remove()
	}
}

// RecvFunc finds a message behind others, which keep their order.
func TestRecvFunc(t *testing.T) {
	c := rocltest.Cluster(t, 1)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(0))
	for i := range int32(10) {
		sendInt(t, a.Thread, b.ID(), int(i), i)
	}
	m := try.Get(b.RecvFunc(deadline(t), func(i tpvm.Info) bool { return i.From == a.ID() && i.Tag*i.Tag == 49 && i.Len == 4 }))(t)
	try.Equal(t, number(m), 7)
	m.Release()
	for i := range int32(10) {
		if i != 7 {
			try.Equal(t, recvInt(t, b.Thread, tpvm.AnyTask, tpvm.AnyTag), i)
		}
	}
}

// A handler that calls runtime.Goexit handles the next message.
func TestHandlerGoexit(t *testing.T) {
	task := enrol(t, alone(t))
	for tag, opts := range [][]tpvm.HandlerOption{nil, {tpvm.Serial()}, {tpvm.Workers(2)}} {
		got := make(chan int32)
		try.Get(task.AddHandler(tpvm.AnyTask, tag, tpvm.AnyContext, func(_ context.Context, m *tpvm.Message) {
			got <- number(m)
			runtime.Goexit()
		}, opts...))(t)
		for i := range int32(10) {
			sendInt(t, task.Thread, task.ID(), tag, i)
			if k := <-got; k != i {
				t.Fatal(k)
			}
		}
	}
}

// A receive of a thread with handlers returns when the thread's context is closed.
func TestHandlerClosed(t *testing.T) {
	ctx := deadline(t)
	c := try.Get(rocl.Open(ctx, rocl.WithSocket(node(t))))(t)
	task := try.Get(tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM("test")))(t)
	try.Get(task.AddHandler(tpvm.AnyTask, 1, 0, func(context.Context, *tpvm.Message) {}))(t)
	sendInt(t, task.Thread, task.ID(), 2, 2)
	recvInt(t, task.Thread, tpvm.AnyTask, tpvm.AnyTag) // through the goroutine that receives for the handler
	got := make(chan error)
	go func() {
		_, err := task.Recv(ctx, tpvm.AnyTask, tpvm.AnyTag)
		got <- err
	}()
	_ = c.Close()
	try.Fails(<-got)(t, rocl.ErrClosed)
	_ = task.Exit(ctx)
}
