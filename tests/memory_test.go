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
	"github.com/rocl-go/rocl/netrocl"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tls"
	"github.com/rocl-go/rocl/tpvm"
)

// longMemory makes the tests of little memory and of abandoned calls long.
var longMemory = flag.Bool("long-memory", false, "more data, limits and calls in tests of what uses memory: minutes")

// A memoryCase is two contexts that may have little memory. Each operation moves large data from
// one to two.
type memoryCase struct {
	ctx      context.Context
	one, two *lib.Context
	a, b     *lib.Resource
	ep, at   *bulk.Endpoint // of one and of two
	client   *rpc.Client    // of one
	server   *rpc.Server    // of two
	back     *rpc.Client    // of two
	source   *rpc.Server    // of one
}

// Sizes of the data. With -long-memory they are four times as large.
var (
	large   = 6 << 20
	medium  = large / 4
	payload = bytes.Repeat([]byte("0123456789abcdef"), 24<<20/16)
)

// received checks the bytes of what has come, which are the beginning of the payload.
func received(p []byte, n int) error {
	if len(p) != n || !bytes.Equal(p, payload[:n]) {
		return fmt.Errorf("%d bytes came, and not the %d that were sent", len(p), n)
	}
	return nil
}

// exchange runs send, and takes a message of n bytes at b if send succeeds.
func (c *memoryCase) exchange(n int, send func() error) error {
	if err := send(); err != nil {
		return err
	}
	m, err := c.b.Recv(c.ctx)
	if err != nil {
		return err
	}
	defer m.Release()
	return received(m.Bytes(), n)
}

// lent returns plain memory as a buffer, which needs none of the context's memory.
func (c *memoryCase) lent(n int) *lib.Buffer { return c.one.Lend(payload[:n], func() {}) }

func (c *memoryCase) send(n int) error {
	return c.exchange(n, func() error {
		b := c.lent(n)
		err := c.a.Send(c.ctx, c.b.ID(), 1, b)
		if err != nil {
			b.Release()
		}
		return err
	})
}

// replies answers one call at a with n bytes of plain memory. The result gets the error of Reply.
func (c *memoryCase) replies(n int) chan error {
	done := make(chan error, 1)
	go func() {
		m, err := c.a.Recv(c.ctx)
		if err != nil {
			done <- err
			return
		}
		b := c.lent(n)
		if err = c.a.Reply(c.ctx, m, b); err != nil {
			b.Release()
		}
		m.Release()
		done <- err
	}()
	return done
}

func (c *memoryCase) call(n int, call func() (*lib.Message, error)) error {
	replied := c.replies(n)
	m, err := call()
	if err == nil {
		err = received(m.Bytes(), n)
		m.Release()
	}
	if e := <-replied; err == nil && e != nil {
		err = e
	}
	return err
}

func (c *memoryCase) region(parts ...bulk.Segment) (bulk.Handle, func()) {
	r, err := c.ep.Expose(bulk.ReadOnly, parts...)
	if err != nil {
		panic(err)
	}
	return r.Handle(), func() { _ = r.Revoke(c.ctx) }
}

// scattered returns n bytes in segments that the origin gathers into messages.
func scattered(n int) (all []bulk.Segment) {
	for at := 0; at < n; at += 10_000 {
		all = append(all, bulk.Bytes(payload[at:min(at+10_000, n)]))
	}
	return all
}

func (c *memoryCase) pull(n int, parts ...bulk.Segment) error {
	h, done := c.region(parts...)
	defer done()
	dst := make([]byte, n)
	if _, err := c.at.Pull(c.ctx, h, 0, dst); err != nil {
		return err
	}
	return received(dst, n)
}

func (c *memoryCase) pipeline(n int, opts []bulk.Option, parts ...bulk.Segment) error {
	h, done := c.region(parts...)
	defer done()
	var got []byte
	for p, err := range bulk.Pipeline(c.ctx, c.at, h, opts...) {
		if err != nil {
			return err
		}
		got = append(got, p.Bytes()...)
	}
	return received(got, n)
}

