// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
)

// shown returns what a snapshot has of a resource.
func shown(t testing.TB, s rocl.Snapshot, id rocl.GID) rocl.ResourceSnapshot {
	t.Helper()
	for _, r := range s.Resources {
		if r.Resource == id {
			return r
		}
	}
	t.Fatalf("%v is not in the snapshot", id)
	return rocl.ResourceSnapshot{}
}

// Promise (Observing): Messages that were acknowledged and lie unread show in the snapshot of their
// context, which any context of the node can ask for.
func TestUnreadMessagesShow(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b, looker := open(), open(), open()
		from, to := newResource(t, a, nil), newResource(t, b, rocl.Attrs{"type": "shard"})
		for range 300 {
			send(t, from, to.ID(), "unread")
		}
		try.OK(t, from.Flush(bg))
		s := try.Get(looker.SnapshotOf(bg, b.ID()))(t)
		r := shown(t, s, to.ID())
		if r.Messages != 300 || r.Bytes != 300*70 || r.Arrived != r.Bytes || r.Received != 0 || r.First.From != from.ID() || r.First.Bytes != 6 || r.Name != "type=shard" {
			t.Errorf("300 messages show as %+v", r)
		}
		if s.Context != b.ID() || s.PID == 0 || s.Program == "" || s.Rocl == "" || s.Started.IsZero() || s.Taken.Before(s.Started) || s.Stats.Links == 0 {
			t.Errorf("of the context: %+v", s)
		}
		for range 300 {
			recv(t, to).Release()
		}
		if r = shown(t, b.Snapshot(), to.ID()); r.Messages != 0 || r.Received != r.Arrived {
			t.Errorf("when all is received: %+v", r)
		}
	})
}

// Promise (Observing): The functions of Handle that run show at their resource, with how many have
// returned and panicked.
func TestHandlersShow(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	c := cl.Open(0)
	r := newResource(t, c, nil)
	release := make(chan struct{})
	ctx, end := context.WithCancel(bg)
	handled := make(chan error, 1)
	go func() {
		handled <- r.Handle(ctx, func(m *rocl.Message) {
			switch m.Tag() {
			case 1:
				<-release
			case 2:
				panic("a test")
			}
		}, rocl.Workers(4), rocl.OnPanic(func(*rocl.Message, any) {}))
	}()
	for _, tag := range []uint64{1, 1, 2, 3, 3} {
		try.OK(t, r.SendBytes(bg, r.ID(), tag, nil))
	}
	want := rocl.HandlerSnapshot{Running: 2, Ended: 3, Errors: 1}
	eventually.True(t, "two handlers run, and three have ended", func() bool {
		h := shown(t, c.Snapshot(), r.ID()).Handlers
		return len(h) == 1 && reflect.DeepEqual(h[0], want)
	})
	close(release)
	eventually.True(t, "no handler runs", func() bool { return shown(t, c.Snapshot(), r.ID()).Handlers[0].Running == 0 })
	end()
	try.OK(t, <-handled)
}

// Promise (Observing): A layer tells what its handlers do and how its calls are called.
func TestActivityShows(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	c := cl.Open(0)
	r, server := newResource(t, c, nil), newResource(t, c, nil)
	h := rocl.HandlerSnapshot{Name: "render", Running: 1, Oldest: time.Minute}
	r.SetActivity(rocl.Activity{
		Handlers: func() []rocl.HandlerSnapshot { return []rocl.HandlerSnapshot{h, {Name: "worn", Running: -5}} },
		CallName: func(tag uint64) string { return fmt.Sprint("call ", tag) },
	})
	p := try.Get(r.StartCallBytes(bg, server.ID(), 7, nil))(t)
	s := c.Snapshot()
	if all := shown(t, s, r.ID()).Handlers; len(all) != 2 || !reflect.DeepEqual(all[0], h) || all[1].Running != 0 {
		t.Errorf("the handlers show as %+v", all)
	}
	if len(s.Calls) != 1 || s.Calls[0].Name != "call 7" || s.Calls[0].To != server.ID() {
		t.Errorf("the call shows as %+v", s.Calls)
	}
	p.Cancel(nil)
	_, _ = p.Wait(bg)
	r.SetActivity(rocl.Activity{})
	if all := shown(t, c.Snapshot(), r.ID()).Handlers; len(all) != 0 {
		t.Errorf("without an activity: %+v", all)
	}
	try.OK(t, r.Delete(bg))
	r.SetActivity(rocl.Activity{}) // of a deleted resource: nothing keeps it
	try.Equal(t, rocl.ActiveResources(c), 0)
}

// Names are short and safe to show, whatever the attributes are.
func TestNamesOfResources(t *testing.T) {
	for _, x := range []struct {
		attrs []string
		want  string
	}{
		{nil, ""},
		{[]string{"type", "shard", "id", "2"}, "type=shard id=2"},
		{[]string{"rocl.over", "tcp", "type", "shard"}, "type=shard"},
		{[]string{"text", "a b=c"}, `text="a b=c"`},
		{[]string{"text", "a\x1b[2J\u202e\n"}, `text="a\x1b[2J\u202e\n"`},
		{[]string{"text", strings.Repeat("x", 1<<20)}, "text=" + strings.Repeat("x", 58) + "…"},
		{[]string{"text", strings.Repeat("\xff", 100)}, `text="` + strings.Repeat(`\xff`, 14) + `\…`},
	} {
		l := new(rocl.List)
		for i := 0; i < len(x.attrs); i += 2 {
			try.OK(t, l.AddString(x.attrs[i], x.attrs[i+1]))
		}
		try.Equal(t, rocl.NameOf(l), x.want)
	}
}

