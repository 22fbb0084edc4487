// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

func finds(m rocl.Match) side {
	return func(p *pair) loop {
		return func(n int, t *times) { t.round(n, func() { must(p.c.Find(p.ctx, m)) }) }
	}
}

// Finds in place: another process serves the node's directory with many resources, and this process
// reads the directory's index in shared memory.

// findInPlace measures finds of one resource among many, each by an attribute that no other
// resource has. It measures them with the directory's client, which is the cost of the index, and
// with a context, as a program finds.
func findInPlace(p *pair, c *comparison) []*Result {
	bytesEach := p.ask(p.peer, "fill", p.o.resources)
	client := must(directory.Join(p.ctx, directory.DialSocket(p.sock())))
	defer client.Close()
	bare := make(map[string]int, p.o.resources)
	for i := range p.o.resources {
		bare[nameOf(i)] = i
	}
	var l resource.List
	var name []byte
	pick := func() {
		name = appendName(name[:0], mathrand.IntN(p.o.resources))
		l.Reset()
		check(l.Add("name", name))
	}
	pick()
	inMap := func() {
		pick()
		if _, ok := bare[string(name)]; !ok {
			check(rocl.ErrNotFound)
		}
	}
	byClient := func() { pick(); must(client.Find(p.ctx, &l)) }
	byContext := func() { pick(); must(p.c.Find(p.ctx, &l)) }
	for p.c.Stats().Mapped == 0 || client.Stats().Mapped == 0 { // until both have the index
		byClient()
		byContext()
	}
	for range 3 { // touches the pages of the index
		newTimes().batch(p.ctx, p.o.resources, byClient)
	}
	batches := func(f func()) loop { return func(n int, t *times) { t.batch(p.ctx, n, f) } }
	socket := bareTrips("echo-unix")(p)
	asked := client.Stats().Asked
	t := measure(p.o.rounds, p.o.count, batches(pick), batches(inMap), batches(byContext), batches(byClient), func(n int, t *times) { socket(min(n, 1000), t) })
	if asked != client.Stats().Asked {
		check(errors.New("an answer did not come from the index"))
	}
	r := p.result(c, t[3], limit(1))
	r.Poll = ""
	r.Extra = fmt.Sprintf("by a context p50 %.2f; a bare Go map of as many p50 %.2f; a bare Unix-socket round trip p50 %.2f; of each but the last %.2f is making up the question; %.0f allocation; the index takes %s bytes a resource beyond its attributes",
		t[2].mid(), t[1].mid(), t[4].mid(), t[0].mid(), r.Allocs, bytesEach)
	return []*Result{r}
}

// findAll measures FindAll of count resources of the node in three ways: by the context that serves
// the directory itself and, with a directory in another process, from its index in shared memory
// and over its socket.
func findAll(p *pair, c *comparison) (rows []*Result) {
	p.ask(p.peer, "fill", p.o.count)
	open := func(sock string, opts ...rocl.Option) *rocl.Context {
		c := must(rocl.Open(p.ctx, append(opts, rocl.WithPoll(must(policyOf(p.Poll))), rocl.WithSocket(sock))...))
		p.add(func() { c.Close() })
		return c
	}
	serving, socket := open(filepath.Join(p.Dir, "serving.sock")), open(p.sock(), rocl.JoinOnly(), icontext.WithoutIndex())
	bare := make(map[string]rocl.GID, p.o.count)
	for i := range p.o.count {
		bare[nameOf(i)] = must(serving.Register(p.ctx, rocl.Attrs{"type": "worker", "site": "porto", "name": nameOf(i), "slot": nameOf(i)})).ID()
	}
	for p.c.Stats().Mapped == 0 { // until the context has the index
		must(p.c.Find(p.ctx, rocl.Match{"name": nameOf(0)}))
	}
	ids := make([]rocl.GID, 0, p.o.count)
	const each = 100 // listings of a round
	listings := func(f func()) loop { return func(_ int, t *times) { t.round(each, f) } }
	list := func(c *rocl.Context) loop {
		return listings(func() {
			ids = ids[:0]
			for f, err := range c.FindAll(p.ctx, rocl.Match{"type": "worker"}) {
				check(err)
				ids = append(ids, f.ID)
			}
			if len(ids) != p.o.count {
				check(fmt.Errorf("%d of %d listed", len(ids), p.o.count))
			}
		})
	}
	walk := listings(func() {
		ids = ids[:0]
		for _, id := range bare {
			ids = append(ids, id)
		}
	})
	t := measure(p.o.rounds, each, walk, list(serving), list(p.c), list(socket))
	most := 0.3 * float64(p.o.count) // microseconds
	for i, how := range []string{"serving", "index", "socket"} {
		r := p.result(c, t[i+1], limit(most))
		r.Transport, r.Poll, r.Count, r.What = how, "", p.o.count, fmt.Sprintf("the required %.4g µs", most)
		r.Extra = fmt.Sprintf("%d resources; a walk of a Go map that copies as many identifiers p50 %.2f; %.0f allocations", p.o.count, t[0].mid(), r.Allocs)
		rows = append(rows, r)
	}
	return rows
}

