// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// hostile is an attribute's value that would be markup, control a terminal, and turn text around.
const hostile = "<script>alert(1)</script>\u202e\x1b[2J\x00"

// node returns a view of so many contexts with one resource each, in which waiting messages wait.
func node(now time.Time, contexts, waiting int) *observe.View {
	v := &observe.View{Taken: now}
	for i := range contexts {
		var c observe.Context
		c.Context, c.Program, c.PID = resource.MakeGID(7, uint64(i+1), 0), hostile, 100+i
		r := rocl.ResourceSnapshot{Name: hostile}
		r.Resource, r.Messages = c.Context.WithSerial(1), waiting
		r.Handlers = []rocl.HandlerSnapshot{{Name: hostile, Running: 1, Ended: uint64(now.UnixNano()), Took: []uint64{uint64(now.UnixNano())}}}
		c.Resources = append(c.Resources, r)
		l := dispatch.LinkSnapshot{State: "connected"}
		l.Peer, l.Transport = resource.MakeGID(7, uint64((i+1)%contexts+1), 0), "shm"
		c.Links = append(c.Links, l)
		v.Contexts = append(v.Contexts, c)
	}
	v.Clean()
	return v
}

// opened returns a page of views that view makes, its gate's cookies, and a server of it.
func opened(t *testing.T, view func(context.Context) (*observe.View, error)) (*Page, []*http.Cookie, *httptest.Server) {
	t.Helper()
	g, socket := published(t)
	_, cookies := entered(t, g, try.Get(URL(socket))(t))
	p := NewPage(Options{
		Gate: g, View: view, Counts: func() []Count { return []Count{{"resources", 5}} },
		Find: func(l *resource.List, most int) []resource.GID {
			if l.GetString("type") == "second" {
				return []resource.GID{resource.MakeGID(7, 2, 1)}
			}
			return nil
		},
		Attributes: func(id resource.GID) (*resource.List, bool) {
			var l resource.List
			try.OK(t, l.AddString("type", hostile+strings.Repeat("x", 10_000)))
			return &l, id.Ctx() == 1
		},
	})
	mux := http.NewServeMux()
	p.Handle(mux)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Cleanup(p.Close)
	return p, cookies, s
}

// A reader reads the messages of a stream.
type reader struct {
	*testing.T
	lines *bufio.Scanner
}

// read opens a stream, which ends with the test.
func read(t *testing.T, s *httptest.Server, query string, cookies []*http.Cookie) *reader {
	t.Helper()
	r := try.Get(http.NewRequestWithContext(t.Context(), "GET", s.URL+"/events?"+query, nil))(t)
	with(cookies)(r)
	resp := try.Get(s.Client().Do(r))(t)
	t.Cleanup(func() { resp.Body.Close() })
	try.Equal(t, resp.Header.Get("Content-Type"), "text/event-stream", "type")
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<24)
	return &reader{t, lines}
}

// A got is a message as a browser reads it.
type got struct {
	message
	Tables map[string]struct {
		Total int
		Order []string
		Rows  map[string]struct {
			C []string
			M string
		}
	} `json:"tables"`
}

// next returns the next message, as it was sent too.
func (r *reader) next() (m got, sent string) {
	r.Helper()
	for r.lines.Scan() {
		if text, ok := strings.CutPrefix(r.lines.Text(), "data: "); ok {
			try.OK(r.T, json.Unmarshal([]byte(text), &m))
			return m, text
		}
	}
	r.Fatalf("the stream has ended: %v", r.lines.Err())
	return m, ""
}

