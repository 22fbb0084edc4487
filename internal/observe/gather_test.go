// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/nice"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"pgregory.net/rapid"
)

// A closed is a transport with a port at which no process listens.
type closed struct{}

func (closed) Name() string                                        { return "closed" }
func (c closed) Listen(string, subsys.Config) (subsys.Port, error) { return c, nil }
func (closed) Addr() string                                        { return "closed://none" }
func (closed) Reaches(string) bool                                 { return false }
func (closed) Dial(context.Context, string, subsys.Sink) (subsys.Conn, error) {
	return nil, subsys.ErrNoPeer
}
func (closed) Close() error { return nil }

// Gather shows what each context of a node tells, but the one that asks. A context that does not
// answer is silent, and the resources of it that others wait for have names.
func TestGather(t *testing.T) {
	ctx, sock := eventually.Context(t), freeaddr.Socket(t)
	s := try.Get(directory.Listen(sock, directory.WithLabels(try.Get(directory.NewLabels(resource.Attrs{"zone": "a"}))(t))))(t)
	t.Cleanup(func() { s.Close() })
	open := func(opts ...rocl.Option) *rocl.Context {
		c := try.Get(rocl.Open(ctx, append(opts, rocl.WithSocket(sock))...))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
	asks, has, other, shut := open(), open(), open(), open(rocl.WithTransports(closed{}))
	sink := try.Get(has.Register(ctx, rocl.Attrs{"name": "sink"}))(t)
	hidden := try.Get(shut.Register(ctx, rocl.Attrs{"name": "hidden", "evil": "\x1b[31m"}))(t)
	from := try.Get(other.Register(ctx, rocl.Attrs{"name": "source"}))(t)
	for range 300 {
		try.OK(t, from.SendBytes(ctx, sink.ID(), 7, nil))
	}
	try.OK(t, from.Flush(ctx))
	received := make(chan struct{})
	rctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(received)
		try.Fails(sink.Recv(rctx, rocl.From(hidden.ID())))(t, context.Canceled)
	}()
	defer func() { cancel(); <-received }()
	var v *observe.View
	eventually.True(t, "the receive is seen, and one context is silent", func() bool {
		v = try.Get(observe.Gather(ctx, asks, false, time.Second))(t)
		silent := 0 // on a busy machine, others may answer too late
		for _, c := range v.Contexts {
			if c.Silent != "" {
				silent++
			}
		}
		return silent == 1 && slices.ContainsFunc(v.Contexts, func(c observe.Context) bool {
			return slices.ContainsFunc(c.Resources, func(r rocl.ResourceSnapshot) bool { return r.Messages == 300 && len(r.Waits) == 1 })
		})
	})
	try.Equal(t, len(v.Contexts), 3, "contexts")
	for _, c := range v.Contexts {
		try.Equal(t, c.PID, os.Getpid(), "process")
		try.Equal(t, c.Program, filepath.Base(os.Args[0]), "program, also of a silent context")
		try.Equal(t, c.Silent == "no answer", c.Context == shut.ID(), "%v is silent: %q", c.Context, c.Silent)
	}
	try.Equal(t, v.Names[hidden.ID()], `evil=\x1b[31m name=hidden`, "the name of a resource of a silent context")
	if len(v.Nodes) != 1 || v.Nodes[0].ID != asks.ID().Node() || !strings.HasSuffix(v.Nodes[0].Name, " zone=a") {
		t.Errorf("nodes: %+v", v.Nodes)
	}
}

