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
	"github.com/rocl-go/rocl/internal/database"
	"github.com/rocl-go/rocl/subsys/inproc"
)

func rtt(ctx context.Context, o *options) (*Result, error) {
	if o.transport == "inproc" {
		return rttInproc(ctx, o)
	}
	return between(ctx, o, func(p *pair) (*Result, error) {
		switch {
		case o.server != "" && o.server != "inline":
			return rttServer(p, o)
		case o.idle > 0:
			return rttIdle(p, o)
		case o.transport == "shm":
			return rttShared(p, o)
		}
		return rttTCP(p, o)
	})
}

func rttTCP(p *pair, o *options) (*Result, error) {
	raw, what, task := io.ReadWriter(p.raw), "a bare Go loop over the runtime's poller", "echo-blocking"
	switch o.poll {
	case "always":
		raw, what, task = p.poll, "a bare polled Go loop", "echo-polled"
	case "never":
		raw, what, task = sleeping{p.poll}, "a bare Go loop that sleeps in poll(2)", "echo-sleeping"
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
		P50: b.p50(), P99: b.p99(), Raw: a.p50(), RawP99: a.p99(), Target: 1.08, Allocs: allocs}
	if o.poll == "always" {
		r.Also = &Result{Bench: "rtt p99", Transport: o.transport, Size: o.size, Poll: o.poll, Count: r.Count, Unit: r.Unit,
			What: what, P50: r.P99, Raw: r.RawP99, Ratio: r.P99 / r.RawP99, Target: 1.2}
	}
	r.Ratio = r.P50 / r.Raw
	return r, nil
}

// tripRaw makes a bare round trip.
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
	if err := p.begin(task, n); err != nil {
		return err
	}
	if err := t.round(n, f); err != nil {
		return err
	}
	return p.wait()
}

func pingPong(ctx context.Context, c *rocl.Context, me *rocl.Resource, peer rocl.GID, size int) error {
	b, err := c.Buffer(size)
	if err != nil {
		return err
	}
	if err := me.Send(ctx, peer, 0, b); err != nil {
		b.Release()
		return err
	}
	m, err := me.Recv(ctx)
	if err != nil {
		return err
	}
	m.Release()
	return nil
}

// An inprocPair is two contexts of this process that reach each other in memory. me is a resource
// of a, and peer one of b.
type inprocPair struct {
	directory *directory.Server
	a, b      *rocl.Context
	me, peer  *rocl.Resource
}

// openInproc opens the contexts and registers the resources of an inprocPair.
func openInproc(ctx context.Context, o *options) (p *inprocPair, err error) {
	policy, err := o.policy()
	if err != nil {
		return nil, err
	}
	p = &inprocPair{directory: directory.NewServer()}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	network := inproc.NewNetwork().Transport()
	open := func() (*rocl.Context, error) {
		return rocl.Open(context.Background(), icontext.WithDirectory(p.directory.Dialer()), rocl.WithTransports(network), rocl.WithPoll(policy))
	}
	if p.a, err = open(); err != nil {
		return nil, err
	}
	if p.b, err = open(); err != nil {
		return nil, err
	}
	if p.me, err = p.a.Register(ctx, rocl.Attrs{"bench": "parent"}); err != nil {
		return nil, err
	}
	if p.peer, err = p.b.Register(ctx, rocl.Attrs{"bench": "peer"}); err != nil {
		return nil, err
	}
	return p, nil
}

// close closes the contexts and their directory. It may be called several times.
func (p *inprocPair) close() {
	for _, c := range []*rocl.Context{p.a, p.b} {
		if c != nil {
			c.Close()
		}
	}
	p.directory.Close()
}

func rttInproc(ctx context.Context, o *options) (*Result, error) {
	p, err := openInproc(ctx, o)
	if err != nil {
		return nil, err
	}
	defer p.close()
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
		// Sends and receives use a context that does not end, because a cancellable one would cost
		// as much as the message. An interruption is noticed between batches, and closing the
		// contexts ends the echo.
		failed := make(chan error, 1)
		before := mallocs()
		go func() { failed <- echo(context.Background(), p.b, p.peer, counted(o.count), nil) }()
		err = b.batch(ctx, o.count, func() error { return pingPong(context.Background(), p.a, p.me, p.peer.ID(), o.size) })
		if err != nil {
			p.close()
			<-failed
			return nil, err
		}
		if err := <-failed; err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(o.count)
	}
	r := &Result{Bench: "rtt", Transport: "inproc", Size: o.size, Poll: o.poll, Count: o.count * o.rounds, Unit: "µs", What: "a Go channel there and back",
		P50: b.p50(), P99: b.p99(), Raw: a.p50(), RawP99: a.p99(), Target: 1.8, Allocs: allocs, Extra: untouched}
	r.Ratio = r.P50 / r.Raw
	return r, nil
}

// batch measures calls of f in groups of sixteen, because reading the clock would distort shorter
// times. It calls f count times, or fewer if ctx ends.
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

