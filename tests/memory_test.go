// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"sync"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/netrocl"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tls"
)

// longMemory makes the tests of little memory and of abandoned calls long.
var longMemory = flag.Bool("long-memory", false, "more data, limits and calls in tests of what uses memory: minutes")

// A memoryCase is two contexts that may have little memory, with a resource and the packages above
// the library on each. Each operation moves large data from one to two.
type memoryCase struct {
	ctx      context.Context
	one, two *upper
	a, b     *lib.Resource
}

// tooLarge is the test of an operation that may end with ErrTooLarge. Then the rest of it is
// skipped.
type tooLarge struct{ testing.TB }

func (t tooLarge) Fatal(why ...any) {
	t.Helper()
	if err, ok := why[0].(error); ok && errors.Is(err, lib.ErrTooLarge) {
		t.Skip(err)
	}
	t.TB.Fatal(why...)
}

// Sizes of the data. With -long-memory they are four times as large.
var (
	large   = 6 << 20
	medium  = large / 4
	payload = bytes.Repeat([]byte("0123456789abcdef"), 24<<20/16)
)

// checkReceived checks the bytes of what has come, which are the beginning of the payload.
func checkReceived(t testing.TB, p []byte, n int) {
	t.Helper()
	if len(p) != n || !bytes.Equal(p, payload[:n]) {
		t.Errorf("%d bytes came, and not the %d that were sent", len(p), n)
	}
}

// checkMessage is checkReceived for a message, which it releases.
func checkMessage(t testing.TB, m *lib.Message, n int) {
	t.Helper()
	defer m.Release()
	checkReceived(t, m.Bytes(), n)
}

// lent returns plain memory as a buffer, which needs none of the context's memory.
func (c *memoryCase) lent(n int) *lib.Buffer { return c.one.Lend(payload[:n], func() {}) }

func (c *memoryCase) send(t testing.TB, n int) {
	b := c.lent(n)
	if err := c.a.Send(c.ctx, c.b.ID(), 1, b); err != nil {
		b.Release()
		t.Fatal(err)
	}
	checkMessage(t, try.Get(c.b.Recv(c.ctx))(t), n)
}

// call answers one call at a with n bytes of plain memory.
func (c *memoryCase) call(t testing.TB, n int, call func() (*lib.Message, error)) {
	replied := make(chan error, 1)
	go func() {
		m, err := c.a.Recv(c.ctx)
		if err == nil {
			b := c.lent(n)
			if err = c.a.Reply(c.ctx, m, b); err != nil {
				b.Release()
			}
			m.Release()
		}
		replied <- err
	}()
	m, err := call()
	failed := <-replied
	checkMessage(t, try.Get(m, err)(t), n)
	try.OK(t, failed)
}

func (c *memoryCase) expose(t testing.TB, ep *bulk.Endpoint, rights bulk.Rights, parts ...bulk.Segment) bulk.Handle {
	r := try.Get(ep.Expose(rights, parts...))(t)
	t.Cleanup(func() { _ = r.Revoke(c.ctx) })
	return r.Handle()
}

// plain returns large data in one segment, and scattered in many that the origin gathers into
// messages.
func plain() []bulk.Segment { return []bulk.Segment{bulk.Bytes(payload[:large])} }

func scattered() (all []bulk.Segment) {
	for at := 0; at < large; at += 10_000 {
		all = append(all, bulk.Bytes(payload[at:min(at+10_000, large)]))
	}
	return all
}

// pull pulls into memory that is divided at the given places.
func (c *memoryCase) pull(t testing.TB, parts []bulk.Segment, at ...int) {
	h := c.expose(t, c.one.ep, bulk.ReadOnly, parts...)
	dst := make([]byte, large)
	try.Get(c.two.ep.Pull(c.ctx, h, 0, divided(dst, at)...))(t)
	checkReceived(t, dst, large)
}

func divided(p []byte, at []int) (parts [][]byte) {
	from := 0
	for _, to := range append(at, len(p)) {
		parts, from = append(parts, p[from:to]), to
	}
	return parts
}

