// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/election"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/live"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/work"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon returns a context that ends with the test, or after a minute.
func soon(t *testing.T) context.Context { return eventually.Context(t) }

// register registers a resource with these attributes.
func register(t *testing.T, c *rocl.Context, a rocl.Attrs) *rocl.Resource {
	t.Helper()
	return try.Get(c.Register(soon(t), a))(t)
}

// await waits until n resources match.
func await(t *testing.T, c *rocl.Context, a rocl.Match, n int, opts ...rocl.FindOption) {
	t.Helper()
	try.Get(c.Await(soon(t), a, n, opts...))(t)
}

// The second process leads when the first one does not any more.
func TestLead(t *testing.T) {
	cluster := rocltest.Cluster(t, 2)
	leads, step := make(chan uint64), make(chan struct{})
	done := make(chan error, 2)
	for i := range 2 {
		c := cluster.Open(i)
		go func() {
			done <- Lead(soon(t), c, func(_ context.Context, term *election.Term) error {
				leads <- term.Number()
				<-step
				return term.Err()
			})
		}()
	}
	first := <-leads
	step <- struct{}{}
	if second := <-leads; second <= first {
		t.Errorf("number %d follows %d", second, first)
	}
	step <- struct{}{}
	try.OK(t, errors.Join(<-done, <-done))
}

// TestServerEnds has a client on one node and two servers on another. The first server ends when it
// has received the request. The client then gets the reply of the second.
func TestServerEnds(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	cluster := rocltest.Cluster(t, 2) // two nodes in memory, closed as the test ends
	client, first, second := cluster.Open(0), cluster.Open(1), cluster.Open(1)
	silent, err := first.Register(ctx, rocl.Attrs{"service": "upper"})
	if err != nil {
		t.Fatal(err)
	}

	answers := make(chan string, 1)
	go func() {
		text, err := AskUpper(ctx, client, "hello")
		if err != nil {
			t.Error(err)
		}
		answers <- text
	}()
	if _, err := silent.Recv(ctx); err != nil { // the request
		t.Fatal(err)
	}
	served := make(chan error, 1)
	serve, end := context.WithCancel(ctx)
	go func() { served <- ServeUpper(serve, second) }()
	if _, err := client.Await(ctx, rocl.Match{"service": "upper"}, 2); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil { // for the client this is as if the process were killed
		t.Fatal(err)
	}

	if got := <-answers; got != "HELLO" {
		t.Errorf("the answer is %q", got)
	}
	end()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestPatience calls a server that never replies, with a deadline of an hour. In a bubble of
// testing/synctest the hour takes no real time.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := rocltest.Cluster(t, 1)
		c := cluster.Open(0)
		silent := try.Get(c.Register(t.Context(), rocl.Attrs{"service": "upper"}))(t)
		defer silent.Close()
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		try.Fails(AskUpper(ctx, c, "hello"))(t, context.DeadlineExceeded, "the call ended with")
	})
}

