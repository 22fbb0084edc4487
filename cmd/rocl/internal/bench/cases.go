// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/subsys/inproc"
)

func rtt(ctx context.Context, o *options) (*Result, error) {
	if o.transport == "inproc" {
		return rttInproc(ctx, o)
	}
	if o.transport == "shm" {
		return between(ctx, o, func(p *pair) (*Result, error) { return rttShared(p, o) })
	}
	return between(ctx, o, func(p *pair) (*Result, error) { return rttTCP(p, o) })
}

func rttTCP(p *pair, o *options) (*Result, error) {
	raw, what, task := io.ReadWriter(p.raw), "a bare blocking Go loop", "echo-blocking"
	if o.poll == "always" {
		raw, what, task = p.poll, "a bare polled Go loop", "echo-polled"
	}
	bare := func() error { return p.tripRaw(raw, o.size) }
	ours := func() error { return pingPong(p.ctx, p.c, p.me, p.peer, o.size) }
	a, b := newTimes(), newTimes()
	var allocs float64
	for round := -1; round < o.rounds; round++ {
		n := o.count
		if round < 0 {
			n = min(n, 500) // warm up
			a, b = newTimes(), newTimes()
		}
		if round == 0 {
			a, b = newTimes(), newTimes()
		}
		if err := p.round(task, n, a, bare); err != nil {
			return nil, err
		}
		before := mallocs()
		if err := p.round("echo", n, b, ours); err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(n)
	}
	r := &Result{Bench: "rtt", Transport: o.transport, Size: o.size, Poll: o.poll, Count: o.count * o.rounds, Unit: "µs", What: what,
		P50: b.p50(), P99: b.p99(), Raw: a.p50(), RawP99: a.p99(), Target: 1.25}
	if o.poll == "never" {
		r.Target = 1.15
	}
	r.Allocs = allocs
	r.Ratio = r.P50 / r.Raw
	return r, nil
}

// tripRaw is a bare round trip.
func (p *pair) tripRaw(rw io.ReadWriter, size int) error {
	b := p.buf[:max(size, 1)]
	if _, err := rw.Write(b); err != nil {
		return err
	}
	for n := 0; n < len(b); {
		k, err := rw.Read(b[n:])
		if err != nil {
			return err
		}
		n += k
	}
	return nil
}

func (p *pair) round(task string, n int, t *times, f func() error) error {
	if err := p.tell(task, n); err != nil {
		return err
	}
	if err := t.round(n, f); err != nil {
		return err
	}
	return p.told()
}

func pingPong(ctx context.Context, c *rocl.Context, me *rocl.Resource, peer rocl.GID, size int) error {
	b, err := c.Buffer(size)
	if err != nil {
		return err
	}
	if err := me.Send(ctx, peer, 0, b); err != nil {
		return err
	}
	m, err := me.Recv(ctx)
	if err != nil {
		return err
	}
	m.Release()
	return nil
}

// inprocPair is two contexts in this process that reach each other in memory.
func inprocPair(policy rocl.PollPolicy) (a, b *rocl.Context, closeAll func(), err error) {
	s := directory.NewServer()
	tr := inproc.NewNetwork().Transport()
	ctx := context.Background()
	var cs []*rocl.Context
	closeAll = func() {
		for _, c := range cs {
			c.Close()
		}
		s.Close()
	}
	for range 2 {
		c, err := rocl.Open(ctx, icontext.WithDirectory(s.Dialer()), rocl.WithTransports(tr), rocl.WithPoll(policy))
		if err != nil {
			closeAll()
			return nil, nil, nil, err
		}
		cs = append(cs, c)
	}
	return cs[0], cs[1], closeAll, nil
}