func (c *memoryCase) push(t testing.TB, at ...int) {
	dst := make([]byte, large)
	r := try.Get(c.two.ep.Expose(bulk.WriteOnly, bulk.Bytes(dst)))(t)
	_, err := c.one.ep.Push(c.ctx, r.Handle(), 0, divided(payload[:large], at)...)
	try.OK(t, errors.Join(err, r.Revoke(c.ctx))) // before dst is read, which another goroutine has written
	checkReceived(t, dst, large)
}

func (c *memoryCase) view(t testing.TB, n int) {
	checkMessage(t, try.Get(c.two.ep.View(c.ctx, c.expose(t, c.one.ep, bulk.ReadOnly, plain()...), 0, n))(t), n)
}

func (c *memoryCase) pipeline(t testing.TB, parts []bulk.Segment, opts ...bulk.Option) {
	var all []byte
	for p, err := range bulk.Pipeline(c.ctx, c.two.ep, c.expose(t, c.one.ep, bulk.ReadOnly, parts...), opts...) {
		try.OK(t, err)
		all = append(all, p.Bytes()...)
	}
	checkReceived(t, all, large)
}

// argument calls a function with n bytes, and result a function that returns n bytes.
func (c *memoryCase) argument(t testing.TB, n int) {
	try.Equal(t, try.Get(rpc.Call[[]byte, int](c.ctx, c.one.client, c.two.server.ID(), "len", payload[:n]))(t), n, "bytes came")
}

func (c *memoryCase) result(t testing.TB, n int) {
	checkReceived(t, try.Get(rpc.Call[int, []byte](c.ctx, c.two.client, c.one.server.ID(), "get", n))(t), n)
}

// stream reads a stream of results of n bytes.
func (c *memoryCase) stream(t testing.TB, n int) {
	for _, err := range rpc.Stream[int, []byte](c.ctx, c.two.client, c.one.server.ID(), "stream", n) {
		try.OK(t, err)
	}
}

func (c *memoryCase) conn(t testing.TB) {
	ln := try.Get(netrocl.Listen(c.ctx, c.two.Context, lib.Attrs{"net": "memory"}))(t)
	defer ln.Close()
	came := make(chan []byte, 1)
	go func() {
		var p []byte
		if conn, err := ln.Accept(); err == nil {
			p, _ = io.ReadAll(conn)
			conn.Close()
		}
		came <- p
	}()
	conn := try.Get(netrocl.Dial(c.ctx, c.one.Context, lib.Match{"net": "memory"}))(t)
	defer conn.Close()
	try.Get(conn.Write(payload[:large]))(t)
	try.OK(t, conn.(*netrocl.Conn).CloseWrite())
	checkReceived(t, <-came, large)
}

