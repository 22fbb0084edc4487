// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/chromedp"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/browser"
	"github.com/rocl-go/rocl/cmd/internal/web"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rpc"
)

var long = flag.Bool("long", false, "run the long forms of tests with a browser: some minutes")

// shardSocket is the environment variable that makes the test a program with a resource that it
// never reads.
const shardSocket = "ROCL_TEST_SHARD"

// shard registers a resource, prints its identifier, and waits for its end.
func shard(socket string) {
	c, err := rocl.Open(context.Background(), rocl.JoinOnly(), rocl.WithSocket(socket))
	if err == nil {
		var r *rocl.Resource
		if r, err = c.Register(context.Background(), rocl.Attrs{"type": "shard", "shard": "2"}); err == nil {
			fmt.Println(r.ID())
			select {}
		}
	}
	fmt.Println(err)
}

// rows is the number of rows of the resources.
const rows = "document.querySelectorAll('#resources tbody tr').length"

// A browser shows what goes on: messages that nobody reads, a process that is killed, and the
// restart of the daemon. It shows attributes as text, in the dark and on a phone too, works by
// keyboard, and asks nobody but the daemon.
//
// Promise (Commands): The page shows messages that wait and processes that end. Nothing that a
// program tells becomes more than text, and no request leaves the page's origin.
func TestBrowser(t *testing.T) {
	open := browser.Open(t)
	dir := short(t)
	socket := filepath.Join(dir, "sock")
	at := try.Get(freeaddr.Loopback())(t) // the page of the next daemon too
	_, stop := started(t, "--socket", socket, "--http", at)
	origin := "http://" + at

	cmd := subprocess.Self()
	cmd.Env = append(os.Environ(), shardSocket+"="+socket)
	child := try.Get(subprocess.Start(cmd))(t)
	defer child.Kill()
	id := try.Get(resource.ParseGID(<-child.Lines))(t)
	c := try.Get(rocl.Open(t.Context(), rocl.JoinOnly(), rocl.WithSocket(socket)))(t)
	defer c.Close()
	const hostile = "<img src=//evil.example/x onerror=alert(1)>\u202e\x1b[2J"
	r := try.Get(c.Register(t.Context(), rocl.Attrs{"type": "gpu", "name": hostile}))(t)
	for range 300 {
		m := try.Get(c.BufferWait(t.Context(), 100))(t)
		try.OK(t, r.Send(t.Context(), id, 1, m))
	}

	b := open(t)
	b.See(origin + "/")
	b.Until("document.querySelector('#status').textContent === 'live, counts only'")
	if text := b.Text("body"); strings.Contains(text, "shard") || strings.Contains(text, id.String()) || !strings.Contains(text, "rocl web") {
		t.Errorf("without a token: %q", text)
	}
	b.See(try.Get(web.URL(socket))(t))
	b.Until("location.pathname + location.search === '/' && document.querySelector('#status')?.textContent === 'live'")
	line := fmt.Sprintf("[...document.querySelectorAll('#resources tbody tr')].find((tr) => tr.cells[0].textContent === '%v')", id)
	b.Until(line + "?.cells[3].textContent === '300'")
	b.Until(line + "?.cells[7].textContent !== '' && " + line + ".className === 'bad'") // it stands
	b.Until("document.querySelectorAll('#drawing circle').length === 2 && document.querySelectorAll('#drawing line').length === 1")
	if text := b.Text("#resources tbody"); !strings.Contains(text, `<img src=//evil.example/x onerror=alert(1)>\u202e\x1b[2J`) {
		t.Errorf("the attributes are %q", text)
	}
	if n := browser.Evaluate[float64](b, "document.querySelectorAll('img, iframe, #resources script').length"); n != 0 {
		t.Errorf("%v elements came from attributes", n)
	}
	b.Keep("light")

	b.Press(strings.Split("/type=shard", "")...)
	b.Until(rows + " === 1 && " + line + " && document.activeElement.id === 'search'")
	b.Press("Escape")
	b.Until(rows + " > 1")
	b.Press("3")
	b.Until("document.activeElement.id === 'links'")
	browser.Evaluate[bool](b, "document.activeElement.blur() || true")
	b.Press(strings.Split("/==", "")...)
	b.Until("!document.querySelector('#problem').hidden")
	b.Press("Escape")
	b.Until("document.querySelector('#problem').hidden")

	paper := "getComputedStyle(document.body).backgroundColor"
	b.Until(paper + " === 'rgb(255, 255, 255)'")
	browser.Command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}})
	b.Until(paper + " === 'rgb(18, 22, 28)'")
	b.Keep("dark")
	browser.Command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{})
	b.Do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
	b.Until("innerWidth === 360")
	if w := browser.Evaluate[float64](b, "document.documentElement.scrollWidth"); w > 360 {
		t.Errorf("the page is %v pixels wide on a phone of 360", w)
	}
	b.Keep("phone")
	b.Do(chromedp.EmulateReset())

	server := try.Get(rpc.NewServer(t.Context(), c, rocl.Attrs{"type": "echo"}, rpc.WithCalls(func(s *rpc.Server) error {
		return rpc.Register(s, "echo", func(_ context.Context, n int) (int, error) { return n, nil })
	})))(t)
	client := try.Get(rpc.NewClient(t.Context(), c))(t)
	calling, stopCalling := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	calls.Go(func() {
		for pace := time.NewTicker(time.Second / 100); calling.Err() == nil; <-pace.C { // so that the machine has time for the browser
			_, _ = rpc.Call[int, int](calling, client, server.ID(), "echo", 1)
		}
	})
	b.Until("[...document.querySelectorAll('[data-table=handlers] tbody tr')].some(({ cells }) => cells[0].textContent === 'echo' && cells[1].textContent.includes('type=echo') && cells[5].textContent && cells[6].textContent && cells[7].textContent)")
	stopCalling()
	calls.Wait()
	try.OK(t, client.Close())
	try.OK(t, server.Close(t.Context()))

	child.Kill()
	b.Until("!" + line + " && [...document.querySelectorAll('#list .bad')].some((li) => li.textContent.includes('gone'))")
	b.Keep("kill")

	c.Close()
	try.Equal(t, stop(), 0, "exit code")
	b.Until("document.querySelector('#status').className === 'bad'")
	_, stop = started(t, "--socket", socket, "--http", at)
	b.Until("document.querySelector('#status').textContent === 'live, counts only'")
	if text := b.Text("body"); strings.Contains(text, "gpu") {
		t.Errorf("after the restart: %q", text)
	}
	b.See(try.Get(web.URL(socket))(t))
	b.Until("document.querySelector('#status')?.textContent === 'live'")
	b.CheckOrigin(origin)
	b.See("about:blank")
	try.Equal(t, stop(), 0, "exit code")
}

