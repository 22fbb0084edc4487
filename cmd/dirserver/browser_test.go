// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/web"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
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

// A tab is a browser's tab, with what it did.
type tab struct {
	*testing.T
	ctx context.Context

	mu        sync.Mutex
	requests  []string
	complains []string // violations of the page's policy, and exceptions
}

// browser returns a function that opens a tab of one browser.
func browser(t *testing.T) func(*testing.T) *tab {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser is slow beside the race detector")
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("ROCL_BROWSER") == "must" {
			t.Fatal(err)
		}
		t.Skip("there is no chromium")
	}
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.WindowSize(1000, 640), chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(eventually.Timeout))
	if os.Getuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	all, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(cancel)
	first, closeBrowser := chromedp.NewContext(all)
	t.Cleanup(closeBrowser)
	try.OK(t, chromedp.Do(first))
	return func(t *testing.T) *tab {
		ctx, closeTab := chromedp.NewContext(first)
		t.Cleanup(closeTab)
		b := &tab{T: t, ctx: ctx}
		try.OK(t, chromedp.Listen(ctx, func(ev any) {
			b.mu.Lock()
			defer b.mu.Unlock()
			switch ev := ev.(type) {
			case *network.EventRequestWillBeSent:
				b.requests = append(b.requests, ev.Request.URL)
			case *cdplog.EventEntryAdded:
				if ev.Entry.Source == cdplog.EntrySourceSecurity || strings.Contains(ev.Entry.Text, "Content Security Policy") {
					b.complains = append(b.complains, ev.Entry.Text)
				}
			case *runtime.EventExceptionThrown:
				b.complains = append(b.complains, fmt.Sprint(ev.ExceptionDetails))
			}
		}))
		command(b, network.Enable, network.EnableParams{})
		command(b, cdplog.Enable, cdp.Empty{})
		return b
	}
}

// command runs a command of the browser.
func command[P, R any](b *tab, of cdp.Command[P, R], params P) R {
	b.Helper()
	return try.Get(chromedp.Call(b.ctx, of, params))(b.T)
}

// evaluate returns the value of an expression in JavaScript.
func evaluate[V any](b *tab, expression string) V {
	b.Helper()
	return try.Get(chromedp.Run(b.ctx, chromedp.Evaluate[V](expression)))(b.T)
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	try.OK(b.T, chromedp.Do(b.ctx, steps...))
}

// see opens a page.
func (b *tab) see(url string) {
	b.Helper()
	b.do(chromedp.Navigate(url))
}

// press presses keys. A key whose event the page handles types nothing.
func (b *tab) press(keys ...string) {
	b.Helper()
	for _, k := range keys {
		event := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: k}
		if len(k) == 1 {
			event.Text = k
		}
		command(b, input.DispatchKeyEvent, event)
		event.Type, event.Text = input.DispatchKeyEventTypeKeyUp, ""
		command(b, input.DispatchKeyEvent, event)
	}
}

// until waits until a condition in JavaScript holds. It says what the page shows if it never does.
func (b *tab) until(condition string) {
	b.Helper()
	defer func() {
		if b.Failed() {
			b.Logf("the page shows %q", b.text("body"))
		}
	}()
	if !eventually.Within(eventually.Timeout, func() bool { // the page's policy forbids chromedp.Poll, which makes a function of a text
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+condition+")"))
		return err == nil && ok
	}) {
		b.Fatalf("never: %s", condition)
	}
}

// text returns the text that is visible within an element.
func (b *tab) text(of string) string {
	b.Helper()
	return evaluate[string](b, fmt.Sprintf("document.querySelector(%q).innerText", of))
}

// keep saves a picture of the page if ROCL_SCREENSHOTS names a folder.
func (b *tab) keep(name string) {
	b.Helper()
	b.do(chromedp.Evaluate[chromedp.Void]("scrollTo(0, 0)"))
	picture := try.Get(chromedp.Run(b.ctx, chromedp.CaptureScreenshot()))(b.T)
	if dir := os.Getenv("ROCL_SCREENSHOTS"); dir != "" {
		try.OK(b.T, os.WriteFile(filepath.Join(dir, "see-"+name+".png"), picture, 0o644))
	}
}

