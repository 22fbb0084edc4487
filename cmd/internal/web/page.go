// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/version"
	"github.com/rocl-go/rocl/resource"
)

const (
	interval  = time.Second      // between two views
	writeTime = 10 * time.Second // in which a viewer must take an update
	beatTime  = 10 * time.Second // after which a viewer without news is sent an empty line

	maxViewers = 32 // that are authorized
	maxOthers  = 8  // that see counts only
)

// policy is the page's Content-Security-Policy: only what the daemon serves, nothing inline, no
// frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed static
var static embed.FS

var index = template.Must(template.ParseFS(static, "static/index.html"))

// A Count is a figure that every process of the machine may see.
type Count struct {
	Name  string `json:"name"`
	Value int    `json:"value"`
}

// Options say where a Page gets what it shows. The functions may be called concurrently.
type Options struct {
	Gate   *Gate
	Counts func() []Count
	// View returns what the contexts tell. The page does not change it. It is called once a second
	// while somebody who is authorized looks, and not otherwise.
	View func(context.Context) (*observe.View, error)
	// Find returns at most so many resources that match a pattern.
	Find func(pattern *resource.List, most int) []resource.GID
	// Attributes returns the attributes of a resource of the node.
	Attributes func(resource.GID) (*resource.List, bool)
}

// A Page serves what goes on in a node, to browsers. Its methods may be called concurrently. While
// nobody looks, it has no goroutine and no timer.
type Page struct {
	o       Options
	replay  *replay         // nil: what is shown goes on now
	life    context.Context // ends with Close
	end     context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	viewers  map[bool]int  // by whether they are authorized
	isOpen   bool          // run goes on
	state    *state        // nil while nobody looks
	next     chan struct{} // closed when state is replaced
	events   []event
	numbered int // events so far
}

// NewPage returns a page.
func NewPage(o Options) *Page {
	p := newPage(o)
	p.noteLocked([]event{began(time.Now())})
	return p
}

func newPage(o Options) *Page {
	p := &Page{o: o, viewers: map[bool]int{}, next: make(chan struct{})}
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// Close ends all streams.
func (p *Page) Close() {
	p.mu.Lock()
	p.end()
	p.mu.Unlock()
	p.running.Wait()
}

// Handle adds the page's addresses to mux.
func (p *Page) Handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", p.index)
	mux.HandleFunc("GET /events", p.stream)
	for name, kind := range map[string]string{"page.js": "text/javascript", "page.css": "text/css", "icon.svg": "image/svg+xml"} {
		b, err := static.ReadFile("static/" + name)
		mux.HandleFunc("GET /"+name, func(rw http.ResponseWriter, r *http.Request) {
			if err != nil {
				http.NotFound(rw, r)
				return
			}
			rw.Header().Set("Content-Type", kind+"; charset=utf-8")
			_, _ = rw.Write(b)
		})
	}
	mux.HandleFunc("GET /enter", p.o.Gate.Enter)
	if p.replay != nil {
		mux.Handle("POST /replay", http.NewCrossOriginProtection().Handler(http.HandlerFunc(p.control)))
	}
}

// index serves the page without its rows, and to a client that is no browser the counts as text.
func (p *Page) index(rw http.ResponseWriter, r *http.Request) {
	if !wantsHTML(r) {
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		for _, c := range p.o.Counts() {
			fmt.Fprintf(rw, "%s %d\n", c.Name, c.Value)
		}
		text := "A browser shows the rest: 'rocl web' prints a URL for it. 'rocl top' shows it in a terminal.\n"
		if p.replay != nil {
			text = "A browser shows the rest of this recording, by the URL that 'rocl replay' has printed.\n"
		}
		_, _ = io.WriteString(rw, text)
		return
	}
	var b bytes.Buffer
	err := index.ExecuteTemplate(&b, "index.html", struct {
		Version    string
		Authorized bool
		Replay     bool
		Counts     []Count
	}{version.String(), p.o.Gate.Authorized(r), p.replay != nil, p.o.Counts()})
	if err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError)
		return
	}
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	rw.Header().Set("Content-Security-Policy", policy)
	_, _ = rw.Write(b.Bytes())
}

// join counts a viewer until leave is called. It reports false if there are too many.
func (p *Page) join(isAuthorized bool) (leave func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := maxOthers
	if isAuthorized {
		limit = maxViewers
	}
	if p.viewers[isAuthorized] >= limit || p.life.Err() != nil {
		return nil, false
	}
	p.viewers[isAuthorized]++
	if !p.isOpen {
		p.isOpen = true
		p.running.Go(p.run)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.viewers[isAuthorized]--
	}, true
}