// Another user's request sees counts, and no identifier and no attribute. It asks no context.
//
// Promise (Commands): A process without a token sees counts on the page of a daemon, and neither
// identifiers nor attributes.
func TestLocked(t *testing.T) {
	_, _, s := opened(t, func(context.Context) (*observe.View, error) {
		t.Error("a context is asked")
		return nil, errors.New("never")
	})
	index := func(accept string) (http.Header, string) {
		r := try.Get(http.NewRequest("GET", s.URL+"/", nil))(t)
		r.Header.Set("Accept", accept)
		resp := try.Get(s.Client().Do(r))(t)
		defer resp.Body.Close()
		return resp.Header, string(try.Get(io.ReadAll(resp.Body))(t))
	}
	if h, text := index("*/*"); !strings.HasPrefix(h.Get("Content-Type"), "text/plain") || !strings.HasPrefix(text, "resources 5\n") || !strings.Contains(text, "rocl web") || strings.Count(text, "\n") != 2 {
		t.Errorf("curl gets %s: %s", h, text)
	}
	head, text := index("text/html,*/*;q=0.8")
	csp := head.Get("Content-Security-Policy")
	if !strings.Contains(text, "<dt>resources</dt><dd>5</dd>") || strings.Contains(text, `class="authorized"`) || strings.Contains(csp, "unsafe") || !strings.HasPrefix(csp, "default-src 'none'; script-src 'self';") {
		t.Errorf("%s: %s", csp, text)
	}
	m, sent := read(t, s, "", nil).next()
	if m.Authorized || len(m.Counts) != 1 || m.Tables != nil || m.Events != nil || strings.Contains(sent, "type") {
		t.Errorf("%s", sent)
	}
	for path, want := range map[string]int{"/": 200, "/page.js": 200, "/page.css": 200, "/icon.svg": 200, "/static/index.html": 404, "/nothing": 404} {
		resp := try.Get(s.Client().Get(s.URL + path))(t)
		resp.Body.Close()
		try.Equal(t, resp.StatusCode, want, "%s", path)
	}
}

// A viewer is sent all rows at first, and then what has changed. Texts of programs are quoted and
// short.
func TestStream(t *testing.T) {
	var waiting atomic.Int64
	waiting.Store(3)
	_, cookies, s := opened(t, func(context.Context) (*observe.View, error) {
		n := int(waiting.Load())
		v := node(time.Now(), 3, 0)
		v.Contexts[1].Resources[0].Messages = n
		return v, nil
	})
	r := read(t, s, "", cookies)
	m, sent := r.next()
	table := m.Tables["resources"]
	second := resource.MakeGID(7, 2, 1).String()
	if !m.Full || !m.Authorized || table.Total != 3 || len(table.Order) != 3 || table.Order[0] != second || table.Rows[second].C[3] != "3" || m.Tables["links"].Total != 3 || m.Tables["edges"].Total != 3 {
		t.Errorf("%s", sent)
	}
	if strings.ContainsAny(sent, "<>\u202e\x1b\x00") || len(sent) > 10_000 {
		t.Errorf("%d bytes: %.2000s", len(sent), sent)
	}
	waiting.Store(4)
	for len(m.Tables["resources"].Rows) != 1 || m.Tables["resources"].Rows[second].C[3] != "4" { // the time that they stand changes too
		if m, sent = r.next(); m.Full || m.Tables["resources"].Order != nil || len(m.Tables["links"].Rows) > 0 {
			t.Fatalf("%s", sent)
		}
	}
	for query, want := range map[string]int{"q=type%3Dsecond": 1, "q=type%3Dfirst": 0, "q=" + second: 1, "q=SCRIPT": 3, "q=%20": 3, "sort=name": 3, "sort=none": 3, "q=" + strings.Repeat("z", 5000): 0} {
		m, _ := read(t, s, query, cookies).next()
		try.Equal(t, m.Tables["resources"].Total, want, "%.60s", query)
	}
	if m, sent := read(t, s, "q=%3D%3D", cookies).next(); m.Problem == "" {
		t.Errorf("a wrong pattern: %s", sent)
	}
}

