// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// begin is when the first view of a test is taken.
var begin = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// id returns the identifier of a resource of a context of node 1, or of the context for serial 0.
func id(context, serial int) rocl.GID { return resource.MakeGID(1, uint64(context), uint32(serial)) }

// A part changes a context of a test.
type part func(c *observe.Context)

// process returns a context whose process has the number 100 times its own.
func process(number int, program string, parts ...part) observe.Context {
	c := observe.Context{Snapshot: rocl.Snapshot{Version: rocl.SnapshotVersion, Context: id(number, 0), PID: 100 * number, Program: program}}
	for _, p := range parts {
		p(&c)
	}
	return c
}

func silent(c *observe.Context) { c.Silent = "no answer" }

// has gives the context a resource with the next serial.
func has(name string, parts ...func(r *rocl.ResourceSnapshot)) part {
	return func(c *observe.Context) {
		r := rocl.ResourceSnapshot{Name: name}
		r.Resource = c.Context.WithSerial(uint32(len(c.Resources) + 1))
		for _, p := range parts {
			p(&r)
		}
		c.Resources = append(c.Resources, r)
	}
}

func holds(messages int) func(r *rocl.ResourceSnapshot) {
	return func(r *rocl.ResourceSnapshot) { r.Messages, r.Bytes = messages, uint64(messages) }
}

func receives(tags []uint64, from ...rocl.GID) func(r *rocl.ResourceSnapshot) {
	return func(r *rocl.ResourceSnapshot) {
		r.Waits = append(r.Waits, dispatch.ReceiverSnapshot{Number: uint64(r.Resource.Serial())<<8 + uint64(len(r.Waits)), From: from, Tags: tags})
	}
}

func handles(name string, running int, oldest time.Duration) func(r *rocl.ResourceSnapshot) {
	return func(r *rocl.ResourceSnapshot) {
		r.Handlers = append(r.Handlers, rocl.HandlerSnapshot{Name: name, Running: running, Oldest: oldest})
	}
}

func calls(from int, to rocl.GID, name string) part {
	return func(c *observe.Context) {
		c.Calls = append(c.Calls, dispatch.CallSnapshot{Number: uint64(len(c.Calls)), From: c.Context.WithSerial(uint32(from)), To: to, Name: name})
	}
}

func sends(from int, to rocl.GID) part {
	return func(c *observe.Context) {
		c.Sends = append(c.Sends, dispatch.SendSnapshot{Number: uint64(len(c.Sends)), From: c.Context.WithSerial(uint32(from)), To: to})
	}
}

func dials(to int, why string) part {
	return func(c *observe.Context) {
		c.Links = append(c.Links, dispatch.LinkSnapshot{Route: dispatch.Route{Peer: id(to, 0), Dialling: why}, State: "dialling"})
	}
}

// viewed returns an Observer that has seen the contexts twice, with 12 seconds between.
func viewed(contexts ...observe.Context) *observe.Observer {
	var o observe.Observer
	for _, at := range []time.Duration{0, 12 * time.Second} {
		v := &observe.View{Taken: begin.Add(at), Contexts: contexts, Nodes: []observe.Node{{ID: 1, Name: "alpha"}}}
		v.Clean()
		o.Add(v)
	}
	return &o
}

// text returns chains as the command prints them.
func text(chains []observe.Chain) string {
	var b strings.Builder
	for _, c := range chains {
		for i, s := range c.Steps {
			fmt.Fprintf(&b, "%d %s\n", i+1, s.Text)
			if i == 0 && c.More > 0 {
				fmt.Fprintf(&b, "  and %d more\n", c.More)
			}
		}
		fmt.Fprintf(&b, "  %s\n", c.End)
	}
	return b.String()
}