// untouched is the note of benches that hand buffers over.
const untouched = "no byte of a message is written or read: this is what handing it over takes"

func rate(ctx context.Context, o *options) (*Result, error) {
	if o.transport == "inproc" {
		return rateInproc(ctx, o)
	}
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
	isShared := o.transport == "shm"
	bares := []struct {
		task  string
		send  func() error
		rates *[]float64
	}{
		{"recv-lengths", func() error { return sendRaw(p.raw, size, n, true) }, &bare},
		{"recv-fixed", func() error { return sendRaw(p.raw, size, n, false) }, &fixed},
	}
	if isShared {
		bares = bares[:1]
		bares[0].task, bares[0].send = "recv-ring", func() error { return p.ring.send(p.ctx, size, n) }
	}
	for range o.rounds {
		for _, b := range bares {
			if err := p.begin(b.task, n); err != nil {
				return nil, err
			}
			start := time.Now()
			if err := b.send(); err != nil {
				return nil, err
			}
			*b.rates = append(*b.rates, float64(n)/time.Since(start).Seconds())
			if err := p.wait(); err != nil {
				return nil, err
			}
		}
		if err := p.begin("recv", n, len(senders)); err != nil {
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
		if err := p.wait(); err != nil {
			return nil, err
		}
	}
	r := &Result{Bench: "rate", Transport: o.transport, Size: o.size, Poll: o.poll, Senders: o.senders, Count: n * o.rounds, Unit: "messages/s",
		What: "a bare buffered Go loop", Rate: median(ours), Raw: median(bare), Target: 0.65, AtLeast: true, Allocs: allocs}
	r.Ratio = r.Rate / r.Raw
	if isShared {
		r.What, r.Target = "a bare ring in shared memory", 0.8
		return r, nil
	}
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

// rateInproc is rate between two contexts of this process.
func rateInproc(ctx context.Context, o *options) (*Result, error) {
	p, err := openInproc(ctx, o)
	if err != nil {
		return nil, err
	}
	defer p.close()
	defer context.AfterFunc(ctx, p.close)() // ends the senders and the receiver
	senders := []*rocl.Resource{p.me}
	for len(senders) < o.senders {
		r, err := p.a.Register(ctx, rocl.Attrs{"bench": "sender"})
		if err != nil {
			return nil, err
		}
		senders = append(senders, r)
	}
	each := o.count / o.senders
	n := each * o.senders
	var bare, ours []float64
	var allocs float64
	for range o.rounds {
		bare = append(bare, channelRate(ctx, o.senders, each))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		failed := make(chan error, len(senders)+1)
		before := mallocs()
		start := time.Now()
		for i, s := range senders {
			go func() { failed <- flood(context.Background(), s, p.peer.ID(), uint64(i), o.size, each) }()
		}
		go func() { failed <- recv(context.Background(), p.peer, n, len(senders)) }()
		var first error
		for range cap(failed) {
			if err := <-failed; err != nil && first == nil {
				first = err
				p.close() // ends the other senders
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case first != nil:
			return nil, first
		}
		ours = append(ours, float64(n)/time.Since(start).Seconds())
		allocs = (mallocs() - before) / float64(n)
		for _, s := range senders { // waits for the receiver's answer
			for m, err := s.TryRecv(); err == nil; m, err = s.TryRecv() {
				m.Release()
			}
		}
	}
	r := &Result{Bench: "rate", Transport: o.transport, Size: o.size, Poll: o.poll, Senders: o.senders, Count: n * o.rounds, Unit: "messages/s",
		What: "a Go channel with room for 1024", Rate: median(ours), Raw: median(bare), AtLeast: true, Allocs: allocs,
		Extra: "the bare figure passes a pointer; the library copies the bytes of each message"}
	r.Ratio = r.Rate / r.Raw
	return r, nil
}

// channelRate returns how many messages a second some goroutines send to one over a channel.
func channelRate(ctx context.Context, senders, each int) float64 {
	c := make(chan *[64]byte, 1024)
	var wg sync.WaitGroup
	start := time.Now()
	for range senders {
		wg.Go(func() {
			var b [64]byte
			for i := range each {
				if i%4096 == 0 && ctx.Err() != nil {
					return
				}
				c <- &b
			}
		})
	}
	go func() { wg.Wait(); close(c) }()
	for range c {
	}
	return float64(senders*each) / time.Since(start).Seconds()
}

// pour sends n messages, each in a new buffer. If source is not nil, pour copies it into each.
func pour(ctx context.Context, c *rocl.Context, me *rocl.Resource, to rocl.GID, size, n int, source []byte) error {
	for i := range uint64(n) {
		b, err := c.Buffer(size)
		if err != nil {
			return err
		}
		copy(b.Bytes(), source)
		if err := me.Send(ctx, to, i, b); err != nil {
			b.Release()
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
	return between(ctx, o, func(p *pair) (*Result, error) {
		if o.transport == "shm" {
			return bwShared(p, o)
		}
		return bwTCP(p, o)
	})
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