// large returns views of 10,000 resources and 1,000 links, of which a tenth changes each time.
func large() func(context.Context) (*observe.View, error) {
	var mu sync.Mutex
	n := uint64(0)
	return func(context.Context) (*observe.View, error) {
		mu.Lock()
		defer mu.Unlock()
		n++
		v := &observe.View{Taken: time.Now()}
		for i := range uint64(100) {
			var c observe.Context
			c.Context, c.PID, c.Program = resource.MakeGID(7, i+1, 0), 1000+int(i), "worker"
			for j := range uint64(100) {
				r := rocl.ResourceSnapshot{Name: fmt.Sprintf("type=shard shard=%d", i*100+j)}
				r.Resource, r.Limit = c.Context.WithSerial(uint32(j+1)), 1<<20
				r.Messages, r.Received, r.Arrived = int((i*100+j)%977+n*(j%10/9)), n*j*1000, n*j*1000
				c.Resources = append(c.Resources, r)
			}
			for j := range uint64(20) {
				l := dispatch.LinkSnapshot{State: "connected"}
				l.Peer, l.Transport, l.SentBytes = resource.MakeGID(7, (i+j+1)%100+1, 0), "shm", n*(i+1)*(j+1)*(100+n%7)
				c.Links = append(c.Links, l)
			}
			v.Contexts = append(v.Contexts, c)
		}
		v.Clean()
		return v, nil
	}
}

// The page shows the first rows of many, and says how many there are. What this takes is logged.
func TestBrowserLarge(t *testing.T) {
	open := browser.Open(t)
	socket := filepath.Join(t.TempDir(), "sock")
	gate := web.NewGate(socket)
	page := web.NewPage(web.Options{
		Gate: gate, View: large(), Counts: func() []web.Count { return []web.Count{{Name: "resources", Value: 10_000}} },
		Find:       func(*resource.List, int) []resource.GID { return nil },
		Attributes: func(resource.GID) (*resource.List, bool) { return nil, false },
	})
	mux := http.NewServeMux()
	page.Handle(mux)
	s := httptest.NewServer(web.Guard(mux, true))
	defer s.Close()
	defer page.Close()
	try.OK(t, gate.Publish(s.URL))
	b := open(t)
	b.See(try.Get(web.URL(socket))(t))
	b.Until(rows + " === 100 && document.querySelector('[data-total=resources]').textContent === 'the first 100 of 10000'")
	paint := browser.Evaluate[float64](b, "performance.getEntriesByType('paint')[0].startTime")
	begin := browser.Evaluate[float64](b, "performance.now()")
	before := b.Metric("TaskDuration")
	const updates = 5
	script := fmt.Sprintf("new Promise((done) => { let left = %d; source.addEventListener('message', () => --left || done(true)) })", updates)
	browser.Evaluate[bool](b, script)
	spent := b.Metric("TaskDuration") - before
	t.Logf("first paint after %.0f ms; main thread %.1f ms an update (%d updates in %.0f ms); %.1f MB of objects", paint, 1000*spent/updates, updates, browser.Evaluate[float64](b, "performance.now()")-begin, browser.Evaluate[float64](b, "performance.memory.usedJSHeapSize")/1e6)
	if n := browser.Evaluate[float64](b, "document.querySelectorAll('*').length"); n > 10_000 {
		t.Errorf("the page has %v elements", n)
	}
	b.See("about:blank")
}

