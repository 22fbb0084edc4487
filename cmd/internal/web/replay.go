// SPDX-License-Identifier: Apache-2.0

package web

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/resource"
)

const (
	playInterval = 250 * time.Millisecond // between two states of a recording
	maxGap       = 5 * time.Second        // of recorded time from one view to the next; longer ones are cut
	maxSpeed     = 64
)

// A replay plays a recording, at the same place for all viewers of a page. It stands still while
// nobody looks.
type replay struct {
	read   func() (*observe.View, error)
	wake   chan struct{} // has an element after a control was used
	watch  watcher       // this and what follows is used by Page.run only
	ahead  *observe.View // read, and not yet due
	taken  time.Time     // when the last view was taken
	passed time.Duration // of recorded time since then
	err    error         // of read

	mu       sync.Mutex
	state    *state // the last one
	speed    float64
	isPaused bool
	steps    int // views to show in spite of the pause
}

// A place is where in a recording the page is, as a viewer is told.
type place struct {
	Paused bool    `json:"paused"`
	Ended  bool    `json:"ended"`
	Speed  float64 `json:"speed"`
}

// NewReplay returns a page that shows a recording. read returns its views in turn, as
// recording.Reader.Read does, and is not called concurrently.
func NewReplay(g *Gate, read func() (*observe.View, error)) *Page {
	r := &replay{read: read, wake: make(chan struct{}, 1), speed: 1, steps: 1, state: &state{place: &place{Speed: 1}}}
	p := newPage(Options{
		Gate: g, Counts: r.counts,
		Find:       func(*resource.List, int) []resource.GID { return nil }, // before the first view
		Attributes: func(resource.GID) (*resource.List, bool) { return nil, false },
	})
	p.replay = r
	return p
}

// counts returns the figures that the page shows to every process.
func (r *replay) counts() []Count { return r.present().counts }

// present returns the last state.
func (r *replay) present() *state {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// play returns the state after d, and what has changed. It returns the last state again if nothing
// has.
func (r *replay) play(d time.Duration) (*state, []event) {
	r.mu.Lock()
	old, now, steps := r.state, place{r.isPaused, r.err != nil, r.speed}, r.steps
	r.steps = 0
	r.mu.Unlock()
	if !now.Paused {
		r.passed += time.Duration(float64(min(d, 2*playInterval)) * now.Speed)
	}
	s := *old
	var events []event
	isNew := false
	for begun := time.Now(); r.next(); {
		due := min(max(r.ahead.Taken.Sub(r.taken), 0), maxGap)
		if steps > 0 {
			steps--
			r.passed = 0
		} else if now.Paused || r.passed < due {
			break
		} else {
			r.passed -= due
		}
		s.view, s.now, r.taken = r.ahead, r.ahead.Taken, r.ahead.Taken
		events = append(events, r.watch.show(&s, r.ahead)...)
		s.counts = []Count{{"contexts", len(s.contexts)}, {"resources", len(s.resources)}}
		r.ahead, isNew = nil, true
		if steps == 0 && time.Since(begun) > playInterval {
			break // else a pause would wait
		}
	}
	r.passed = min(r.passed, maxGap)
	if now.Ended = r.err != nil; now.Ended && !errors.Is(r.err, io.EOF) {
		s.problem = display.Escape(r.err.Error())
	}
	if !isNew && *old.place == now {
		return old, nil
	}
	s.place = &now
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = &s
	return &s, events
}

// next reads a view, if the one that was read is shown. It reports false at the end.
func (r *replay) next() bool {
	if r.ahead == nil && r.err == nil {
		r.ahead, r.err = r.read()
	}
	return r.err == nil
}

// control serves /replay: it pauses the recording, or changes how it is played.
func (p *Page) control(rw http.ResponseWriter, r *http.Request) {
	if !p.o.Gate.Authorized(r) {
		http.Error(rw, "this needs the URL that 'rocl replay' has printed", http.StatusForbidden)
		return
	}
	y := p.replay
	y.mu.Lock()
	defer y.mu.Unlock()
	switch r.URL.Query().Get("do") {
	case "pause":
		y.isPaused = true
	case "play":
		y.isPaused = false
	case "step":
		y.isPaused = true
		y.steps++
	case "faster":
		y.speed = min(2*y.speed, maxSpeed)
	case "slower":
		y.speed = max(y.speed/2, 1.0/8)
	default:
		http.Error(rw, "do is pause, play, step, faster or slower", http.StatusBadRequest)
		return
	}
	select {
	case y.wake <- struct{}{}:
	default:
	}
	rw.WriteHeader(http.StatusNoContent)
}