func TestShops(t *testing.T) {
	ctx := soon(t)
	cluster := rocltest.Cluster(t, 2)
	for i, prices := range []map[string]int{{"pear": 3}, {"apple": 1}, {"pear": 2, "apple": 2}} {
		s := try.Get(OpenShop(ctx, cluster.Open(i%2), fmt.Sprint(i), prices))(t)
		defer s.Close(ctx)
	}
	got, err := Quotes(ctx, cluster.Open(0), Order{"pear", 10})
	if want := []Quote{{"2", 20}, {"0", 30}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestDistribute(t *testing.T) {
	ctx := soon(t)
	cluster := rocltest.Cluster(t, 2)
	c := cluster.Open(0)
	tasks, want := make([]int, 1000), make([]int, 1000)
	for i := range tasks {
		tasks[i], want[i] = i, i*i
	}
	ends := cluster.Open(1)
	failed, began := make(chan error), make(chan struct{})
	go func() { // this worker ends with its first tasks in hand
		failed <- work.Serve(ctx, ends, rocl.Attrs{"worker": "square"}, func(ctx context.Context, _ int) (int, error) {
			close(began)
			go ends.Close()
			<-ctx.Done()
			return 0, ctx.Err()
		})
	}()
	worker, stop := context.WithCancel(ctx)
	done := make(chan error)
	other := cluster.Open(1)
	go func() { <-began; done <- Work(worker, other) }()
	got, err := Distribute(ctx, c, tasks)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	try.Fails(<-failed)(t, rocl.ErrClosed)
	stop()
	try.OK(t, <-done)
}

func TestPublish(t *testing.T) {
	ctx := soon(t)
	cluster := rocltest.Cluster(t, 2)
	publisher := register(t, cluster.Open(0), nil)
	var receivers []*rocl.Resource
	for i := range 3 {
		r := try.Get(Subscribe(ctx, cluster.Open(i%2), "GO"))(t)
		receivers = append(receivers, r)
	}
	try.Gives(Publish(ctx, publisher, "GO", "42"))(t, 3, "published to")
	try.Gives(Publish(ctx, publisher, "C", "41"))(t, 0, "published to")
	for _, r := range receivers {
		m, err := r.Recv(ctx)
		if err != nil || string(m.Bytes()) != "42" {
			t.Fatal(m, err)
		}
		m.Release()
	}
}

func TestPublishNow(t *testing.T) {
	ctx := soon(t)
	cluster := rocltest.Cluster(t, 2)
	publisher := register(t, cluster.Open(0), nil)
	slow := try.Get(Subscribe(ctx, cluster.Open(1), "GO"))(t)
	receivers := try.Get(live.Follow(ctx, publisher.Context(), rocl.Match{"wants": "prices", "symbol": "GO"}))(t)
	defer receivers.Close()
	for range 100 { // as many as its mailbox holds
		try.Get(Publish(ctx, publisher, "GO", "42"))(t)
	}
	try.Gives(PublishNow(ctx, publisher, receivers, "43"))(t, 0, "published to")
	for range 100 {
		m, err := slow.Recv(ctx)
		if err != nil || string(m.Bytes()) != "42" {
			t.Fatal(m, err)
		}
		m.Release()
	}
	for n := 0; n == 0; { // until the publisher's context knows that there is room again
		n = try.Get(PublishNow(ctx, publisher, receivers, "44"))(t)
	}
	m, err := slow.Recv(ctx)
	if err != nil || string(m.Bytes()) != "44" {
		t.Fatal(m, err)
	}
	m.Release()
}

func TestModels(t *testing.T) {
	ctx := soon(t)
	cluster := rocltest.Cluster(t, 2)
	want := Model{"model", "big one", 2.5, []string{"east", "south"}}
	for _, m := range []Model{want, {"model", "big one", 3, []string{"south"}}, {"model", "small", 0, []string{"north"}}} {
		try.Get(Announce(ctx, cluster.Open(0), m))(t)
	}
	all := try.Get(Models(ctx, cluster.Open(1), `load<3 zone=north|south name="big one"`))(t)
	if len(all) != 1 || !reflect.DeepEqual(all[0], want) {
		t.Errorf("%+v", all)
	}
	register(t, cluster.Open(0), rocl.Attrs{"type": "model", "name": "odd", "load": "much"})
	try.Fails(Models(ctx, cluster.Open(1), "name=odd"))(t, rocl.ErrValue)
	try.Fails(Models(ctx, cluster.Open(1), "load<much"))(t, rocl.ErrCondition)
}

func TestRender(t *testing.T) {
	ctx, stop := context.WithCancel(soon(t))
	cluster := rocltest.Cluster(t, 2)
	busy, idle := cluster.Open(0), cluster.Open(1)
	started, finish := make(chan struct{}), make(chan struct{})
	served := make(chan error, 2)
	go func() {
		served <- ServeRenderer(ctx, busy, func([]byte) []byte {
			close(started)
			<-finish
			return []byte("busy")
		})
	}()
	await(t, busy, rocl.Match{"type": "renderer"}, 1)
	c := cluster.Open(0)
	client := try.Get(rpc.NewClient(ctx, c))(t)
	defer client.Close()
	renderers := try.Get(Renderers(ctx, c))(t)
	defer renderers.Close()
	rendered := make(chan string, 1)
	render := func() {
		p, err := Render(ctx, client, renderers, nil)
		if err != nil {
			t.Error(err)
		}
		rendered <- string(p)
	}
	go render()
	<-started
	await(t, busy, rocl.Match{"type": "renderer", "load": "1"}, 1)
	go func() {
		served <- ServeRenderer(ctx, idle, func([]byte) []byte { return []byte("idle") })
	}()
	eventually.True(t, "both renderers are known", func() bool { return renderers.Len() == 2 })
	render()
	if got := <-rendered; got != "idle" {
		t.Errorf("the %s renderer did the work", got)
	}
	close(finish)
	if got := <-rendered; got != "busy" {
		t.Errorf("the %s renderer did the first work", got)
	}
	stop()
	for range 2 {
		try.Check(t, <-served)
	}
}

func TestReport(t *testing.T) {
	ctx, stop := context.WithCancel(soon(t))
	cluster := rocltest.Cluster(t, 2)
	c := cluster.Open(0)
	old := register(t, c, rocl.Attrs{"type": "lamp", "name": "old"})
	seen, followed := make(chan string), make(chan error, 1)
	go func() {
		followed <- Report(ctx, cluster.Open(1), rocl.Match{"type": "lamp"}, func(lamps []rocl.Found) {
			var names []string
			for _, f := range lamps {
				names = append(names, f.Attrs.GetString("name"))
			}
			slices.Sort(names)
			select {
			case seen <- strings.Join(names, " "):
			case <-ctx.Done():
			}
		})
	}()
	until := func(want string) {
		t.Helper()
		for got := ""; got != want; {
			select {
			case got = <-seen:
			case <-ctx.Done():
				t.Fatalf("%q was not seen", want)
			}
		}
	}
	until("old")
	fresh := register(t, c, rocl.Attrs{"type": "lamp", "name": "fresh"})
	until("fresh old")
	try.OK(t, fresh.Set(ctx, "name", "new"))
	until("new old")
	try.OK(t, old.Close())
	until("new")
	stop()
	try.Check(t, <-followed)
}

func TestCollect(t *testing.T) {
	ctx := soon(t)
	cluster := rocltest.Cluster(t, 2)
	me := register(t, cluster.Open(0), nil)
	sender := register(t, cluster.Open(1), nil)
	go func() {
		for i := range 3 {
			try.Check(t, sender.SendBytes(ctx, me.ID(), 0, []byte{'a' + byte(i)}))
		}
		sender.Context().Close()
	}()
	got, err := Collect(ctx, me, sender.ID())
	if err != nil || strings.Join(got, "") != "abc" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestSendLent(t *testing.T) {
	for name, opts := range map[string][]rocl.Option{"in the process": nil, "TCP": {rocltest.TCP()}} {
		t.Run(name, func(t *testing.T) {
			ctx := soon(t)
			cluster := rocltest.Cluster(t, 2)
			me, you := register(t, cluster.Open(0, opts...), nil), register(t, cluster.Open(1, opts...), nil)
			mem := bytes.Repeat([]byte("large"), 100_000)
			sent := make(chan error, 1)
			go func() { sent <- SendLent(ctx, me, you.ID(), 0, mem) }()
			m := try.Get(you.Recv(ctx))(t)
			if !bytes.Equal(m.Bytes(), mem) {
				t.Error("another message arrived")
			}
			m.Release()
			try.Check(t, <-sent)
		})
	}
	t.Run("nobody", func(t *testing.T) {
		ctx := soon(t)
		me := register(t, rocltest.Cluster(t, 1).Open(0), nil)
		try.Fails(SendLent(ctx, me, rocl.GID{}, 0, make([]byte, 10)))(t, rocl.ErrGone, "sent to the zero GID")
	})
}

func TestOfferAndFetch(t *testing.T) {
	ctx := soon(t)
	cluster := rocltest.Cluster(t, 2)
	endpoint := func(node int) *bulk.Endpoint {
		ep := try.Get(bulk.Open(ctx, cluster.Open(node)))(t)
		t.Cleanup(func() { ep.Close(context.Background()) })
		return ep
	}
	here, there := endpoint(0), endpoint(1)
	me, you := register(t, cluster.Open(0), nil), register(t, cluster.Open(1), nil)
	mem := bytes.Repeat([]byte("large"), 1_000_000)
	region := try.Get(Offer(ctx, here, me, you.ID(), mem))(t)
	var got bytes.Buffer
	if err := Fetch(ctx, there, you, &got); err != nil || !bytes.Equal(got.Bytes(), mem) {
		t.Errorf("fetched %d bytes, %v", got.Len(), err)
	}
	try.Check(t, region.Revoke(ctx))
}

// TestFaults calls the server while its node and its network fail. In the end it must answer.
func TestFaults(t *testing.T) {
	for seed := range uint64(10) {
		rocltest.Simulate(t, seed, func(w *rocltest.World) {
			w.AddNodes(2)
			w.Start(0, "server", func(p *rocltest.Process) {
				_ = ServeUpper(p.Context(), p.Rocl()) // ends when the process is killed
			})
			w.Start(1, "client", func(p *rocltest.Process) { <-p.Context().Done() })
			w.Run(10 * time.Second)       // with faults, which have ended when it returns
			client := w.Process("client") // another one, if the first was killed
			ctx, stop := context.WithTimeout(w.Context(), time.Minute)
			defer stop()
			if got, err := AskUpper(ctx, client.Rocl(), "hello"); got != "HELLO" {
				w.Errorf("the answer is %q, %v", got, err)
			}
		})
	}
}

// TestFeed has a worker that ends with lines in hand. Each line has one result.
func TestFeed(t *testing.T) {
	ctx, stop := context.WithCancel(soon(t))
	cluster := rocltest.Cluster(t, 2)
	source, sink := register(t, cluster.Open(0), nil), register(t, cluster.Open(0), nil)
	var workers []*rocl.Resource
	for range 2 {
		me := register(t, cluster.Open(1), nil)
		workers = append(workers, me)
	}
	ended := make(chan error, 3)
	work := func(me *rocl.Resource, lines int) error { // ends after so many lines
		for m, err := range me.Messages(ctx) {
			if err != nil || lines == 0 {
				return errors.Join(err, me.Context().Close())
			}
			lines--
			err = me.SendBytes(ctx, sink.ID(), tagLine, bytes.ToUpper(m.Bytes()))
			m.Release()
			if err != nil {
				return err
			}
		}
		return nil
	}
	first := make(chan error, 1)
	go func() { first <- work(workers[0], 20) }()
	go func() { ended <- work(workers[1], -1) }()

	var lines, results []string
	for i := range 100 {
		lines = append(lines, fmt.Sprint("line ", i))
	}
	n := 0
	next := func() rocl.GID { // the second worker gets what comes back
		n++
		return workers[min(n/60, 1)].ID()
	}
	go func() { ended <- Feed(ctx, source, sink.ID(), lines, next) }()
	go func() {
		ended <- Gather(ctx, sink, func(p []byte) {
			if results = append(results, string(p)); len(results) == len(lines) {
				stop()
			}
		})
	}()
	for range 3 {
		<-ended
	}
	try.OK(t, <-first)
	slices.Sort(results)
	try.Equal(t, len(slices.Compact(results)), len(lines))
}