// changing returns a function that returns views of 10,000 resources and 1,000 links, one second
// after another. All figures change each time, and of the 100 contexts ten are new, with their
// resources, links, calls and handlers.
func changing() func() (*observe.View, error) {
	begin, n := time.Now(), 0
	return func() (*observe.View, error) {
		v := &observe.View{Taken: begin.Add(time.Duration(n) * time.Second), Nodes: []observe.Node{{ID: 7, Name: "host", Addr: fmt.Sprint("a:", n)}}}
		context := func(i int) resource.GID { return resource.MakeGID(7, uint64(100*((n+9-i%10)/10)+i+1), 0) }
		for i := range 100 {
			var c observe.Context
			c.Context, c.PID, c.Program = context(i), 1000+i, fmt.Sprintf("worker %d", n)
			for j := range 100 {
				r := rocl.ResourceSnapshot{Name: fmt.Sprintf("type=shard shard=%d update=%d", 100*i+j, n)}
				r.Resource, r.Limit, r.Messages = c.Context.WithSerial(uint32(j+1)), 1<<20, (7*n+100*i+j)%977
				r.Received, r.Arrived = uint64(n*j*1000), uint64(n*j*1000)
				if j == 0 {
					r.Handlers = []rocl.HandlerSnapshot{{Name: fmt.Sprint("call ", i), Ended: uint64(n * i), Took: []uint64{0, uint64(n * i)}}}
				}
				c.Resources = append(c.Resources, r)
			}
			for j := range 20 {
				l := dispatch.LinkSnapshot{State: "connected"}
				l.Peer, l.Transport, l.SentBytes = context((i+j+1)%100), "shm", uint64(n*(i+1)*(j+1)*(100+n%7))
				c.Links = append(c.Links, l)
			}
			c.Calls = []dispatch.CallSnapshot{{Number: uint64(n), From: c.Context.WithSerial(1), To: context((i + 1) % 100).WithSerial(1), Name: fmt.Sprint("call ", n)}}
			if i == n%100 {
				c.Silent = "no answer"
			}
			v.Contexts = append(v.Contexts, c)
		}
		n++
		return v, nil
	}
}

// The page needs no more memory after an hour of updates in which everything changes.
func TestBrowserHour(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector does not see into the browser, and 60 updates take it a minute")
	}
	updates := 60
	if *long {
		updates = 3600
	}
	open := browser.Open(t)
	gate := web.NewGate("hour")
	page := web.NewReplay(gate, changing()) // a recording goes on as soon as the page has shown the view before
	mux := http.NewServeMux()
	page.Handle(mux)
	s := httptest.NewServer(web.Guard(mux, true))
	defer s.Close()
	defer page.Close()
	b := open(t)
	b.See(gate.URL(s.URL))
	b.Until(rows + " === 100")
	after := func(n int) (heap, nodes float64) {
		for ; n > 0; n -= 50 { // a command of the browser has a time limit
			browser.Evaluate[bool](b, fmt.Sprintf(`new Promise((done) => {
				let left = %d;
				source.addEventListener('message', function next() {
					if (--left > 0) return control('step');
					source.removeEventListener('message', next);
					done(true);
				});
				control('step');
			})`, min(n, 50)))
		}
		browser.Command(b, heapprofiler.CollectGarbage, cdp.Empty{})
		return b.Metric("JSHeapUsedSize"), b.Metric("Nodes")
	}
	var heaps, nodes []float64
	for i := range 10 {
		h, n := after(updates / 10)
		t.Logf("after %d updates %.2f MB of objects and %.0f nodes", updates/10*(i+1), h/1e6, n)
		heaps, nodes = append(heaps, h), append(nodes, n)
	}
	// Lists fill at the beginning, and what a collection leaves differs. A leak raises the least.
	if early, late := slices.Max(heaps[:3]), slices.Min(heaps[7:]); late > early+128_000 {
		t.Errorf("the page has grown from %.2f to %.2f MB of objects", early/1e6, late/1e6)
	}
	if early, late := slices.Max(nodes[:3]), slices.Min(nodes[7:]); late > early+1000 {
		t.Errorf("the page has grown from %v to %v nodes", early, late)
	}
	b.See("about:blank")
}
