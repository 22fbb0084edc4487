// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/browser"
	"github.com/rocl-go/rocl/cmd/internal/web"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

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
	said, stop := started(t, "--socket", socket, "--http", "127.0.0.1:0")
	at := said.find(t, `"http":"(127\.0\.0\.1:\d+)"`)
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