func rttInproc(ctx context.Context, o *options) (*Result, error) {
	policy, err := o.policy()
	if err != nil {
		return nil, err
	}
	ca, cb, closeAll, err := inprocPair(policy)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	me, err := ca.Register(ctx, rocl.Attrs{"bench": "parent"})
	if err != nil {
		return nil, err
	}
	peer, err := cb.Register(ctx, rocl.Attrs{"bench": "peer"})
	if err != nil {
		return nil, err
	}
	a, b := newTimes(), newTimes()
	var msg [64]byte
	var allocs float64
	for range o.rounds {
		to, fro := make(chan *[64]byte), make(chan *[64]byte)
		var wg sync.WaitGroup
		wg.Go(func() {
			for m := range to {
				fro <- m
			}
		})
		err := a.batch(ctx, o.count, func() error { to <- &msg; <-fro; return nil })
		close(to)
		wg.Wait()
		if err != nil {
			return nil, err
		}
		// A message's way is not cancelled, which would cost as much as the
		// message: an interruption is noticed between batches, and closing
		// the contexts ends the echo.
		failed := make(chan error, 1)
		before := mallocs()
		go func() { failed <- echo(context.Background(), cb, peer, counted(o.count), nil) }()
		err = b.batch(ctx, o.count, func() error { return pingPong(context.Background(), ca, me, peer.ID(), o.size) })
		if err != nil {
			closeAll()
			<-failed
			return nil, err
		}
		if err := <-failed; err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(o.count)
	}
	r := &Result{Bench: "rtt", Transport: "inproc", Size: o.size, Poll: o.poll, Count: o.count * o.rounds, Unit: "µs", What: "a Go channel there and back",
		P50: b.p50(), P99: b.p99(), Raw: a.p50(), RawP99: a.p99(), Target: 3, Allocs: allocs}
	r.Ratio = r.P50 / r.Raw
	return r, nil
}

// batch measures calls of f sixteen at a time: reading the clock would count
// for too much in shorter ones. It calls f count times, or less if ctx ends.
func (t *times) batch(ctx context.Context, count int, f func() error) error {
	size := min(count, 16)
	h := newTimes()
	err := h.round(count/size, func() error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for range size {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	})
	for i := count / size * size; i < count && err == nil; i++ {
		err = f()
	}
	if err != nil {
		return err
	}
	t.p50s = append(t.p50s, h.p50s[0]/float64(size))
	for _, b := range h.all.Distribution() {
		if b.Count > 0 {
			_ = t.all.RecordValues((b.From+b.To)/2/int64(size), b.Count)
		}
	}
	return nil
}

func rate(ctx context.Context, o *options) (*Result, error) {
	return between(ctx, o, func(p *pair) (*Result, error) { return rateTCP(p, o) })
}

func rateTCP(p *pair, o *options) (*Result, error) {
	size := max(o.size, 1)
	var bare, fixed, ours []float64
	var allocs float64
	senders := []*rocl.Resource{p.me}
	for len(senders) < o.senders {
		r, err := p.c.Register(p.ctx, rocl.Attrs{"bench": "sender"})
		if err != nil {
			return nil, err
		}
		senders = append(senders, r)
	}
	each := o.count / o.senders
	n := each * o.senders
	for range o.rounds {
		for _, b := range []struct {
			task    string
			lengths bool
			rates   *[]float64
		}{{"recv-lengths", true, &bare}, {"recv-fixed", false, &fixed}} {
			if err := p.tell(b.task, n); err != nil {
				return nil, err
			}
			start := time.Now()
			if err := sendRaw(p.raw, size, n, b.lengths); err != nil {
				return nil, err
			}
			*b.rates = append(*b.rates, float64(n)/time.Since(start).Seconds())
			if err := p.told(); err != nil {
				return nil, err
			}
		}
		if err := p.tell("recv", n, len(senders)); err != nil {
			return nil, err
		}
		before := mallocs()
		start := time.Now()
		failed := make(chan error, len(senders))
		for i, s := range senders {
			go func() { failed <- flood(p.ctx, s, p.peer, uint64(i), o.size, each) }()
		}
		for range senders {
			if err := <-failed; err != nil {
				return nil, err
			}
		}
		if err := p.ack(senders); err != nil {
			return nil, err
		}
		ours = append(ours, float64(n)/time.Since(start).Seconds())
		allocs = (mallocs() - before) / float64(n)
		if err := p.told(); err != nil {
			return nil, err
		}
	}
	r := &Result{Bench: "rate", Transport: o.transport, Size: o.size, Poll: o.poll, Senders: o.senders, Count: n * o.rounds, Unit: "messages/s",
		What: "a bare buffered Go loop", Rate: median(ours), Raw: median(bare), Target: 0.4, AtLeast: true, Allocs: allocs}
	if o.transport == "shm" {
		r.What, r.Raw, r.Target = "the required 10 million", 10e6, 1
	}
	r.Ratio = r.Rate / r.Raw
	r.Extra = fmt.Sprintf("the bare loop without lengths, both sides knowing the size: %.3g; ratio %.2f", median(fixed), r.Rate/median(fixed))
	return r, nil
}

// ack waits for the receiver's one answer, whichever sender it goes to.
func (p *pair) ack(senders []*rocl.Resource) error {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	got := make(chan error, len(senders))
	if len(senders) == 1 {
		m, err := senders[0].Recv(ctx)
		if err == nil {
			m.Release()
		}
		return err
	}
	for _, s := range senders {
		go func() {
			m, err := s.Recv(ctx)
			if err == nil {
				m.Release()
			}
			got <- err
		}()
	}
	err := <-got
	cancel()
	for range len(senders) - 1 {
		<-got
	}
	return err
}