// memoryOperations are the operations that move large data. mustSucceed marks those that need no
// more memory than a small part of the data at either side.
var memoryOperations = []struct {
	name        string
	mustSucceed bool
	do          func(t testing.TB, c *memoryCase)
}{
	{"Send", false, func(t testing.TB, c *memoryCase) { c.send(t, large) }},
	{"Send of 1 MiB", false, func(t testing.TB, c *memoryCase) { c.send(t, 1<<20) }},
	{"Send of a quarter", false, func(t testing.TB, c *memoryCase) { c.send(t, medium) }},
	{"SendBytes", false, func(t testing.TB, c *memoryCase) {
		try.OK(t, c.a.SendBytes(c.ctx, c.b.ID(), 1, payload[:medium]))
		checkMessage(t, try.Get(c.b.Recv(c.ctx))(t), medium)
	}},
	{"SendValue", false, func(t testing.TB, c *memoryCase) {
		try.OK(t, lib.SendValue(c.ctx, c.a, c.b.ID(), 1, payload[:medium]))
		m := try.Get(c.b.Recv(c.ctx))(t)
		defer m.Release()
		checkReceived(t, try.Get(lib.Value[[]byte](m))(t), medium)
	}},
	{"Call", false, func(t testing.TB, c *memoryCase) {
		c.call(t, large, func() (*lib.Message, error) { return c.b.CallBytes(c.ctx, c.a.ID(), 1, nil) })
	}},
	{"CallInto", true, func(t testing.TB, c *memoryCase) {
		dst := make([]byte, large)
		c.call(t, large, func() (*lib.Message, error) { return c.b.CallInto(c.ctx, c.a.ID(), 1, nil, dst) })
	}},
	{"CallInto too small", false, func(t testing.TB, c *memoryCase) {
		dst := make([]byte, large-1)
		c.call(t, large, func() (*lib.Message, error) { return c.b.CallInto(c.ctx, c.a.ID(), 1, nil, dst) })
	}},
	{"Pull", true, func(t testing.TB, c *memoryCase) { c.pull(t, plain()) }},
	{"Pull of scattered memory", true, func(t testing.TB, c *memoryCase) { c.pull(t, scattered()) }},
	{"Pull into several", true, func(t testing.TB, c *memoryCase) { c.pull(t, plain(), 50_000, 50_100, large/2) }},
	{"Push", true, func(t testing.TB, c *memoryCase) { c.push(t) }},
	{"Push of several", true, func(t testing.TB, c *memoryCase) { c.push(t, large/3, large/3+50) }},
	{"View", false, func(t testing.TB, c *memoryCase) { c.view(t, large) }},
	{"View of a quarter", false, func(t testing.TB, c *memoryCase) { c.view(t, medium) }},
	{"Pipeline", true, func(t testing.TB, c *memoryCase) { c.pipeline(t, plain()) }},
	{"Pipeline of scattered memory", true, func(t testing.TB, c *memoryCase) { c.pipeline(t, scattered()) }},
	{"Pipeline in large pieces", true, func(t testing.TB, c *memoryCase) { c.pipeline(t, plain(), bulk.PieceSize(medium)) }},
	{"rpc arguments", false, func(t testing.TB, c *memoryCase) { c.argument(t, large) }},
	{"rpc arguments of 1 MiB", false, func(t testing.TB, c *memoryCase) { c.argument(t, 1<<20-100) }},
	{"rpc result", false, func(t testing.TB, c *memoryCase) { c.result(t, large) }},
	{"rpc result of 1 MiB", false, func(t testing.TB, c *memoryCase) { c.result(t, 1<<20-100) }},
	{"rpc stream", false, func(t testing.TB, c *memoryCase) { c.stream(t, medium) }},
	{"rpc stream of small results", true, func(t testing.TB, c *memoryCase) { c.stream(t, 10_000) }},
	{"netrocl", true, func(t testing.TB, c *memoryCase) { c.conn(t) }},
	{"tpvm", false, func(t testing.TB, c *memoryCase) {
		try.OK(t, c.one.task.SendBytes(c.ctx, c.two.task.ID(), 1, payload[:medium]))
		try.Get(c.two.task.Recv(c.ctx, c.one.task.ID(), 1))(t).Release()
	}},
}

// Promise (Memory): Operations on large data end, with success or `ErrTooLarge`, whatever limits of
// memory both contexts have. See also TestBothWithLittleMemory.
func TestLargeBesideLittleMemory(t *testing.T) {
	pairs := [][2]int64{{0, 4 << 20}, {2 << 20, 0}, {1 << 20, 1 << 20}}
	if *longMemory {
		large, medium = 4*large, 4*medium
		t.Cleanup(func() { large, medium = large/4, medium/4 })
		pairs = nil
		for _, limit := range []int64{1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20} {
			pairs = append(pairs, [2]int64{0, limit}, [2]int64{limit, 0}, [2]int64{limit, limit})
		}
	}
	for name, tr := range map[string]func() lib.Option{"tcp": rocltest.TCP, "shm": func() lib.Option { return lib.WithTransports(shm.New()) }} {
		for _, at := range pairs {
			t.Run(fmt.Sprintf("%s/%d to %d", name, at[0]>>10, at[1]>>10), func(t *testing.T) { largeBetween(t, tr, at[0], at[1]) })
		}
	}
}