// With the cluster, Gather tells what the contexts of other nodes are doing, and a chain of waits
// goes on there. Without, the chain ends at a node that was not asked.
func TestGatherCluster(t *testing.T) {
	nice.Raise(t) // a node that is late for a second is dead
	ctx := eventually.Context(t)
	var sockets, binds []string
	var members []*rocl.Context
	open := func(opts ...rocl.Option) *rocl.Context {
		c := try.Get(rocl.Open(ctx, append(opts, rocl.WithCluster(t.Name()))...))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
	for i := range 2 {
		sockets, binds = append(sockets, freeaddr.Socket(t)), append(binds, try.Get(freeaddr.Loopback())(t))
		members = append(members, open(rocl.WithSocket(sockets[i]), rocl.WithMember(cluster.Member{Bind: binds[i], Join: binds[:i]})))
	}
	far := try.Get(members[1].Register(ctx, rocl.Attrs{"name": "far"}))(t)
	near, asks := try.Get(members[0].Register(ctx, nil))(t), open(rocl.WithSocket(sockets[0]))
	eventually.True(t, "the nodes have met", func() bool {
		_, err := asks.Find(ctx, rocl.Match{"name": "far"})
		return err == nil
	})
	called := make(chan struct{})
	cctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(called)
		try.Fails(near.CallBytes(cctx, far.ID(), 1, nil))(t, context.Canceled)
	}()
	defer func() { cancel(); <-called }()
	for isCluster, end := range map[bool]string{true: " of node .*: nobody receives: 1 message waits", false: fmt.Sprintf("node %012x was not asked", uint64(far.ID().Node()))} {
		eventually.True(t, end, func() bool {
			var o observe.Observer
			o.Add(try.Get(observe.Gather(ctx, asks, isCluster, 5*time.Second))(t))
			chains := o.Waits(0, near.ID())
			return len(chains) == 1 && regexp.MustCompile(end).MatchString(chains[0].End) && strings.Contains(chains[0].Steps[0].Text, "calls name=far in ")
		})
	}
}

// spoil sets what v has to what no honest process tells.
func spoil(t *rapid.T, v reflect.Value) {
	switch p := v.Addr().Interface().(type) {
	case *rocl.GID:
		*p = id(rapid.IntRange(0, 3).Draw(t, "context"), rapid.IntRange(0, 2).Draw(t, "serial"))
		return
	case *time.Time:
		*p = rapid.SampledFrom([]time.Time{{}, begin, time.Unix(1<<40, 0), time.Unix(-1<<40, 0)}).Draw(t, "time")
		return
	}
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.SampledFrom([]int64{math.MinInt, -1, 0, 1, math.MaxInt}).Draw(t, "number"))
	case reflect.Uint64:
		v.SetUint(rapid.SampledFrom([]uint64{0, 1, math.MaxUint64}).Draw(t, "number"))
	case reflect.String:
		v.SetString(rapid.SampledFrom([]string{"", "a", "\x1b]0;owned\a\u202e\r\n\xff", "\x00" + strings.Repeat("é", 600)}).Draw(t, "text"))
	case reflect.Slice:
		n := rapid.IntRange(0, 2).Draw(t, "entries")
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			spoil(t, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		spoil(t, key)
		spoil(t, value)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				spoil(t, v.Field(i))
			}
		}
	}
}

// Whatever contexts tell, and whatever a file of views has: the rows and chains have no character
// that would control a terminal, no negative number and no long text, and are valid JSON.
//
// Promise (Observing): A context that tells negative or huge numbers, long texts or texts with
// control characters breaks no view of the commands.
func TestHostileViews(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o observe.Observer
		for i := range 3 {
			v := &observe.View{}
			spoil(t, reflect.ValueOf(v).Elem())
			v.Taken = begin.Add(time.Duration(i) * time.Second)
			v.Clean()
			o.Add(v)
		}
		for _, rows := range []any{o.Resources(), o.Links(), o.Calls(), o.Contexts(), o.Waits(0)} {
			b := try.Get(json.Marshal(rows))(t)
			if n := len(b); n > 1<<20 {
				t.Errorf("%d bytes", n)
			}
			for _, r := range string(b) {
				if !display.IsSafe(r) {
					t.Errorf("%q in %s", r, b)
					break
				}
			}
			if regexp.MustCompile(`:-\d`).Match(b) {
				t.Errorf("a negative number in %s", b)
			}
		}
	})
}
