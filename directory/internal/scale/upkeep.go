// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/directory/internal/search/searchtest"
	"github.com/rocl-go/rocl/resource"
)

const (
	// Spread is the interval of summaries, that of package cluster.
	Spread = 5 * time.Second
	// Changes is the share of the resources that changes in a minute.
	Changes = 0.01

	// packet is how many bytes of a message fit in a packet: port.MaxPayload. Larger ones go by a
	// stream.
	packet = 1232
	// stream counts the bytes around a message in a stream: the first byte, its sealed length, and
	// its own seal.
	stream    = 1 + 2*Seal + 4
	segment   = 1448 // bytes of a stream in one packet
	tcp       = 52   // bytes of heads around them
	handshake = 6    // packets of a stream without bytes
	// calm is the number of intervals without change or loss after which every node must know
	// everything.
	calm      = 18
	listeners = 8 // nodes at which it is counted; each hears all other nodes
)

// Upkeep is the cost of keeping each node informed of what the other nodes hold.
type Upkeep struct {
	Nodes    int
	Interval time.Duration
	Loss     float64

	// Rate and Peak are bytes per second that a node receives with all heads: on average, and in
	// the worst interval of a node.
	Rate, Peak float64
	Packets    float64 // per second
	Held       int     // bytes of memory for the summaries of the other nodes
	Joining    int     // bytes that a node receives when it joins
	// Missing counts, of every eighth resource, those that a listener does not know of at the end.
	Missing int
}

// Kib returns Rate in KiB per second.
func (u Upkeep) Kib() float64 { return u.Rate / 1024 }

// cost returns the bytes and packets of a message on the network.
func cost(message []byte) (bytes, packets int) {
	n := len(message)
	if n <= packet {
		return n + Heads, 1
	}
	n += stream
	packets = (n + segment - 1) / segment
	// One of two packets is acknowledged. A node that sends a stream receives another one.
	return n + tcp*(packets+packets/2+handshake), packets
}

// Keep runs a cluster for the time lasts, in which it changes and spreads what is new, and returns
// the cost.
func Keep(nodes, resources int, loss float64, lasts time.Duration) (Upkeep, error) {
	u := Upkeep{Nodes: nodes, Loss: loss, Interval: search.Interval(Spread, nodes)}
	ids := searchtest.New(searchtest.Config{Nodes: nodes}).IDs
	rnd := rand.New(rand.NewPCG(5, uint64(nodes)))
	hear := min(listeners, nodes)
	before := heap()
	heard := make([]*search.Filters, hear)
	for i := range heard {
		heard[i] = search.NewFilters()
	}
	var all []*holder
	var err error
	in := make([]int, hear) // bytes of one interval
	var count func(to int, message []byte)
	spread := func(h *holder, lost float64) {
		h.summary.Spread(ids[:hear], ids[h.node], func(id resource.NodeID, message []byte) {
			to, _ := slices.BinarySearch(ids, id)
			if len(message) <= packet && rnd.Float64() < lost {
				return
			}
			count(to, message)
			reply, e := heard[to].Hear(ids[h.node], message)
			if e != nil {
				err = e
			}
			if reply == nil || rnd.Float64() < lost {
				return
			}
			if _, e := h.summary.Hear(id, reply); e != nil {
				err = e
			}
		})
	}
	count = func(to int, message []byte) {
		b, _ := cost(message)
		in[to] += b
	}
	for i := range ids {
		h := newHolder(i, resources/nodes, nodes)
		h.age(rnd.Float64()) // so that they are not all renewed together
		spread(h, 0)
		all = append(all, h)
	}
	u.Joining = in[0]
	clear(in)

	rounds := int(lasts / u.Interval)
	seconds := float64(rounds) * u.Interval.Seconds() * float64(hear)
	count = func(to int, message []byte) {
		b, packets := cost(message)
		in[to] += b
		u.Rate += float64(b) / seconds
		u.Packets += float64(packets) / seconds
	}
	a := float64(resources/nodes) * Changes * u.Interval.Minutes()
	for range rounds {
		for _, h := range all {
			for range poisson(rnd, a) {
				h.change(rnd.IntN(len(h.changes)))
			}
			if h.summary.Stale(nodes) {
				h.renew(nodes)
			}
			spread(h, loss)
		}
		u.Peak = max(u.Peak, float64(slices.Max(in))/u.Interval.Seconds())
		clear(in)
	}
	count = func(int, []byte) {}
	for range calm {
		for _, h := range all {
			spread(h, 0)
		}
	}
	for _, h := range all {
		for i := 0; i < len(h.changes); i += 8 {
			l := h.one(i)
			if slices.ContainsFunc(heard, func(f *search.Filters) bool {
				s := f.Of(ids[h.node])
				return (s == nil || !s.May(l)) && f != listener(heard, h.node)
			}) {
				u.Missing++
			}
		}
	}
	u.Held = heard[0].Bytes()
	all = nil
	if used := (heap() - before) / hear; err == nil && math.Abs(float64(used-u.Held)) > 0.25*float64(u.Held)+1<<20 {
		err = fmt.Errorf("scale: %d bytes are said to be held, the heap has %d", u.Held, used)
	}
	runtime.KeepAlive(heard)
	return u, err
}

// listener returns the listener at a node, or nil.
func listener(heard []*search.Filters, node int) *search.Filters {
	if node < len(heard) {
		return heard[node]
	}
	return nil
}

// heap returns the bytes in use on the heap, after a garbage collection.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// poisson draws a number of events with the given mean.
func poisson(rnd *rand.Rand, mean float64) (n int) {
	for t := rnd.ExpFloat64(); t < mean; t += rnd.ExpFloat64() {
		n++
	}
	return n
}