func largeBetween(t *testing.T, tr func() lib.Option, first, second int64) {
	ctx := eventually.Context(t)
	cl := rocltest.Cluster(t, 1)
	open := func(name string, limit int64) *upper {
		opts := []lib.Option{tr()}
		if limit > 0 {
			opts = append(opts, lib.WithMemory(limit))
		}
		return newUpper(ctx, t, name, cl.Open(0, opts...))
	}
	c := &memoryCase{ctx: ctx, one: open("one", first), two: open("two", second)}
	c.a, c.b = register(t, c.one.Context, nil), register(t, c.two.Context, nil)
	try.OK(t, rpc.Register(c.two.server, "len", func(_ context.Context, p []byte) (int, error) { return len(p), nil }))
	try.OK(t, rpc.Register(c.one.server, "get", func(_ context.Context, n int) ([]byte, error) { return payload[:n], nil }))
	try.OK(t, rpc.RegisterStream(c.one.server, "stream", func(_ context.Context, n int) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			for at := 0; at+n <= large && yield(payload[:n], nil); at += n {
			}
		}
	}))
	for _, op := range memoryOperations {
		t.Run(op.name, func(t *testing.T) {
			if op.mustSucceed {
				op.do(t, c)
			} else {
				op.do(tooLarge{t}, c)
			}
		})
	}
	try.OK(t, errors.Join(c.one.end(ctx), c.two.end(ctx)))
}

// Contexts whose memory is full of messages to each other get these messages: two of them, and
// three in a ring.
//
// Promise (Memory): Contexts whose memory is full of messages to each other get these messages,
// within twice their limits. See also TestDiscount.
func TestFullOfMessagesToEachOther(t *testing.T) {
	for name, tr := range map[string]func() lib.Option{
		"inproc": func() lib.Option { return nil },
		"tcp":    rocltest.TCP,
		"shm":    func() lib.Option { return lib.WithTransports(shm.New()) },
		"tls": func() lib.Option {
			return lib.WithTransports(tls.New(try.Get(tls.FromSecrets("memory", bytes.Repeat([]byte("k"), 32)))(t)))
		},
	} {
		for _, shape := range []struct{ contexts, senders, size int }{
			{2, 1, 3<<19 - 1000}, {2, 1, 9 << 17}, {2, 4, 1700 << 10 / 4}, {3, 1, 3<<19 - 1000},
		} {
			t.Run(fmt.Sprintf("%s/%d contexts, %d times %d", name, shape.contexts, shape.senders, shape.size), func(t *testing.T) {
				fullOfMessages(t, tr, shape.contexts, shape.senders, shape.size)
			})
		}
	}
}

func fullOfMessages(t *testing.T, tr func() lib.Option, contexts, senders, size int) {
	ctx := eventually.Context(t)
	cl := rocltest.Cluster(t, 1)
	all := make([]*lib.Resource, contexts)
	at := make([]*lib.Context, contexts)
	for i := range all {
		at[i] = cl.Open(0, tr(), lib.WithMemory(2<<20))
		all[i] = register(t, at[i], lib.Attrs{"side": fmt.Sprint(i)})
	}
	for _, send := range []func(r *lib.Resource, to lib.GID, b *lib.Buffer) error{
		func(r *lib.Resource, to lib.GID, b *lib.Buffer) error { return r.Send(ctx, to, 1, b) },
		func(r *lib.Resource, to lib.GID, b *lib.Buffer) error { return r.SendAll(ctx, []lib.GID{to}, 1, b) },
		func(r *lib.Resource, to lib.GID, b *lib.Buffer) error {
			m, err := r.Call(ctx, to, 1, b)
			if err == nil {
				m.Release()
			}
			return err
		},
	} {
		var going sync.WaitGroup
		for i := range all {
			for range senders {
				going.Go(func() {
					b, err := at[i].BufferWait(ctx, size)
					if err != nil {
						t.Error(err)
						return
					}
					copy(b.Bytes(), payload)
					if err := send(all[i], all[(i+1)%contexts].ID(), b); err != nil {
						b.Release()
						t.Error(err)
					}
				})
			}
			going.Go(func() {
				for range senders {
					m, err := all[i].Recv(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					checkReceived(t, m.Bytes(), size)
					if m.IsCall() {
						err = all[i].ReplyBytes(ctx, m, nil)
					}
					m.Release()
					try.Check(t, err)
				}
			})
		}
		going.Wait()
	}
}
