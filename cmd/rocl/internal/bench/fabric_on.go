// SPDX-License-Identifier: Apache-2.0

//go:build ofi

package bench

import (
	"fmt"
	"strings"

	"github.com/rocl-go/rocl/ofi"
	"github.com/rocl-go/rocl/ofi/bare"
	"github.com/rocl-go/rocl/subsys"
)

const overFabric = "a bare loop over libfabric"

var fabrics = []string{"ofi+tcp", "ofi+shm"}

// fabricCases are the rows over libfabric, with the build tag ofi.
var fabricCases = fabricRows()

func fabricRows() (rows []comparison) {
	for _, over := range fabrics {
		rows = append(rows,
			comparison{bench: "rtt", transport: over, when: fabricSmall, what: overFabric, unit: "µs", limits: []Limit{atMost("excess", 3, 1), noAllocs},
				bare: fabricTrips, ours: messages("echo")},
			comparison{bench: "rtt", transport: over, when: func(o *options) bool { return !fabricSmall(o) }, what: overFabric, unit: "µs", limits: []Limit{atMost("ratio", 1.25, 1.05)},
				bare: fabricTrips, ours: messages("echo")},
			comparison{bench: "rate", transport: over, what: overFabric, unit: "messages/s", limits: []Limit{atLeast("ratio", 0.8), noAllocs},
				bare: fabricFlood, ours: floods},
			comparison{bench: "bw", transport: over, what: overFabric, unit: "bytes/s", limits: []Limit{atLeast("ratio", 0.8, 0.95)},
				bare: fabricFlood, ours: pours("recv-recv", nil), finish: note("the bare loop receives into the same buffers, a message of the library's into one of its own")})
	}
	return rows
}

func fabricSmall(o *options) bool { return o.size <= 64<<10 }

// fabricTransport returns nil if the transport is not one of libfabric.
func fabricTransport(name string) subsys.Transport {
	provider := fabricProvider(name)
	if provider == "" {
		return nil
	}
	return ofi.New(provider, ofi.WithShm())
}

func fabricProvider(transport string) (provider string) {
	switch transport {
	case "ofi+tcp":
		return "tcp;ofi_rxm"
	case "ofi+shm":
		return "shm"
	}
	return ""
}

// fabricWire is the wire of an endpoint.
type fabricWire struct{ *bare.End }

func (w fabricWire) ping() {
	check(w.Send())
	check(w.Recv())
}

func (w fabricWire) echo(more func() bool) {
	for again := true; again; {
		check(w.Recv())
		again = more()
		check(w.Send())
	}
	check(w.Flush())
}

// fabricLink returns the wire to the peer.
func fabricLink(p *pair) fabricWire {
	if w, isThere := p.wires["echo-fabric"].(fabricWire); isThere {
		return w
	}
	var name []byte
	for s := range strings.FieldsSeq(p.ask(p.peer, "fabric-open", 0)) {
		var b byte
		must(fmt.Sscan(s, &b))
		name = append(name, b)
	}
	w := fabricWire{must(bare.Open(p.ctx, fabricProvider(p.Transport), p.Size))}
	p.add(w.Close)
	numbers := []int{0} // the count that a task begins with
	for _, b := range w.Name() {
		numbers = append(numbers, int(b))
	}
	check(w.Connect(name))
	p.ask(p.peer, "fabric-connect", numbers...)
	p.wires["echo-fabric"] = w
	return w
}

// fabric does a task of the bare loops over libfabric.
func (a *answerer) fabric(task string, n []int) (answer string) {
	w, _ := a.wires["echo-fabric"].(fabricWire)
	switch task {
	case "fabric-open":
		w.End = must(bare.Open(a.ctx, fabricProvider(a.Transport), a.Size))
		a.add(w.Close)
		a.wires["echo-fabric"] = w
		return strings.Trim(fmt.Sprint(w.Name()), "[]")
	case "fabric-connect":
		var name []byte
		for _, b := range n[1:] {
			name = append(name, byte(b))
		}
		check(w.Connect(name))
	case "fabric-recv":
		for range n[0] {
			check(w.Recv())
		}
		check(w.Send())
		check(w.Flush())
	}
	return ""
}

func fabricTrips(p *pair) loop { return p.trips("echo-fabric", fabricLink(p).ping) }

// fabricFlood is a loop of messages one way. The last is answered.
func fabricFlood(p *pair) loop {
	w := fabricLink(p)
	units := 1
	if p.o.bench == "bw" {
		units = p.Size
	}
	return p.with("fabric-recv", func(n int, t *times) {
		t.rate(units*n, func() {
			for range n {
				check(w.Send())
			}
			check(w.Recv())
		})
	})
}