func nameOf(i int) string { return string(appendName(nil, i)) }

func appendName(b []byte, i int) []byte {
	return strconv.AppendInt(append(b, "resource "...), int64(i), 10)
}

// fill puts n resources of a context that does not exist into the directory's database, and returns
// how many bytes the index takes for each.
func (a *answerer) fill(n int) (bytesEach string) {
	db, owner := a.server.Database(), resource.MakeGID(a.server.Node(), 1<<40, 0)
	own := 0
	var l resource.List
	for i := range n {
		if i%1024 == 0 {
			proceed(a.ctx)
		}
		own += describe(&l, i)
		must(db.Put(owner.WithSerial(uint32(i+1)), owner, &l))
	}
	check(db.MakeIndex(a.ctx, 0)) // as for the first context that asks for it
	defer db.DropIndex()
	return fmt.Sprintf("%.0f", (float64(db.Stats().IndexBytes)-float64(own))/float64(n))
}

// Finds between nodes: each process is a node of its own on the loopback interface. Its one context
// serves the directory, which is a member of one cluster.

func between(o *options) bool { return o.nodes > 0 }

// openNodes opens this node, starts the others, and waits until this node sees all of them.
func (p *pair) openNodes() {
	if p.o.sealed {
		p.Key = filepath.Join(p.Dir, "key")
		check(os.WriteFile(p.Key, []byte(rand.Text()+"\n"), 0o600))
	}
	node := p.config
	for node.Number = range p.o.nodes {
		node.Dir = filepath.Join(p.Dir, strconv.Itoa(node.Number))
		check(os.Mkdir(node.Dir, 0o700))
		switch node.Number {
		case 0:
			p.join(node)
			me := must(p.c.Find(p.ctx, rocl.Match{rocl.AttrKind: "node"})) // the only node yet
			node.Join = me.Attrs.GetString(rocl.AttrAddr)
		case 1:
			p.peer = p.start(node)
			node.Poll = "never" // of all but the two that are measured
		default:
			p.start(node)
		}
	}
	for n := 0; n < p.o.nodes; sleep(p.ctx, 20*time.Millisecond) {
		n = 0
		for _, err := range p.c.FindAll(p.ctx, rocl.Match{rocl.AttrKind: "node"}) {
			if errors.Is(err, rocl.ErrPartial) { // they are meeting
				n = 0
				break
			}
			check(err)
			n++
		}
	}
}

// datagram is about the size of a question between nodes, and of its answer.
const datagram = 128

// datagrams is the bare loop of finds between nodes.
func datagrams(p *pair) loop {
	wait := blocks
	if p.Poll == "always" {
		wait = polls
	}
	f, port := newUDP()
	p.hangUp(p.ctx, f)
	f.connect(must(strconv.Atoi(p.ask(p.peer, "udp", port, int(wait)))), wait)
	p.wires["echo-udp"] = newRaw(f, datagram, datagram, 0)
	return bareTrips("echo-udp")(p)
}

// findsNone is a loop of finds of a resource that does not exist.
func findsNone(p *pair) loop {
	return func(n int, t *times) {
		t.round(n, func() {
			if f, err := p.c.Find(p.ctx, rocl.Match{"node": "none"}); !errors.Is(err, rocl.ErrNotFound) {
				check(fmt.Errorf("%v is found, but no node has it: %w", f.ID, err))
			}
		})
	}
}

func findsOfNodes(p *pair, r *Result, t []*times) []*Result {
	if p.o.nodes > 2 || p.o.sealed {
		r.Limits = nil
	}
	no := *r
	no.Bench, no.What, no.Limits, no.Allocs = "no", "a find of what another node has", []Limit{atMost("ratio", 3)}, 0
	no.compare(t[2], t[1])
	return []*Result{&no}
}