// run makes a state each interval, until nobody looks any more.
func (p *Page) run() {
	every, wake := interval, (<-chan struct{})(nil)
	if p.replay != nil {
		every, wake = playInterval, p.replay.wake
	}
	t := time.NewTicker(every)
	defer t.Stop()
	w := &watcher{page: p}
	for last := time.Now(); ; {
		p.mu.Lock()
		authorized := p.viewers[true]
		if authorized+p.viewers[false] == 0 || p.life.Err() != nil {
			p.isOpen, p.state = false, nil
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		if authorized == 0 {
			w = &watcher{page: p}
		}
		var s *state
		var events []event
		now := time.Now()
		switch {
		case p.replay == nil:
			s, events = w.see(p.life, authorized > 0)
		case authorized > 0:
			s, events = p.replay.play(now.Sub(last))
		default:
			s = p.replay.present()
		}
		last = now
		p.mu.Lock()
		p.noteLocked(events)
		p.state = s
		close(p.next)
		p.next = make(chan struct{})
		p.mu.Unlock()
		select {
		case <-t.C:
		case <-wake:
		case <-p.life.Done():
		}
	}
}

// A watcher makes states of successive views.
type watcher struct {
	page     *Page
	observer observe.Observer
	eye      eye
	last     state
}

// see returns the present state and what has changed. With isFull it asks for a view.
func (w *watcher) see(ctx context.Context, isFull bool) (*state, []event) {
	s := w.last
	s.counts, s.now, s.problem = w.page.o.Counts(), time.Now(), ""
	if !isFull {
		return &s, nil
	}
	v, err := w.page.o.View(ctx)
	if err != nil {
		s.problem = display.Escape(err.Error())
		return &s, nil
	}
	events := w.show(&s, v)
	w.last = s
	return &s, events
}

// show adds a view, sets what s has of views, and returns what has changed.
func (w *watcher) show(s *state, v *observe.View) []event {
	w.observer.Add(v)
	s.nodes, s.contexts, s.resources = v.Nodes, w.observer.Contexts(), w.observer.Resources()
	s.links, s.calls, s.handlers = w.observer.Links(), w.observer.Calls(), w.observer.Handlers()
	return w.eye.look(s)
}

// present returns the present state, which is nil at first, the events after number n, and a
// channel that is closed when there is a newer state.
func (p *Page) present(n int) (s *state, events []event, next <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.events {
		if p.events[i].Number > n {
			events = append([]event(nil), p.events[i:]...)
			break
		}
	}
	return p.state, events, p.next
}

// A message is an update of a viewer. It has what has changed since the one before.
type message struct {
	Now        int64             `json:"now"`            // in milliseconds
	Full       bool              `json:"full,omitempty"` // the first message of a stream
	Authorized bool              `json:"authorized"`
	Problem    string            `json:"problem,omitempty"`
	Place      *place            `json:"place,omitempty"` // nil: what is shown goes on now
	Counts     []Count           `json:"counts"`
	Tables     map[string]*delta `json:"tables,omitempty"`
	Events     []event           `json:"events,omitempty"`
}

// stream serves updates as server-sent events, until the viewer goes or is too slow.
func (p *Page) stream(rw http.ResponseWriter, r *http.Request) {
	isAuthorized := p.o.Gate.Authorized(r)
	q := query{r.URL.Query().Get("q"), r.URL.Query().Get("sort")}
	if _, ok := orders[q.sort]; !ok {
		q.sort = "waiting"
	}
	q.text = q.text[:min(len(q.text), maxQuery)]
	leave, ok := p.join(isAuthorized)
	if !ok {
		rw.Header().Set("Retry-After", "10")
		http.Error(rw, "too many look at this page", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	rw.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(rw)
	_ = rc.SetReadDeadline(time.Time{}) // the server's limit is for requests; not every test's connection has one
	v := &viewer{page: p, query: q, isAuthorized: isAuthorized, shown: map[string]*shown{}}
	write := func(text string, args ...any) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(writeTime))
		_, err := fmt.Fprintf(rw, text, args...)
		return err == nil && rc.Flush() == nil
	}
	wrote := time.Now()
	for ok := write("retry: 1000\n\n"); ok && p.o.Gate.Authorized(r) == isAuthorized; {
		s, events, next := p.present(v.seen)
		if b := v.update(s, events); b != nil {
			ok, wrote = write("data: %s\n\n", b), time.Now()
		} else if time.Since(wrote) > beatTime {
			ok, wrote = write(":\n\n"), time.Now()
		}
		select {
		case <-next:
		case <-r.Context().Done():
			return
		case <-p.life.Done():
			return
		}
	}
}

// A viewer is one stream, and what it has been sent.
type viewer struct {
	page         *Page
	query        query
	isAuthorized bool
	shown        map[string]*shown
	seen         int    // number of the last event
	state        *state // the last one
	last         []byte // counts, problem and place
}

// update returns the next message as JSON, or nil if nothing has changed.
func (v *viewer) update(s *state, events []event) []byte {
	if s == nil || s == v.state {
		return nil
	}
	v.state = s
	m := message{Now: s.now.UnixMilli(), Full: v.last == nil, Authorized: v.isAuthorized, Place: s.place, Counts: s.counts}
	if v.isAuthorized {
		m.Problem, m.Events, m.Tables = s.problem, events, map[string]*delta{}
		tables, err := v.page.tables(s, v.query)
		if err != nil {
			m.Problem = display.Escape(err.Error())
		}
		for name, t := range tables {
			if v.shown[name] == nil {
				v.shown[name] = &shown{}
			}
			if d := v.shown[name].update(t); d != nil {
				m.Tables[name] = d
			}
		}
		if len(events) > 0 {
			v.seen = events[len(events)-1].Number
		}
	}
	head := fmt.Append(nil, m.Counts, m.Problem)
	if s.place != nil {
		head = fmt.Append(head, *s.place, m.Now)
	}
	if len(m.Tables) == 0 && len(m.Events) == 0 && bytes.Equal(head, v.last) {
		return nil
	}
	v.last = head
	b, err := json.Marshal(m)
	if err != nil {
		return nil
	}
	return b
}
