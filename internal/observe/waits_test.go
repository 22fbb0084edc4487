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
	}, ``},
	{"messages that no receive selects", []observe.Context{
		process(1, "shard", has("name=shard", holds(300), receives([]uint64{7}))),
	}, ``},
	{"messages that several receives do not select", []observe.Context{
		process(1, "shard", has("name=shard", holds(1), receives([]uint64{7, 8, 9, 10, 11, 12}), receives(nil, id(1, 2), id(1, 3))), has("name=sink")),
	}, ``},
	{"sends to a mailbox that nobody reads", []observe.Context{
		process(1, "source", has(""), sends(1, id(3, 1)), sends(1, id(3, 1))),
		process(2, "source", has(""), sends(1, id(3, 1))),
		process(3, "sink", has("name=sink", holds(9))),
	}, ``},
	{"a handler that takes long", []observe.Context{
		process(1, "client", has("rpc=client"), calls(1, id(2, 1), "lookup")),
		process(2, "shard", has("name=shard", handles("lookup", 1, 11*time.Second), handles("store", 0, 0), receives(nil))),
	}, ``},
	{"handlers that take long", []observe.Context{
		process(1, "client", has("rpc=client"), calls(1, id(2, 1), "lookup")),
		process(2, "shard", has("name=shard", holds(2), handles("lookup", 2, 0), handles("store", 1, 0))),
	}, ``},
	{"a handler that calls a stopped process", []observe.Context{
		process(1, "client", has("rpc=client"), calls(1, id(2, 1), "lookup")),
		process(2, "shard", has("name=shard", handles("lookup", 1, 11*time.Second)), has("rpc=client"), calls(2, id(3, 1), "read")),
		process(3, "", silent),
	}, ``},
	{"a request without a reply", []observe.Context{
		process(1, "client", has(""), calls(1, id(2, 1), ""), calls(1, id(2, 2), "")),
		process(2, "server", has("name=a"), has("name=b", receives(nil))),
	}, ``},
	{"two servers that call each other", []observe.Context{
		process(1, "client", has("rpc=client"), calls(1, id(2, 1), "f")),
		process(2, "a", has("name=a", holds(1), handles("f", 1, 11*time.Second)), calls(1, id(3, 1), "g")),
		process(3, "b", has("name=b", handles("g", 1, 11*time.Second)), has("rpc=client"), calls(2, id(2, 1), "h")),
	}, ``},
	{"a handler that calls itself", []observe.Context{
		process(1, "alone", has("name=alone", holds(1), handles("", 1, 0)), calls(1, id(1, 1), "")),
	}, ``},
	{"receives that wait for each other", []observe.Context{
		process(1, "a", has("name=a", receives(nil, id(2, 1)))),
		process(2, "b", has("name=b", receives(nil, id(1, 1)))),
	}, ``},
	{"receives from what sends nothing", []observe.Context{
		process(1, "a", has("name=a", receives(nil, id(2, 1)), receives(nil, id(2, 7)), receives(nil, id(3, 0)), receives(nil, id(4, 0)))),
		process(2, "b", has("name=b")), process(3, "c", has(""), calls(1, id(2, 9), "")),
	}, ``},
	{"a link that dials", []observe.Context{
		process(1, "a", has("name=a"), dials(2, "dial tcp 10.0.0.2:99: connection refused"), sends(1, id(2, 1))),
		process(2, "b", has("name=b")),
	}, ``},
	{"a node that was not asked", []observe.Context{
		process(1, "a", has("name=a"), calls(1, resource.MakeGID(2, 5, 1), "")),
	}, ``},
	{"a part of the resources", []observe.Context{
		process(1, "a", has("name=a"), calls(1, id(2, 1), "")),
		process(2, "b", func(c *observe.Context) { c.Cut = map[string]int{"resources": 9} }),
	}, ``},
	{"hostile texts", []observe.Context{
		process(1, "<b>\x1b[31m", has("a=\u202eb\nc", holds(-4)), calls(1, id(2, 1), strings.Repeat("x", 1<<20))),
		process(2, "b", has("name=b", holds(math.MaxInt), handles("\x00", math.MinInt, -1), handles("", math.MaxInt, math.MaxInt64), handles("", math.MaxInt, math.MaxInt64))),
	}, ``},
}

// Waits says in words who waits for whom.
func TestWaits(t *testing.T) {
	for _, test := range waitsTests {
		try.Equal(t, text(viewed(test.contexts...).Waits(time.Second)), test.want, "%s", test.name)
	}
	_ = math.MaxInt
}
func TestShow(t *testing.T) {
	for _, test := range waitsTests {
		fmt.Printf("== %s\n%s", test.name, strings.ReplaceAll(text(viewed(test.contexts...).Waits(time.Second)), strings.Repeat("x", 100), "X"))
	}
}
