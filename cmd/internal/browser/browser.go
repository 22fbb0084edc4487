// SPDX-License-Identifier: Apache-2.0

// Package browser drives a real browser in tests of pages.
package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A Tab is a browser's tab, with what it did.
type Tab struct {
	*testing.T
	ctx context.Context

	mu        sync.Mutex
	requests  []string
	complains []string // violations of the page's policy, and exceptions
}

// Open returns a function that opens a tab of one browser.
func Open(t *testing.T) func(*testing.T) *Tab {
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
	return func(t *testing.T) *Tab {
		ctx, closeTab := chromedp.NewContext(first)
		t.Cleanup(closeTab)
		b := &Tab{T: t, ctx: ctx}
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
		Command(b, network.Enable, network.EnableParams{})
		Command(b, cdplog.Enable, cdp.Empty{})
		return b
	}
}

// Command runs a command of the browser.
func Command[P, R any](b *Tab, of cdp.Command[P, R], params P) R {
	b.Helper()
	return try.Get(chromedp.Call(b.ctx, of, params))(b.T)
}

// Evaluate returns the value of an expression in JavaScript. It awaits a promise.
func Evaluate[V any](b *Tab, expression string) V {
	b.Helper()
	return try.Get(chromedp.Run(b.ctx, chromedp.Evaluate[V](expression, chromedp.EvalAwaitPromise)))(b.T)
}

// Do runs actions in turn.
func (b *Tab) Do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	try.OK(b.T, chromedp.Do(b.ctx, steps...))
}

// See opens a page.
func (b *Tab) See(url string) {
	b.Helper()
	b.Do(chromedp.Navigate(url))
}

// Press presses keys. A key whose event the page handles types nothing.
func (b *Tab) Press(keys ...string) {
	b.Helper()
	for _, k := range keys {
		event := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: k}
		if len(k) == 1 {
			event.Text = k
		}
		Command(b, input.DispatchKeyEvent, event)
		event.Type, event.Text = input.DispatchKeyEventTypeKeyUp, ""
		Command(b, input.DispatchKeyEvent, event)
	}
}

// Until waits until a condition in JavaScript holds. It says what the page shows if it never does.
func (b *Tab) Until(condition string) {
	b.Helper()
	defer func() {
		if b.Failed() {
			b.Logf("the page shows %q", b.Text("body"))
		}
	}()
	if !eventually.Within(eventually.Timeout, func() bool { // the page's policy forbids chromedp.Poll, which makes a function of a text
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+condition+")"))
		return err == nil && ok
	}) {
		b.Fatalf("never: %s", condition)
	}
}

// Text returns the text that is visible within an element.
func (b *Tab) Text(of string) string {
	b.Helper()
	return Evaluate[string](b, fmt.Sprintf("document.querySelector(%q).innerText", of))
}

// Keep saves a picture of the page if ROCL_SCREENSHOTS names a folder.
func (b *Tab) Keep(name string) {
	b.Helper()
	b.Do(chromedp.Evaluate[chromedp.Void]("scrollTo(0, 0)"))
	picture := try.Get(chromedp.Run(b.ctx, chromedp.CaptureScreenshot()))(b.T)
	if dir := os.Getenv("ROCL_SCREENSHOTS"); dir != "" {
		try.OK(b.T, os.WriteFile(filepath.Join(dir, "see-"+name+".png"), picture, 0o644))
	}
}

// CheckOrigin checks that the tab sent all requests to one origin, and that nothing violated the
// page's policy.
func (b *Tab) CheckOrigin(origin string) {
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

// Metric returns a figure of the tab. Its first call begins to count times.
func (b *Tab) Metric(name string) float64 {
	b.Helper()
	Command(b, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
	for _, m := range Command(b, performance.GetMetrics, cdp.Empty{}).Metrics {
		if m.Name == name {
			return m.Value
		}
	}
	b.Fatalf("the browser has no figure %s", name)
	return 0
}