// The tables of TestWaits: contexts, and what Waits says of them.
var waitsTests = []struct {
	name     string
	contexts []observe.Context
	want     string
}{
	{"nothing", nil, ""},
	{"a server without work", []observe.Context{process(1, "idle", has("name=idle", receives(nil)))}, ""},
	{"a call to a stopped process", []observe.Context{
		process(1, "client", has("rpc=client"), calls(1, id(2, 1), "lookup")),
		process(2, "", silent),
	}, `1 process 100 (client) calls lookup of 000000000001-2-1 in process 200
  process 200 has not answered for 12s
`},
	{"messages that no receive selects", []observe.Context{
		process(1, "shard", has("name=shard", holds(300), receives([]uint64{7}))),
	}, `1 messages wait at name=shard in process 100 (shard)
  nobody receives: 300 messages wait, the only receive selects tag 7
`},
	{"messages that several receives do not select", []observe.Context{
		process(1, "shard", has("name=shard", holds(1), receives([]uint64{7, 8, 9, 10, 11, 12}), receives(nil, id(1, 2), id(1, 3))), has("name=sink")),
	}, `1 name=shard in process 100 (shard): nobody receives: 1 message waits, none of 2 receives selects one: the first selects tag 7, 8, 9, 10 and 2 more
2 maybe process 100 (shard) receives at name=shard from name=sink in process 100 (shard)
  process 100 (shard) sends nothing to it
`},
	{"sends to a mailbox that nobody reads", []observe.Context{
		process(1, "source", has(""), sends(1, id(3, 1)), sends(1, id(3, 1))),
		process(2, "source", has(""), sends(1, id(3, 1))),
		process(3, "sink", has("name=sink", holds(9))),
	}, `1 process 100 (source) sends to name=sink in process 300 (sink), and waits for room
  and 2 more
  name=sink in process 300 (sink): nobody receives: 9 messages wait
`},
	{"a handler that takes long", []observe.Context{
		process(1, "client", has("rpc=client"), calls(1, id(2, 1), "lookup")),
		process(2, "shard", has("name=shard", handles("lookup", 1, 11*time.Second), handles("store", 0, 0), receives(nil))),
	}, `1 process 100 (client) calls lookup of name=shard in process 200 (shard)
  name=shard in process 200 (shard): a handler runs (lookup) for 11s
`},
	{"handlers that take long", []observe.Context{
		process(1, "client", has("rpc=client"), calls(1, id(2, 1), "lookup")),
		process(2, "shard", has("name=shard", holds(2), handles("lookup", 2, 0), handles("store", 1, 0))),
	}, `1 process 100 (client) calls lookup of name=shard in process 200 (shard)
  name=shard in process 200 (shard): 3 handlers run (lookup), and 2 messages wait
`},
	{"a handler that calls a stopped process", []observe.Context{
		process(1, "client", has("rpc=client"), calls(1, id(2, 1), "lookup")),
		process(2, "shard", has("name=shard", handles("lookup", 1, 11*time.Second)), has("rpc=client"), calls(2, id(3, 1), "read")),
		process(3, "", silent),
	}, `1 process 100 (client) calls lookup of name=shard in process 200 (shard)
2 name=shard in process 200 (shard): a handler runs (lookup) for 11s
3 maybe process 200 (shard) calls read of 000000000001-3-1 in process 300
  process 300 has not answered for 12s
`},
	{"a request without a reply", []observe.Context{
		process(1, "client", has(""), calls(1, id(2, 1), ""), calls(1, id(2, 2), "")),
		process(2, "server", has("name=a"), has("name=b", receives(nil))),
	}, `1 process 100 (client) calls name=a in process 200 (server)
  name=a in process 200 (server): it has received the request, and has not replied
1 process 100 (client) calls name=b in process 200 (server)
  name=b in process 200 (server): it has received the request, receives again, and has not replied
`},
	{"two servers that call each other", []observe.Context{
		process(1, "client", has("rpc=client"), calls(1, id(2, 1), "f")),
		process(2, "a", has("name=a", holds(1), handles("f", 1, 11*time.Second)), calls(1, id(3, 1), "g")),
		process(3, "b", has("name=b", handles("g", 1, 11*time.Second)), has("rpc=client"), calls(2, id(2, 1), "h")),
	}, `1 process 100 (client) calls f of name=a in process 200 (a)
2 name=a in process 200 (a): a handler runs (f) for 11s, and 1 message waits
3 process 200 (a) calls g of name=b in process 300 (b)
4 name=b in process 300 (b): a handler runs (g) for 11s
5 maybe process 300 (b) calls h of name=a in process 200 (a)
  the last 4 steps wait for each other
`},
	{"a handler that calls itself", []observe.Context{
		process(1, "alone", has("name=alone", holds(1), handles("", 1, 0)), calls(1, id(1, 1), "")),
	}, `1 process 100 (alone) calls name=alone in process 100 (alone)
2 name=alone in process 100 (alone): a handler runs, and 1 message waits
  the last 2 steps wait for each other
`},
	{"receives that wait for each other", []observe.Context{
		process(1, "a", has("name=a", receives(nil, id(2, 1)))),
		process(2, "b", has("name=b", receives(nil, id(1, 1)))),
	}, `1 process 100 (a) receives at name=a from name=b in process 200 (b)
2 maybe process 200 (b) receives at name=b from name=a in process 100 (a)
  the last 2 steps wait for each other
`},
	{"receives from what sends nothing", []observe.Context{
		process(1, "a", has("name=a", receives(nil, id(2, 1)), receives(nil, id(2, 7)), receives(nil, id(3, 0)), receives(nil, id(4, 0)))),
		process(2, "b", has("name=b")), process(3, "c", has(""), calls(1, id(2, 9), "")),
	}, `1 process 100 (a) receives at name=a from name=b in process 200 (b)
  process 200 (b) sends nothing to it
1 process 100 (a) receives at name=a from 000000000001-2-7 in process 200 (b)
  000000000001-2-7 no longer exists
1 process 100 (a) receives at name=a from process 300 (c)
2 maybe process 300 (c) calls 000000000001-2-9 in process 200 (b)
  000000000001-2-9 no longer exists
1 process 100 (a) receives at name=a from context 000000000001-4-0
  000000000001-4-0 no longer exists
`},
	{"a link that dials", []observe.Context{
		process(1, "a", has("name=a"), dials(2, "dial tcp 10.0.0.2:99: connection refused"), sends(1, id(2, 1))),
		process(2, "b", has("name=b")),
	}, `1 process 100 (a) sends to name=b in process 200 (b), and waits for room
  no connection from process 100 (a) to process 200 (b): dial tcp 10.0.0.2:99: connection refused
`},
	{"a node that was not asked", []observe.Context{
		process(1, "a", has("name=a"), calls(1, resource.MakeGID(2, 5, 1), "")),
	}, `1 process 100 (a) calls 000000000002-5-1 in context 000000000002-5-0
  node 000000000002 was not asked
`},
	{"a part of the resources", []observe.Context{
		process(1, "a", has("name=a"), calls(1, id(2, 1), "")),
		process(2, "b", func(c *observe.Context) { c.Cut = map[string]int{"resources": 9} }),
	}, `1 process 100 (a) calls 000000000001-2-1 in process 200 (b)
  process 200 (b) has told a part of its resources only
`},
	{"hostile texts", []observe.Context{
		process(1, "<b>\x1b[31m", has("a=\u202eb\nc", holds(-4)), calls(1, id(2, 1), strings.Repeat("x", 1<<20))),
		process(2, "b", has("name=b", holds(math.MaxInt), handles("\x00", math.MinInt, -1), handles("", math.MaxInt, math.MaxInt64), handles("", math.MaxInt, math.MaxInt64))),
	}, `1 process 100 (<b>\x1b[31m) calls ` + strings.Repeat("x", 512) + `… of name=b in process 200 (b)
  name=b in process 200 (b): 72057594037927936 handlers run for 20015h59m54s, and 72057594037927936 messages wait
`},
}