// The number of viewers is limited. Viewers without a token do not keep the others out. When the
// last one has gone, and after Close, nothing asks the contexts.
func TestViewers(t *testing.T) {
	var asked atomic.Int64
	p, cookies, s := opened(t, func(context.Context) (*observe.View, error) {
		asked.Add(1)
		return nil, errors.New("the directory is \u202egone")
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open := func(ctx context.Context, cookies []*http.Cookie) int {
		r := try.Get(http.NewRequestWithContext(ctx, "GET", s.URL+"/events", nil))(t)
		with(cookies)(r)
		resp := try.Get(s.Client().Do(r))(t)
		t.Cleanup(func() { resp.Body.Close() })
		return resp.StatusCode
	}
	for _, of := range []struct {
		cookies []*http.Cookie
		most    int
	}{{nil, maxOthers}, {cookies, maxViewers}} {
		for i := range of.most {
			try.Equal(t, open(ctx, of.cookies), http.StatusOK, "viewer %d", i)
		}
		try.Equal(t, open(ctx, of.cookies), http.StatusServiceUnavailable, "one more")
	}
	if n := asked.Load(); n > 3 {
		t.Errorf("the contexts were asked %d times for %d viewers", n, maxViewers)
	}
	cancel()
	eventually.True(t, "nobody looks, and nothing runs", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.isOpen && p.state == nil && p.viewers[true]+p.viewers[false] == 0
	})
	m, sent := read(t, s, "", cookies).next()
	if m.Problem != `the directory is \u202egone` {
		t.Errorf("%s", sent)
	}
	p.Close()
	try.Equal(t, open(t.Context(), cookies), http.StatusServiceUnavailable, "after Close")
}

// A page that nobody looks at runs nothing; with a viewer it asks once a second.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		g := NewGate("sock")
		p := NewPage(Options{Gate: g, Counts: func() []Count { return nil }, View: func(context.Context) (*observe.View, error) {
			asked.Add(1)
			return node(time.Now(), 1, 0), nil
		}})
		defer p.Close()
		time.Sleep(time.Hour)
		try.Equal(t, asked.Load(), 0, "questions while nobody looks")
		leave, ok := p.join(true)
		try.Equal(t, ok, true, "a viewer")
		time.Sleep(time.Minute + time.Millisecond)
		try.Equal(t, asked.Load(), 61, "questions in a minute")
		leave()
		time.Sleep(time.Hour)
		try.Equal(t, asked.Load(), 61, "questions after it")
	})
}

// The time line tells what has changed from one view to the next.
func TestEvents(t *testing.T) {
	now := time.Now()
	var e eye
	see := func(change func(s *state)) string {
		now = now.Add(time.Second)
		s := &state{now: now}
		for i := range 2 {
			c := observe.ContextRow{}
			c.Context, c.Program, c.PID = resource.MakeGID(7, uint64(i+1), 0), "p", i
			s.contexts = append(s.contexts, c)
			r := observe.Resource{Whose: c.Whose}
			r.Resource, r.Name = c.Context.WithSerial(1), "type=x"
			s.resources = append(s.resources, r)
		}
		l := observe.Link{Whose: s.contexts[0].Whose}
		l.Peer, l.State = s.contexts[1].Context, "connected"
		s.links = append(s.links, l)
		s.nodes = append(s.nodes, observe.Node{ID: 7, Name: "host", Addr: "a:1"})
		change(s)
		text := ""
		for _, ev := range e.look(s) {
			text += ev.Kind + ": " + ev.Text + "\n"
		}
		return text
	}
	same := func(*state) {}
	context1, context2 := resource.MakeGID(7, 1, 0), resource.MakeGID(7, 2, 0)
	for i, c := range []struct {
		change func(s *state)
		want   string
	}{
		{same, ""}, // what was there before
		{same, ""},
		{func(s *state) { s.contexts, s.resources, s.links = s.contexts[:1], s.resources[:1], nil }, fmt.Sprintf("gone: p 1, context %v\n", context2)},
		{same, fmt.Sprintf("appeared: p 1, context %v\n", context2)},
		{func(s *state) { s.resources = s.resources[:1] }, fmt.Sprintf("gone: resource %v type=x of p 1\n", context2.WithSerial(1))},
		{same, fmt.Sprintf("appeared: resource %v type=x of p 1\n", context2.WithSerial(1))},
		{func(s *state) { s.contexts[0].Silent, s.contexts[0].Reason = 4*time.Second, "no answer" }, "silent: p 0 does not answer: no answer\n"},
		{same, "back: p 0 answers again after 4 s\n"},
		{func(s *state) { s.links[0].State, s.links[0].Dialling = "dialling", "refused" }, fmt.Sprintf("cut: link from p 0 to %v: refused\n", context2)},
		{same, fmt.Sprintf("healed: link from p 0 to %v\n", context2)},
		{func(s *state) { s.links[0].Resumed = 1 }, fmt.Sprintf("healed: link from p 0 to %v\n", context2)},
		{func(s *state) { s.nodes[0].Error = "no answer" }, "cut: node host: no answer\n"},
		{same, "healed: node host\n"},
		{func(s *state) { s.nodes[0].Addr = "b:1" }, "took over: another process serves node host, at b:1\n"},
		{func(s *state) { s.nodes[0].Addr = "b:1"; s.nodes = append(s.nodes, observe.Node{ID: 8}) }, "appeared: node 000000000008\n"},
		{func(s *state) { s.nodes[0].Addr = "b:1" }, "gone: node 000000000008\n"},
	} {
		try.Equal(t, see(c.change), c.want, "step %d", i)
	}
	text := see(func(s *state) {
		s.nodes[0].Addr = "b:1"
		for i := range 1000 {
			r := s.resources[0]
			r.Resource = context1.WithSerial(uint32(i + 2))
			s.resources = append(s.resources, r)
		}
	})
	if n := strings.Count(text, "\n"); n != maxEventsAView+1 || !strings.Contains(text, "and 988 more") {
		t.Errorf("%d events of 1000: %s", n, text)
	}
}