// many returns a snapshot of a context with n resources, the last of which has a message.
func many(id rocl.GID, n int) rocl.Snapshot {
	s := rocl.Snapshot{Version: rocl.SnapshotVersion, Context: id, Stats: rocl.Stats{Questions: 1}}
	for i := range n {
		r := rocl.ResourceSnapshot{Name: fmt.Sprintf("name=%060d", i*i)}
		r.Resource = id.WithSerial(uint32(i + 1))
		s.Resources = append(s.Resources, r)
		s.Links = append(s.Links, dispatch.LinkSnapshot{LastError: fmt.Sprint("error ", i*i*i)})
	}
	if n > 0 {
		s.Resources[0].Messages = int(id.Ctx())
	}
	return s
}

// A snapshot and a summary have at most the bytes that are asked for, and say what is missing.
func TestSnapshotsFit(t *testing.T) {
	s := many(resource.MakeGID(1, 1, 0), 1000)
	b := try.Get(rocl.EncodeSnapshot(&s, 20_000))(t)
	if len(b) > 20_000 || len(b) < 10_000 || s.Cut["resources"] != 1000-len(s.Resources) || s.Cut["links"] != 1000-len(s.Links) {
		t.Errorf("%d bytes with %d resources and %d links; %v are missing", len(b), len(s.Resources), len(s.Links), s.Cut)
	}
	sum := rocl.NodeSummary{Version: rocl.SnapshotVersion, Node: 1, Cut: map[string]int{}}
	for i := range 1000 {
		sum.Contexts = append(sum.Contexts, many(resource.MakeGID(1, uint64(i*7919%1000+1), 0), 5))
		sum.Silent = append(sum.Silent, resource.MakeGID(1, uint64(i+2000), 0))
	}
	b = try.Get(rocl.EncodeSummary(&sum))(t)
	got := try.Get(rocl.DecodeSummary(b))(t)
	if len(b) > directory.MaxSummary || len(got.Contexts) < 100 || len(got.Contexts)+got.Cut["contexts"] != 1000 || len(got.Silent)+got.Cut["silent"] != 1000 {
		t.Errorf("%d bytes with %d contexts and %d silent ones; %v are missing", len(b), len(got.Contexts), len(got.Silent), got.Cut)
	}
	for i, c := range got.Contexts {
		if c.Context.Ctx() != uint64(1000-i) {
			t.Fatalf("the context number %d of the summary is %v", i, c.Context)
		}
	}
}