// Waits says in words what each wait waits for, and in what it ends: a process that does not
// answer, a mailbox that is not read, a handler, a link without a connection, or a cycle.
//
// Promise (Observing): A cycle of calls, sends and receives is found across processes.
func TestWaits(t *testing.T) {
	for _, test := range waitsTests {
		try.Equal(t, text(viewed(test.contexts...).Waits(time.Second)), test.want, "%s", test.name)
	}
}

// What has not waited for long is not the beginning of a chain, but may be in one.
func TestWaitsOfSomeTime(t *testing.T) {
	var o observe.Observer
	old := process(1, "client", has(""), calls(1, id(2, 1), "old"))
	young := process(2, "server", has("name=server", handles("", 1, 0)), calls(1, id(3, 1), "young"))
	silent := process(3, "", silent)
	for i, contexts := range [][]observe.Context{{old, silent}, {old, young, silent}} {
		o.Add(&observe.View{Taken: begin.Add(time.Duration(i) * time.Second), Contexts: contexts})
	}
	chains := o.Waits(time.Second)
	if len(chains) != 1 || len(chains[0].Steps) != 3 || chains[0].Age != time.Second || chains[0].Steps[2].Age != 0 || chains[0].End != "process 300 has not answered for 1s" {
		t.Errorf("%+v", chains)
	}
	try.Equal(t, len(o.Waits(2*time.Second)), 0, "waits of two seconds")
	try.Equal(t, len(o.Waits(0, id(9, 1))), 0, "waits of another resource")
	try.Equal(t, len(o.Waits(0, id(2, 1))), 1, "waits with a server")
	try.Equal(t, len(o.Waits(0, id(3, 0))), 1, "waits with a process")
}

// The waits of 10,000 clients are one chain, and a long one has few steps.
func TestManyWaits(t *testing.T) {
	const clients = 10_000
	for _, c := range []struct {
		servers int
		end     string
	}{{300, "process 1030100 has not answered for 12s (569 steps are left out)"}, {3000, "further waits (968 steps are left out)"}} {
		var all []observe.Context
		for i := range clients {
			all = append(all, process(i+1, "client", has(""), calls(1, id(clients+1, 1), "f")))
		}
		for i := range c.servers {
			all = append(all, process(clients+i+1, "server", has("", handles("f", 1, 0)), calls(1, id(clients+i+2, 1), "f")))
		}
		all = append(all, process(clients+c.servers+1, "", silent))
		chains := viewed(all...).Waits(time.Second)
		try.Equal(t, chains[0].More, clients-1, "clients more")
		try.Equal(t, len(chains[0].Steps), 32, "steps")
		try.Equal(t, chains[0].End, c.end)
	}
}

func BenchmarkWaits(b *testing.B) {
	var all []observe.Context
	for i := range 10_000 {
		all = append(all, process(i+1, "client", has("", handles("f", 1, 0)), calls(1, id(i/10+1, 1), "f")))
	}
	o := viewed(all...)
	for b.Loop() {
		o.Waits(time.Second)
	}
}