func (c *memoryCase) push(n int, parts ...[]byte) error {
	dst := make([]byte, n)
	r, err := c.at.Expose(bulk.WriteOnly, bulk.Bytes(dst))
	if err != nil {
		return err
	}
	_, err = c.ep.Push(c.ctx, r.Handle(), 0, parts...)
	if e := r.Revoke(c.ctx); err == nil { // before dst is read, which another goroutine has written
		err = e
	}
	if err != nil {
		return err
	}
	return received(dst, n)
}

func (c *memoryCase) conn() error {
	ln, err := netrocl.Listen(c.ctx, c.two, lib.Attrs{"net": "memory"})
	if err != nil {
		return err
	}
	defer ln.Close()
	got := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			var p []byte
			if p, err = io.ReadAll(conn); err == nil {
				err = received(p, large)
			}
			conn.Close()
		}
		got <- err
	}()
	conn, err := netrocl.Dial(c.ctx, c.one, lib.Match{"net": "memory"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err = conn.Write(payload[:large]); err == nil {
		err = conn.(*netrocl.Conn).CloseWrite()
	}
	if e := <-got; err == nil {
		err = e
	}
	return err
}

// memoryOperations are the operations that move large data. mustSucceed marks those that need no
// more memory than a small part of the data at either side.
var memoryOperations = []struct {
	name        string
	mustSucceed bool
	do          func(c *memoryCase) error
}{
	{"Send", false, func(c *memoryCase) error { return c.send(large) }},
	{"Send of 1 MiB", false, func(c *memoryCase) error { return c.send(1 << 20) }},
	{"Send of a quarter", false, func(c *memoryCase) error { return c.send(medium) }},
	{"SendBytes", false, func(c *memoryCase) error {
		return c.exchange(medium, func() error { return c.a.SendBytes(c.ctx, c.b.ID(), 1, payload[:medium]) })
	}},
	{"SendValue", false, func(c *memoryCase) error {
		if err := lib.SendValue(c.ctx, c.a, c.b.ID(), 1, payload[:medium]); err != nil {
			return err
		}
		m, err := c.b.Recv(c.ctx)
		if err != nil {
			return err
		}
		defer m.Release()
		_, err = lib.Value[[]byte](m)
		return err
	}},
	{"Call", false, func(c *memoryCase) error {
		return c.call(large, func() (*lib.Message, error) { return c.b.CallBytes(c.ctx, c.a.ID(), 1, nil) })
	}},
	{"CallInto", true, func(c *memoryCase) error {
		dst := make([]byte, large)
		return c.call(large, func() (*lib.Message, error) { return c.b.CallInto(c.ctx, c.a.ID(), 1, nil, dst) })
	}},
	{"CallInto too small", false, func(c *memoryCase) error {
		dst := make([]byte, large-1)
		return c.call(large, func() (*lib.Message, error) { return c.b.CallInto(c.ctx, c.a.ID(), 1, nil, dst) })
	}},
	{"Pull", true, func(c *memoryCase) error { return c.pull(large, bulk.Bytes(payload[:large])) }},
	{"Pull of scattered memory", true, func(c *memoryCase) error { return c.pull(large, scattered(large)...) }},
	{"Pull into several", true, func(c *memoryCase) error {
		h, done := c.region(bulk.Bytes(payload[:large]))
		defer done()
		dst := make([]byte, large)
		if _, err := c.at.Pull(c.ctx, h, 0, dst[:50_000], dst[50_000:50_100], dst[50_100:large/2], dst[large/2:]); err != nil {
			return err
		}
		return received(dst, large)
	}},
	{"Push", true, func(c *memoryCase) error { return c.push(large, payload[:large]) }},
	{"Push of several", true, func(c *memoryCase) error {
		return c.push(large, payload[:large/3], payload[large/3:large/3+50], payload[large/3+50:large])
	}},
	{"View", false, func(c *memoryCase) error {
		h, done := c.region(bulk.Bytes(payload[:large]))
		defer done()
		m, err := c.at.View(c.ctx, h, 0, large)
		if err != nil {
			return err
		}
		defer m.Release()
		return received(m.Bytes(), large)
	}},
	{"View of a quarter", false, func(c *memoryCase) error {
		h, done := c.region(bulk.Bytes(payload[:large]))
		defer done()
		m, err := c.at.View(c.ctx, h, 0, medium)
		if err != nil {
			return err
		}
		defer m.Release()
		return received(m.Bytes(), medium)
	}},
	{"Pipeline", true, func(c *memoryCase) error { return c.pipeline(large, nil, bulk.Bytes(payload[:large])) }},
	{"Pipeline of scattered memory", true, func(c *memoryCase) error { return c.pipeline(large, nil, scattered(large)...) }},
	{"Pipeline in large pieces", true, func(c *memoryCase) error {
		return c.pipeline(large, []bulk.Option{bulk.PieceSize(medium)}, bulk.Bytes(payload[:large]))
	}},
	{"rpc arguments", false, func(c *memoryCase) error {
		n, err := rpc.Call[[]byte, int](c.ctx, c.client, c.server.ID(), "len", payload[:large])
		if err == nil && n != large {
			err = fmt.Errorf("%d bytes came", n)
		}
		return err
	}},
	{"rpc arguments of 1 MiB", false, func(c *memoryCase) error {
		_, err := rpc.Call[[]byte, int](c.ctx, c.client, c.server.ID(), "len", payload[:1<<20-100])
		return err
	}},
	{"rpc result", false, func(c *memoryCase) error {
		p, err := rpc.Call[int, []byte](c.ctx, c.back, c.source.ID(), "get", large)
		if err != nil {
			return err
		}
		return received(p, large)
	}},
	{"rpc result of 1 MiB", false, func(c *memoryCase) error {
		_, err := rpc.Call[int, []byte](c.ctx, c.back, c.source.ID(), "get", 1<<20-100)
		return err
	}},
	{"rpc stream", false, func(c *memoryCase) error {
		for _, err := range rpc.Stream[int, []byte](c.ctx, c.back, c.source.ID(), "stream", medium) {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"rpc stream of small results", true, func(c *memoryCase) error {
		for _, err := range rpc.Stream[int, []byte](c.ctx, c.back, c.source.ID(), "stream", 10_000) {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"netrocl", true, (*memoryCase).conn},
	{"tpvm", false, (*memoryCase).tasks},
}

func (c *memoryCase) tasks() error {
	one, err := tpvm.Enrol(c.ctx, tpvm.WithContext(c.one), tpvm.WithVM("memory"))
	if err != nil {
		return err
	}
	defer one.Exit(c.ctx)
	two, err := tpvm.Enrol(c.ctx, tpvm.WithContext(c.two), tpvm.WithVM("memory"))
	if err != nil {
		return err
	}
	defer two.Exit(c.ctx)
	if err := one.SendBytes(c.ctx, two.ID(), 1, payload[:medium]); err != nil {
		return err
	}
	m, err := two.Recv(c.ctx, one.ID(), 1)
	if err != nil {
		return err
	}
	m.Release()
	return nil
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
	open := func(limit int64) *lib.Context {
		opts := []lib.Option{tr()}
		if limit > 0 {
			opts = append(opts, lib.WithMemory(limit))
		}
		return cl.Open(0, opts...)
	}
	c := &memoryCase{ctx: ctx, one: open(first), two: open(second)}
	c.a, c.b = register(t, c.one, lib.Attrs{"side": "one"}), register(t, c.two, lib.Attrs{"side": "two"})
	c.ep = got(bulk.Open(ctx, c.one))(t)
	c.at = got(bulk.Open(ctx, c.two))(t)
	c.client = got(rpc.NewClient(ctx, c.one))(t)
	c.back = got(rpc.NewClient(ctx, c.two))(t)
	c.server = got(rpc.NewServer(ctx, c.two, nil))(t)
	c.source = got(rpc.NewServer(ctx, c.one, nil))(t)
	must(t, rpc.Register(c.server, "len", func(_ context.Context, p []byte) (int, error) { return len(p), nil }))
	must(t, rpc.Register(c.source, "get", func(_ context.Context, n int) ([]byte, error) { return payload[:n], nil }))
	must(t, rpc.RegisterStream(c.source, "stream", func(_ context.Context, n int) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			for at := 0; at+n <= large && yield(payload[:n], nil); at += n {
			}
		}
	}))
	defer func() {
		for _, close := range []func() error{
			func() error { return c.client.Close() }, func() error { return c.back.Close() },
			func() error { return c.server.Close(ctx) }, func() error { return c.source.Close(ctx) },
			func() error { return c.ep.Close(ctx) }, func() error { return c.at.Close(ctx) },
		} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	}()
	for _, op := range memoryOperations {
		t.Run(op.name, func(t *testing.T) {
			err := op.do(c)
			if err != nil && (op.mustSucceed || !errors.Is(err, lib.ErrTooLarge)) {
				t.Error(err)
			}
			if err != nil {
				t.Log(err)
			}
		})
	}
}

// Contexts whose memory is full of messages to each other get these messages: two of them, and
// three in a ring.
//
// Promise (Memory): Contexts whose memory is full of messages to each other get these messages,
// within twice their limits. See also TestDiscount.
func TestFullOfMessagesToEachOther(t *testing.T) {
	for name, tr := range map[string]func() []lib.Option{
		"inproc": func() []lib.Option { return nil },
		"tcp":    func() []lib.Option { return []lib.Option{rocltest.TCP()} },
		"shm":    func() []lib.Option { return []lib.Option{lib.WithTransports(shm.New())} },
		"tls": func() []lib.Option {
			c := got(tls.FromSecrets("memory", bytes.Repeat([]byte("k"), 32)))(t)
			return []lib.Option{lib.WithTransports(tls.New(c))}
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

func fullOfMessages(t *testing.T, tr func() []lib.Option, contexts, senders, size int) {
	ctx := eventually.Context(t)
	cl := rocltest.Cluster(t, 1)
	all := make([]*lib.Resource, contexts)
	at := make([]*lib.Context, contexts)
	for i := range all {
		at[i] = cl.Open(0, append(tr(), lib.WithMemory(2<<20))...)
		all[i] = register(t, at[i], lib.Attrs{"side": fmt.Sprint(i)})
	}
	send := func(i int, how func(to lib.GID, b *lib.Buffer) error) {
		b, err := at[i].BufferWait(ctx, size)
		if err != nil {
			t.Error(err)
			return
		}
		copy(b.Bytes(), payload)
		if err := how(all[(i+1)%contexts].ID(), b); err != nil {
			b.Release()
			t.Error(err)
		}
	}
	for _, how := range []func(r *lib.Resource) func(lib.GID, *lib.Buffer) error{
		func(r *lib.Resource) func(lib.GID, *lib.Buffer) error {
			return func(to lib.GID, b *lib.Buffer) error { return r.Send(ctx, to, 1, b) }
		},
		func(r *lib.Resource) func(lib.GID, *lib.Buffer) error {
			return func(to lib.GID, b *lib.Buffer) error { return r.SendAll(ctx, []lib.GID{to}, 1, b) }
		},
		func(r *lib.Resource) func(lib.GID, *lib.Buffer) error {
			return func(to lib.GID, b *lib.Buffer) error {
				m, err := r.Call(ctx, to, 1, b)
				if err == nil {
					m.Release()
				}
				return err
			}
		},
	} {
		var going sync.WaitGroup
		for i := range all {
			for range senders {
				going.Go(func() { send(i, how(all[i])) })
			}
			going.Go(func() {
				for range senders {
					m, err := all[i].Recv(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					if err = received(m.Bytes(), size); err == nil && m.IsCall() {
						err = all[i].ReplyBytes(ctx, m, nil)
					}
					m.Release()
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		going.Wait()
	}
}