// A viewer that reads nothing is dropped, and holds nobody up.
func TestSlowViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate("sock")
		p := NewPage(Options{Gate: g, Counts: func() []Count { return []Count{{"seconds", int(time.Now().Unix())}} }})
		defer p.Close()
		w := &stuck{header: http.Header{}}
		var streams sync.WaitGroup
		streams.Go(func() { p.stream(w, request("/events")) })
		time.Sleep(time.Minute)
		streams.Wait()
		try.Equal(t, p.viewers[false], 0, "viewers")
	})
}

// A stuck connection takes one write, and lets others wait until their deadline.
type stuck struct {
	header   http.Header
	writes   int
	deadline time.Time
}

func (s *stuck) Header() http.Header                 { return s.header }
func (s *stuck) WriteHeader(int)                     {}
func (s *stuck) Flush()                              {}
func (s *stuck) SetWriteDeadline(at time.Time) error { s.deadline = at; return nil }
func (s *stuck) Write(b []byte) (int, error) {
	if s.writes++; s.writes == 1 {
		return len(b), nil
	}
	time.Sleep(time.Until(s.deadline)) // as a connection does whose other end reads nothing
	return 0, context.DeadlineExceeded
}

// Texts of figures are short.
func TestFigures(t *testing.T) {
	for n, want := range map[float64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 9999: "10.0 kB", 12345: "12 kB", 999_600: "1.0 MB", 1 << 56: "72 PB", 1e30: "1000000000000 EB"} {
		try.Equal(t, size(n), want, "%v bytes", n)
	}
	for n, want := range map[float64]string{0: "", 0.25: "0.2/s", 9.5: "9.5/s", 12: "12/s", 1234: "1.2 k/s"} {
		try.Equal(t, frequency(n), want, "%v times a second", n)
	}
	for d, want := range map[time.Duration]string{0: "", 100: "0.1 µs", 12345: "12 µs", 999_600: "1.0 ms", 1500 * time.Millisecond: "1.5 s", time.Hour: "3600 s"} {
		try.Equal(t, latency(d), want, "%v", d)
	}
	for d, want := range map[time.Duration]string{0: "", 999 * time.Millisecond: "", 59 * time.Second: "59 s", time.Minute: "1 min 0 s", 90 * time.Second: "1 min 30 s", 3 * time.Hour: "3 h 0 min"} {
		try.Equal(t, length(d), want, "%v", d)
	}
}