// A context may be asked as soon as it is registered, before Open has returned.
func TestAskedWhileItOpens(t *testing.T) {
	const n = 20
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		looker := open()
		ctx := eventually.Context(t)
		var asker sync.WaitGroup
		defer asker.Wait()
		asker.Go(func() {
			seen := map[rocl.GID]bool{looker.ID(): true}
			for len(seen) < n+1 {
				for f, err := range looker.FindAll(ctx, rocl.Match{rocl.AttrKind: "context"}) {
					if err == nil && !seen[f.ID] {
						seen[f.ID] = true
						_, err = looker.SnapshotOf(ctx, f.ID)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
		for range n {
			open()
		}
	})
}

// Promise (Observing): A context or a node that lies gives its asker an error, or values that do no
// harm.
func TestSnapshotsThatLie(t *testing.T) {
	zip := func(text string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write([]byte(text))
		try.OK(t, errors.Join(err, z.Close()))
		return b.Bytes()
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "no gzip": []byte("{}"), "no JSON": zip("hello"), "another version": zip(`{"version":2}`), "no version": zip(`{}`),
		"text for a number": zip(`{"version":1,"contexts":[{"pid":"1"}]}`), "a huge number": zip(`{"version":1,"contexts":[{"pid":1e300}]}`),
		"endless text":      zip(`{"version":1,"x":"` + strings.Repeat("x", 4<<20) + `"}`),
		"endless lists":     zip(`{"version":1,"contexts":[` + strings.Repeat(`{},`, 1<<18) + `{}]}`),
		"endless depth":     zip(`{"version":1,"x":` + strings.Repeat("[", 1<<18)),
		"a truncated value": zip(`{"version":1,"contexts":[{"context":"00`),
	} {
		if s, err := rocl.DecodeSummary(b); err == nil {
			t.Errorf("%s: %d contexts", name, len(s.Contexts))
		}
	}
	s := try.Get(rocl.DecodeSummary(zip(`{"version":1,"contexts":[{"pid":-1,"program":"\u001b[2J\u202e` + strings.Repeat("é", 1000) + `",
		"resources":[{"messages":-5,"name":"\u0007","handlers":[{"running":-1,"oldest":-7}]}],"cut":{"\u0000":-1},"links":[{"queued":-9}]}]}`)))(t)
	c := s.Contexts[0]
	if c.PID != 0 || !strings.HasPrefix(c.Program, `\x1b[2J\u202eé`) || len(c.Program) > 1000 || c.Resources[0].Messages != 0 || c.Resources[0].Name != `\a` ||
		!reflect.DeepEqual(c.Resources[0].Handlers[0], rocl.HandlerSnapshot{}) || c.Links[0].Queued != 0 || fmt.Sprint(c.Cut) != `map[\x00:0]` {
		t.Errorf("%+v", c)
	}
}

// Promise (Observing): Each node of a cluster gives others a summary of its contexts, with what
// waits there, and names the contexts that do not answer.
func TestSummaries(t *testing.T) {
	dir := filepath.Dir(freeaddr.Socket(t))
	var all []*rocl.Context
	first := ""
	for n := range 3 {
		m := cluster.Member{Bind: "127.0.0.1:0"}
		if n > 0 {
			m.Join = []string{first}
		}
		c := try.Get(rocl.Open(eventually.Context(t), rocl.WithSocket(filepath.Join(dir, fmt.Sprint(n))), rocl.WithMember(m)))(t)
		t.Cleanup(func() { c.Close() })
		if n == 0 {
			node := try.Get(c.Lookup(bg, resource.MakeGID(c.ID().Node(), 0, 0)))(t)
			first = node.Attrs.GetString(rocl.AttrAddr)
		}
		all = append(all, c)
	}
	r := newResource(t, all[2], rocl.Attrs{"type": "shard"})
	other := try.Get(rocl.Open(bg, rocl.WithSocket(filepath.Join(dir, "2"))))(t)
	defer other.Close()
	for range 3 {
		send(t, newResource(t, other, nil), r.ID(), "unread")
	}
	silent := try.Get(directory.Join(bg, directory.DialSocket(filepath.Join(dir, "2"))))(t) // nothing listens at its address
	defer silent.Close()
	attrs := new(rocl.List)
	try.OK(t, errors.Join(attrs.AddString(rocl.AttrKind, "context"), attrs.AddString(rocl.AttrAddr, "tcp://127.0.0.1:1")))
	try.Get(silent.Register(bg, silent.Self(), attrs))(t)
	eventually.True(t, "summaries of three nodes", func() bool {
		got := map[resource.NodeID]rocl.NodeSummary{}
		for s, err := range all[0].Summaries(eventually.Context(t)) {
			if err == nil {
				got[s.Node] = s
			}
		}
		of := func(c *rocl.Context) rocl.NodeSummary { return got[c.ID().Node()] }
		if len(got) < 3 || len(of(all[0]).Contexts) != 1 || len(of(all[1]).Contexts) != 1 || len(of(all[2]).Contexts) != 2 {
			return false
		}
		s := of(all[2])
		if w := shown(t, s.Contexts[0], r.ID()); w.Messages != 3 || w.Name != "type=shard" {
			t.Errorf("the resource shows as %+v", w)
		}
		if len(s.Silent) != 1 || s.Silent[0] != silent.Self() {
			t.Errorf("silent are %v", s.Silent)
		}
		return true
	})
	for range all[0].Summaries(eventually.Context(t)) { // the loop may end early
		break
	}
}

// A node in memory makes no summary, and says so.
func TestNoSummary(t *testing.T) {
	c := rocltest.Cluster(t, 2).Open(0)
	nodes := 0
	for s, err := range c.Summaries(bg) {
		if nodes++; !errors.Is(err, rocl.ErrNoSummary) || s.Node == 0 {
			t.Errorf("node %v: %v", s.Node, err)
		}
	}
	try.Equal(t, nodes, 2)
}

// BenchmarkBesideSnapshots tells what ten snapshots a second cost those that send and receive.
func BenchmarkBesideSnapshots(b *testing.B) {
	for _, looks := range []bool{false, true} {
		b.Run(fmt.Sprintf("looks=%v", looks), func(b *testing.B) {
			cl := rocltest.Cluster(b, 1)
			one, two, looker := cl.Open(0), cl.Open(0), cl.Open(0)
			from, to := try.Get(one.Register(bg, nil))(b), try.Get(two.Register(bg, nil))(b)
			ctx, end := context.WithCancel(bg)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for t := time.NewTicker(100 * time.Millisecond); looks; {
					select {
					case <-t.C:
						for _, c := range []*rocl.Context{one, two} {
							if _, err := looker.SnapshotOf(bg, c.ID()); err != nil {
								b.Error(err)
							}
						}
					case <-ctx.Done():
						t.Stop()
						return
					}
				}
			}()
			go func() {
				for range b.N {
					if err := from.SendBytes(bg, to.ID(), 1, []byte("hello")); err != nil {
						b.Error(err)
					}
				}
			}()
			b.ResetTimer()
			for range b.N {
				m, err := to.Recv(bg)
				if err != nil {
					b.Fatal(err)
				}
				m.Release()
			}
			b.StopTimer()
			end()
			<-ended
		})
	}
}