// pour sends n messages, each in a buffer of its own.
func pour(ctx context.Context, c *rocl.Context, me *rocl.Resource, to rocl.GID, size, n int) error {
	for i := range uint64(n) {
		b, err := c.Buffer(size)
		if err != nil {
			return err
		}
		if err := me.Send(ctx, to, i, b); err != nil {
			return err
		}
	}
	return nil
}

// flood sends copies of one message, as the bare loop does.
func flood(ctx context.Context, me *rocl.Resource, to rocl.GID, sender uint64, size, n int) error {
	b := make([]byte, size)
	for i := range uint64(n) {
		if err := me.SendBytes(ctx, to, sender<<40|i, b); err != nil {
			return err
		}
	}
	return nil
}

func bw(ctx context.Context, o *options) (*Result, error) {
	return between(ctx, o, func(p *pair) (*Result, error) { return bwTCP(p, o) })
}

func bwTCP(p *pair, o *options) (*Result, error) {
	big := make([]byte, max(o.size, 1))
	for i := range big {
		big[i] = byte(i)
	}
	var bare, ours []float64
	bytes := float64(o.size) * float64(o.count)
	for range o.rounds + 1 {
		if err := p.tell("recv-big", o.count); err != nil {
			return nil, err
		}
		start := time.Now()
		if err := sendBig(p.raw, big, o.count); err != nil {
			return nil, err
		}
		bare = append(bare, bytes/time.Since(start).Seconds())
		if err := p.told(); err != nil {
			return nil, err
		}
		if err := p.tell("recv", o.count); err != nil {
			return nil, err
		}
		start = time.Now()
		if err := pour(p.ctx, p.c, p.me, p.peer, o.size, o.count); err != nil {
			return nil, err
		}
		if err := p.ack([]*rocl.Resource{p.me}); err != nil {
			return nil, err
		}
		ours = append(ours, bytes/time.Since(start).Seconds())
		if err := p.told(); err != nil {
			return nil, err
		}
	}
	r := &Result{Bench: "bw", Transport: o.transport, Size: o.size, Poll: o.poll, Count: o.count * o.rounds, Unit: "bytes/s",
		What: "a bare Go loop", Rate: median(ours[1:]), Raw: median(bare[1:]), Target: 0.95, AtLeast: true}
	r.Ratio = r.Rate / r.Raw
	return r, nil
}

func db(ctx context.Context, o *options) (*Result, error) {
	m := database.Measure(ctx, o.count)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r := &Result{Bench: "db", Count: m.Resources, Unit: "registrations/s", What: "the required 700,000", Rate: m.PutsPerSecond, Raw: 700_000, Target: 1, AtLeast: true,
		P50: float64(m.FindP50) / 1e3, P99: float64(m.FindP99) / 1e3}
	r.Ratio = r.Rate / r.Raw
	r.Extra = fmt.Sprintf("%.0f bytes a resource beyond its attributes (at most 350); exact find p50 %.2f µs, p99 %.2f (at most 1 µs)", m.BytesEach, r.P50, r.P99)
	return r, nil
}

func find(ctx context.Context, o *options) (*Result, error) {
	if o.nodes > 0 {
		return findNodes(ctx, o)
	}
	if o.resources > 0 {
		return findInPlace(ctx, o)
	}
	return between(ctx, o, func(p *pair) (*Result, error) { return findUnix(p, o) })
}

func findUnix(p *pair, o *options) (*Result, error) {
	bare := func() error {
		if _, err := p.unix.Write(p.buf[:findRequest]); err != nil {
			return err
		}
		for n := 0; n < findReply; {
			k, err := p.unix.Read(p.buf[n:findReply])
			if err != nil {
				return err
			}
			n += k
		}
		return nil
	}
	ours := func() error {
		_, err := p.c.Find(p.ctx, rocl.Match{"bench": "peer"})
		return err
	}
	a, b := newTimes(), newTimes()
	for range o.rounds {
		if err := a.round(o.count, bare); err != nil {
			return nil, err
		}
		if err := b.round(o.count, ours); err != nil {
			return nil, err
		}
	}
	r := &Result{Bench: "find", Count: o.count * o.rounds, Unit: "µs", What: "a bare Unix-socket round trip of the same bytes",
		P50: b.p50(), P99: b.p99(), Raw: a.p50(), RawP99: a.p99(), Target: 1.3}
	r.Ratio = r.P50 / r.Raw
	return r, nil
}