// checkOrigin checks that the tab sent all requests to one origin, and that nothing violated the
// page's policy.
func (b *tab) checkOrigin(origin string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) < 4 || len(b.complains) > 0 {
		b.Errorf("%d requests; complains: %q", len(b.requests), b.complains)
	}
	for _, r := range b.requests {
		if !strings.HasPrefix(r, origin+"/") {
			b.Errorf("a request leaves the page's origin: %s", r)
		}
	}
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
	open := browser(t)
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
	b.see(origin + "/")
	b.until("document.querySelector('#status').textContent === 'live, counts only'")
	if text := b.text("body"); strings.Contains(text, "shard") || strings.Contains(text, id.String()) || !strings.Contains(text, "rocl web") {
		t.Errorf("without a token: %q", text)
	}
	b.see(try.Get(web.URL(socket))(t))
	b.until("location.pathname + location.search === '/' && document.querySelector('#status')?.textContent === 'live'")
	line := fmt.Sprintf("[...document.querySelectorAll('#resources tbody tr')].find((tr) => tr.cells[0].textContent === '%v')", id)
	b.until(line + "?.cells[3].textContent === '300'")
	b.until(line + "?.cells[7].textContent !== '' && " + line + ".className === 'bad'") // it stands
	b.until("document.querySelectorAll('#drawing circle').length === 2 && document.querySelectorAll('#drawing line').length === 1")
	if text := b.text("#resources tbody"); !strings.Contains(text, `<img src=//evil.example/x onerror=alert(1)>\u202e\x1b[2J`) {
		t.Errorf("the attributes are %q", text)
	}
	if n := evaluate[float64](b, "document.querySelectorAll('img, iframe, #resources script').length"); n != 0 {
		t.Errorf("%v elements came from attributes", n)
	}
	b.keep("light")

	b.press(strings.Split("/type=shard", "")...)
	b.until(rows + " === 1 && " + line + " && document.activeElement.id === 'search'")
	b.press("Escape")
	b.until(rows + " > 1")
	b.press("3")
	b.until("document.activeElement.id === 'links'")
	evaluate[bool](b, "document.activeElement.blur() || true")
	b.press(strings.Split("/==", "")...)
	b.until("!document.querySelector('#problem').hidden")
	b.press("Escape")
	b.until("document.querySelector('#problem').hidden")

	paper := "getComputedStyle(document.body).backgroundColor"
	b.until(paper + " === 'rgb(255, 255, 255)'")
	command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}})
	b.until(paper + " === 'rgb(18, 22, 28)'")
	b.keep("dark")
	command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{})
	b.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
	b.until("innerWidth === 360")
	if w := evaluate[float64](b, "document.documentElement.scrollWidth"); w > 360 {
		t.Errorf("the page is %v pixels wide on a phone of 360", w)
	}
	b.keep("phone")
	b.do(chromedp.EmulateReset())

	child.Kill()
	b.until("!" + line + " && [...document.querySelectorAll('#list .bad')].some((li) => li.textContent.includes('gone'))")
	b.keep("kill")

	c.Close()
	try.Equal(t, stop(), 0, "exit code")
	b.until("document.querySelector('#status').className === 'bad'")
	_, stop = started(t, "--socket", socket, "--http", at)
	b.until("document.querySelector('#status').textContent === 'live, counts only'")
	if text := b.text("body"); strings.Contains(text, "gpu") {
		t.Errorf("after the restart: %q", text)
	}
	b.see(try.Get(web.URL(socket))(t))
	b.until("document.querySelector('#status')?.textContent === 'live'")
	b.checkOrigin(origin)
	b.see("about:blank")
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
	open := browser(t)
	socket := filepath.Join(t.TempDir(), "sock")
	gate := web.NewGate(socket)
	page := web.NewPage(web.Options{
		Gate: gate, View: large(), Counts: func() []web.Count { return []web.Count{{Name: "resources", Value: 10_000}} },
		Find:       func(*resource.List, int) []resource.GID { return nil },
		Attributes: func(resource.GID) (*resource.List, bool) { return nil, false },
	})
	mux := http.NewServeMux()
	page.Handle(mux)
	s := httptest.NewServer(guarded(mux, true))
	defer s.Close()
	defer page.Close()
	try.OK(t, gate.Publish(s.URL))
	b := open(t)
	command(b, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
	b.see(try.Get(web.URL(socket))(t))
	b.until(rows + " === 100 && document.querySelector('[data-total=resources]').textContent === 'the first 100 of 10000'")
	paint := evaluate[float64](b, "performance.getEntriesByType('paint')[0].startTime")
	begin := evaluate[float64](b, "performance.now()")
	before := b.spent()
	const updates = 5
	script := fmt.Sprintf("new Promise((done) => { let left = %d; source.addEventListener('message', () => --left || done(true)) })", updates)
	try.Get(chromedp.Run(b.ctx, chromedp.Evaluate[bool](script, chromedp.EvalAwaitPromise)))(t)
	spent := b.spent() - before
	t.Logf("first paint after %.0f ms; main thread %.1f ms an update (%d updates in %.0f ms); %.1f MB of objects", paint, 1000*spent/updates, updates, evaluate[float64](b, "performance.now()")-begin, evaluate[float64](b, "performance.memory.usedJSHeapSize")/1e6)
	if n := evaluate[float64](b, "document.querySelectorAll('*').length"); n > 10_000 {
		t.Errorf("the page has %v elements", n)
	}
	b.see("about:blank")
}

// spent returns how many seconds of processor time the tab's main thread has used.
func (b *tab) spent() float64 {
	b.Helper()
	for _, m := range command(b, performance.GetMetrics, cdp.Empty{}).Metrics {
		if m.Name == "TaskDuration" {
			return m.Value
		}
	}
	b.Fatal("there is no TaskDuration")
	return 0
}
