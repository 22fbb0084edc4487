// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"runtime"
	"time"

	"github.com/rocl-go/rocl"
)

// cpuCases measure the processor time of a message apart for its sender and its receiver. One
// goroutine is both, on one thread: it sends a burst over a link between two contexts of this
// process, and then receives it. Other load of the machine changes these figures little.
var cpuCases = []comparison{
	{bench: "cpu", role: isAlone, what: "a Go channel, by the same goroutine", unit: "ns", run: cpu},
}

// cpuLimits are the limits of the rows, in nanoseconds.
var cpuLimits = map[string]Limit{
	"shm cpu send":     atMost("p50", 26, 20),
	"shm cpu recv":     atMost("p50", 40, 30),
	"shm cpu messages": atMost("p50", 30, 20),
	"shm cpu trip":     atMost("p50", 600, 430),
	"tcp cpu send":     atMost("p50", 40, 35),
	"tcp cpu recv":     atMost("p50", 40, 30),
	"tcp cpu messages": atMost("p50", 30, 20),
}

// A burst is a way to send n messages, and to receive them.
type burst struct{ send, receive func(n int) }

// burstBytes limits the bytes of a burst, and with them the burst to what one context holds for
// another.
const (
	burstBytes = 32 << 10
	burstMost  = 400
)

// loop returns a loop of bursts. Its figure is the processor time of a message, in nanoseconds, of
// the sides that count.
func (b burst) loop(p *pair, sends, receives bool) loop {
	most := min(burstMost, max(burstBytes/max(p.Size, 64), 1))
	return func(n int, t *times) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var took time.Duration
		for left := n; left > 0; left -= most {
			proceed(p.ctx)
			k := min(left, most)
			start := threadTime()
			b.send(k)
			sent := threadTime()
			if b.receive(k); sends {
				took += sent - start
			}
			if receives {
				took += threadTime() - sent
			}
		}
		t.each = append(t.each, float64(took)/float64(n))
	}
}

func cpu(p *pair, c *comparison) (rows []*Result) {
	from := must(p.c.Register(p.ctx, rocl.Attrs{"bench": "sender"}))
	own := p.config
	own.Role = isParent
	there := own.open(p.ctx)
	p.add(func() { there.Close() })
	to := must(there.Register(p.ctx, rocl.Attrs{"bench": "receiver"}))
	data := make([]byte, p.Size)
	pass := func(from, to *rocl.Resource) { check(from.SendBytes(p.free, to.ID(), 0, data)) }
	take := func(r *rocl.Resource) { must(r.Recv(p.free)).Release() }
	send := func(n int) {
		for range n {
			pass(from, to)
		}
		if _, err := from.TryRecv(); !errors.Is(err, rocl.ErrEmpty) { // writes what is queued, as a sender does that waits
			check(err)
		}
	}
	receive := func(n int) {
		for range n {
			take(to)
		}
	}
	iterate := func(n int) {
		for m, err := range to.Messages(p.free) {
			check(err)
			m.Release()
			if n--; n == 0 {
				return
			}
		}
	}
	trips := func(n int) {
		for range n {
			pass(from, to)
			take(to)
			pass(to, from)
			take(from)
		}
	}
	queue := make(chan *[64]byte, burstMost)
	into := func(n int) {
		for range n {
			queue <- nil
		}
	}
	outOf := func(n int) {
		for range n {
			<-queue
		}
	}
	both := func(n int) {
		for range 2 * n {
			into(1)
			outOf(1)
		}
	}
	none := func(int) {}
	for _, row := range []struct {
		name            string
		bare, ours      burst
		sends, receives bool
	}{
		{"cpu send", burst{into, outOf}, burst{send, receive}, true, false},
		{"cpu recv", burst{into, outOf}, burst{send, receive}, false, true},
		{"cpu messages", burst{into, outOf}, burst{send, iterate}, false, true},
		{"cpu trip", burst{both, none}, burst{trips, none}, true, false},
	} {
		count := p.o.count
		if row.name == "cpu trip" {
			count = (count + 19) / 20 // over tcp it takes two system calls each way
		}
		t := measure(p.o.rounds, count, row.bare.loop(p, row.sends, row.receives), row.ours.loop(p, row.sends, row.receives))
		r := p.result(c, t[1], t[0])
		r.Bench, r.Count = row.name, p.o.rounds*count
		if l, ok := cpuLimits[p.Transport+" "+row.name]; ok {
			r.Limits = []Limit{l}
		}
		rows = append(rows, r)
	}
	return rows
}
