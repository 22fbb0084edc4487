// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
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
	"github.com/rocl-go/rocl/internal/index"
	"github.com/rocl-go/rocl/resource"
)

func overTCP(o *options) { o.transport = "tcp" }

func findPeer(p *pair) loop {
	return func(n int, t *times) error {
		return t.round(n, func() error {
			_, err := p.c.Find(p.ctx, rocl.Match{"bench": "peer"})
			return err
		})
	}
}

// Finds in place: another process serves the node's directory with many resources, and this process
// reads the directory's index in shared memory.

// errAsked is returned when an answer did not come from the index.
var errAsked = errors.New("the directory was asked")

// findInPlace measures finds of one resource among many, each by an attribute that no other
// resource has. It measures them with the directory's client, which is the cost of the index, and
// with a context, as a program finds.
func findInPlace(p *pair, c *comparison) ([]*Result, error) {
	bytesEach, err := p.ask(p.peer, "fill", p.o.resources)
	if err != nil {
		return nil, err
	}
	client, err := directory.Join(p.ctx, directory.DialSocket(p.sock()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	bare := make(map[string]int, p.o.resources)
	for i := range p.o.resources {
		bare[nameOf(i)] = i
	}
	var l resource.List
	name := []byte(nameOf(0))
	pick := func() error {
		name = appendName(name[:0], mathrand.IntN(p.o.resources))
		l.Reset()
		return l.Add("name", name)
	}
	inMap := func() error {
		_ = pick()
		if _, ok := bare[string(name)]; !ok {
			return rocl.ErrNotFound
		}
		return nil
	}
	byClient := func() error {
		_ = pick()
		_, err := client.Find(p.ctx, &l)
		return err
	}
	byContext := func() error {
		_ = pick()
		_, err := p.c.Find(p.ctx, &l)
		return err
	}
	for end := time.Now().Add(time.Minute); p.c.Stats().Mapped == 0 || client.Stats().Mapped == 0; {
		if err := errors.Join(byClient(), byContext()); err != nil {
			return nil, err
		}
		if time.Now().After(end) {
			return nil, errAsked
		}
	}
	for range 3 { // touches the pages of the index
		if err := newTimes().batch(p.ctx, p.o.resources, byClient); err != nil {
			return nil, err
		}
	}
	asked := client.Stats().Asked
	socket := p.trips("echo-unix", p.bare("echo-unix"))
	t, err := measure(p.o.rounds, p.o.count, batched(p.ctx, pick), batched(p.ctx, inMap), batched(p.ctx, byContext), batched(p.ctx, byClient),
		func(n int, t *times) error { return socket(min(n, 1000), t) })
	if err == nil && asked != client.Stats().Asked {
		err = errAsked
	}
	if err != nil {
		return nil, err
	}
	r := p.result(c, t[3], limit(1))
	r.Transport, r.Poll = "", ""
	r.Extra = fmt.Sprintf("by a context p50 %.2f; a bare Go map of as many p50 %.2f; a bare Unix-socket round trip p50 %.2f; of each but the last %.2f is making up the question; %.0f allocation; the index takes %s bytes a resource beyond its attributes",
		t[2].mid(), t[1].mid(), t[4].mid(), t[0].mid(), r.Allocs, bytesEach)
	return []*Result{r}, nil
}

// findAllMost limits the time of FindAll for each resource, in microseconds.
const findAllMost = 0.3

// findAll measures FindAll of count resources of the node in three ways: by the context that serves
// the directory itself and, with a directory in another process, from its index in shared memory
// and over its socket.
func findAll(p *pair, c *comparison) (rows []*Result, err error) {
	if _, err := p.ask(p.peer, "fill", p.o.count); err != nil {
		return nil, err
	}
	policy, err := policyOf(p.Poll)
	if err != nil {
		return nil, err
	}
	serving, err := rocl.Open(p.ctx, rocl.WithPoll(policy), rocl.WithSocket(filepath.Join(p.Dir, "serving.sock")))
	if err != nil {
		return nil, err
	}
	defer serving.Close()
	bare := make(map[string]rocl.GID, p.o.count)
	for i := range p.o.count {
		r, err := serving.Register(p.ctx, rocl.Attrs{"type": "worker", "site": "porto", "name": nameOf(i), "slot": nameOf(i)})
		if err != nil {
			return nil, err
		}
		bare[nameOf(i)] = r.ID()
	}
	socket, err := rocl.Open(p.ctx, rocl.WithPoll(policy), rocl.WithSocket(p.sock()), rocl.JoinOnly(), icontext.WithoutIndex())
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	for p.c.Stats().Mapped == 0 { // until the context has the index
		if _, err := p.c.Find(p.ctx, rocl.Match{"name": nameOf(0)}); err != nil {
			return nil, err
		}
	}
	ids := make([]rocl.GID, 0, p.o.count)
	const each = 100 // listings of a round
	listings := func(f func() error) loop {
		return func(_ int, t *times) error { return t.round(each, f) }
	}
	list := func(c *rocl.Context) loop {
		return listings(func() error {
			ids = ids[:0]
			for f, err := range c.FindAll(p.ctx, rocl.Match{"type": "worker"}) {
				if err != nil {
					return err
				}
				ids = append(ids, f.ID)
			}
			if len(ids) != p.o.count {
				return fmt.Errorf("%d of %d listed", len(ids), p.o.count)
			}
			return nil
		})
	}
	walk := listings(func() error {
		ids = ids[:0]
		for _, id := range bare {
			ids = append(ids, id)
		}
		return nil
	})
	t, err := measure(p.o.rounds, each, walk, list(serving), list(p.c), list(socket))
	if err != nil {
		return nil, err
	}
	most := findAllMost * float64(p.o.count)
	for i, how := range []string{"serving", "index", "socket"} {
		r := p.result(c, t[i+1], limit(most))
		r.Transport, r.Poll, r.Count, r.What, r.Target = how, "", p.o.count, fmt.Sprintf("the required %.4g µs", most), 1
		r.Extra = fmt.Sprintf("%d resources; a walk of a Go map that copies as many identifiers p50 %.2f; %.0f allocations", p.o.count, t[0].mid(), r.Allocs)
		rows = append(rows, r)
	}
	return rows, nil
}

func nameOf(i int) string { return string(appendName(nil, i)) }

func appendName(b []byte, i int) []byte {
	return strconv.AppendInt(append(b, "resource "...), int64(i), 10)
}

// fill puts n resources of a context that does not exist into the directory's database, and returns
// how many bytes the index takes for each.
func (a *answerer) fill(n int) (bytesEach string, err error) {
	db, owner := a.server.Database(), resource.MakeGID(a.server.Node(), 1<<40, 0)
	sites := []string{"porto", "braga", "lisboa", "faro"}
	own := 0
	var l resource.List
	for i := range n {
		if i%1024 == 0 && a.ctx.Err() != nil {
			return "", context.Cause(a.ctx)
		}
		l.Reset()
		name, site := nameOf(i), sites[i%len(sites)]
		if err := errors.Join(l.AddString("type", "worker"), l.AddString("site", site), l.AddString("name", name), l.AddString("slot", name)); err != nil {
			return "", err
		}
		own += len("typeworkersitenameslot") + len(site) + 2*len(name)
		if _, err := db.Put(owner.WithSerial(uint32(i+1)), owner, &l); err != nil {
			return "", err
		}
	}
	if err := db.MakeIndex(a.ctx, index.DefaultSize); err != nil { // as for the first context that asks for it
		return "", err
	}
	bytesEach = fmt.Sprintf("%.0f", (float64(db.Stats().IndexBytes)-float64(own))/float64(n))
	db.DropIndex()
	return bytesEach, nil
}

// Finds between nodes: each process is a node of its own on the loopback interface. Its one context
// serves the directory, which is a member of one cluster.

// openNodes opens this node, starts the others, and waits until this node sees all of them.
func (p *pair) openNodes() (err error) {
	if p.o.sealed {
		p.Key = filepath.Join(p.Dir, "key")
		if err := os.WriteFile(p.Key, []byte(rand.Text()+"\n"), 0o600); err != nil {
			return err
		}
	}
	node := p.config
	for node.Number = range p.o.nodes {
		node.Dir = filepath.Join(p.Dir, strconv.Itoa(node.Number))
		if err := os.Mkdir(node.Dir, 0o700); err != nil {
			return err
		}
		switch node.Number {
		case 0:
			if err = p.join(node); err == nil {
				var me rocl.Found // the only node yet
				me, err = p.c.Find(p.ctx, rocl.Match{rocl.AttrKind: "node"})
				node.Join = me.Attrs.GetString(rocl.AttrAddr)
			}
		case 1:
			p.peer, err = p.start(node)
			node.Poll = "never" // of all but the two that are measured
		default:
			_, err = p.start(node)
		}
		if err != nil {
			return err
		}
	}
	for {
		n := 0
		for _, err := range p.c.FindAll(p.ctx, rocl.Match{rocl.AttrKind: "node"}) {
			if err != nil {
				return err
			}
			n++
		}
		if n == p.o.nodes {
			return nil
		}
		if err := sleep(p.ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// datagrams is the bare loop of finds between nodes.
func datagrams(p *pair) loop {
	var trips loop
	return func(n int, t *times) error {
		if trips == nil {
			f, port, err := newUDP()
			if err != nil {
				return err
			}
			p.hangUp(p.ctx, f)
			poll := 0
			if p.Poll == "always" {
				poll = 1
			}
			far, err := p.ask(p.peer, "udp", port, poll)
			if err == nil {
				if port, err = strconv.Atoi(far); err == nil {
					err = f.connect(port, poll == 1)
				}
			}
			if err != nil {
				return err
			}
			p.wires["echo-udp"] = f
			trips = p.trips("echo-udp", p.bare("echo-udp"))
		}
		return trips(n, t)
	}
}

func findThere(p *pair) loop {
	there := rocl.Match{"node": "1"}
	return func(n int, t *times) error {
		return t.round(n, func() error {
			_, err := p.c.Find(p.ctx, there)
			return err
		})
	}
}

// findNowhere is a loop of finds of a resource that does not exist.
func findNowhere(p *pair) loop {
	nowhere := rocl.Match{"node": "none"}
	return func(n int, t *times) error {
		return t.round(n, func() error {
			if f, err := p.c.Find(p.ctx, nowhere); !errors.Is(err, rocl.ErrNotFound) {
				return fmt.Errorf("%v is found, but no node has it: %w", f.ID, err)
			}
			return nil
		})
	}
}

func findNodes(p *pair, r *Result, t []*times) []*Result {
	if r.Transport = ""; p.o.nodes > 2 || p.o.sealed {
		r.Target = 0
	}
	no := *r
	no.Bench, no.What, no.Target, no.Allocs = "no", "a find of what another node has", 3, 0
	no.compare(t[2], t[1])
	return []*Result{r, &no}
}
