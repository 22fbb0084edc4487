// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// recorded returns a function that reads a view for each moment after begin, and then fails with
// err.
func recorded(begin time.Time, err error, moments ...time.Duration) func() (*observe.View, error) {
	n := 0
	return func() (*observe.View, error) {
		if n == len(moments) {
			return nil, err
		}
		n++
		return node(begin.Add(moments[n-1]), 2, n), nil
	}
}

// seconds are the moments of a recording of a minute.
func seconds() (all []time.Duration) {
	for i := range 60 {
		all = append(all, time.Duration(i)*time.Second)
	}
	return all
}

// A recording is played as fast as it was recorded, or faster or slower. It stands still in a
// pause, except for steps, and while nobody looks. Gaps are cut.
//
// Promise (Observing): A recording is played on the page, at the same place for all viewers.
func TestReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		moments := append(seconds(), time.Hour, time.Hour+time.Second)
		p := NewReplay(NewGate("x"), recorded(begin, io.EOF, moments...))
		defer p.Close()
		leave, ok := p.join(true)
		try.Equal(t, ok, true, "a viewer")
		do := func(action string) {
			rec := httptest.NewRecorder()
			p.control(rec, overUnix("POST", "/replay?do="+action))
			try.Equal(t, rec.Code, http.StatusNoContent, "%s", action)
			synctest.Wait()
		}
		at := func(want time.Duration, place place, what string) {
			t.Helper()
			synctest.Wait()
			s := p.replay.present()
			try.Equal(t, s.now.Sub(begin), want, "%s", what)
			try.Equal(t, *s.place, place, "%s", what)
		}
		wait := func(d time.Duration) { time.Sleep(d + time.Millisecond); synctest.Wait() }
		at(0, place{Speed: 1}, "the first view, at once")
		wait(3 * time.Second)
		at(3*time.Second, place{Speed: 1}, "after three seconds")
		do("pause")
		wait(time.Hour)
		at(3*time.Second, place{Paused: true, Speed: 1}, "in a pause")
		do("step")
		do("step")
		at(5*time.Second, place{Paused: true, Speed: 1}, "after two steps")
		do("faster")
		do("faster")
		do("play")
		wait(5*time.Second + playInterval)
		at(25*time.Second, place{Speed: 4}, "four times as fast")
		leave()
		wait(time.Hour)
		at(25*time.Second, place{Speed: 4}, "while nobody looks")
		leave, _ = p.join(true)
		defer leave()
		for range 5 {
			do("slower")
		}
		wait(16 * time.Second)
		at(27*time.Second, place{Speed: 1.0 / 8}, "an eighth as fast")
		for range 9 {
			do("faster")
		}
		wait(time.Second)
		at(time.Hour+time.Second, place{Ended: true, Speed: maxSpeed}, "at the end, over the gap")
		if _, events, _ := p.present(0); len(events) != 0 {
			t.Errorf("nothing changed, and %v was told", events)
		}
	})
}

// overUnix returns a request that the socket's mode has let in.
func overUnix(method, path string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{Net: "unix"}))
}

// A recording that was cut off is shown as far as it goes, and says so.
func TestReplayCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		p := NewReplay(NewGate("x"), recorded(begin, errors.New("after 2 views: \u202eend"), 0, time.Second))
		defer p.Close()
		leave, _ := p.join(true)
		defer leave()
		time.Sleep(time.Minute)
		s := p.replay.present()
		if s.now.Sub(begin) != time.Second || !s.place.Ended || s.problem != `after 2 views: \u202eend` {
			t.Errorf("%v, %+v, %q", s.now.Sub(begin), s.place, s.problem)
		}
	})
}

// A viewer gets the rows of the recording, patterns match its names, and only who may see them
// changes how it is played.
func TestReplayAccess(t *testing.T) {
	g, socket := published(t)
	_, cookies := entered(t, g, try.Get(URL(socket))(t))
	v := node(time.Now(), 3, 7)
	v.Contexts[1].Resources[0].Name = "type=gpu memory=8"
	views := []*observe.View{v}
	p := NewReplay(g, func() (*observe.View, error) {
		if len(views) == 0 {
			return nil, io.EOF
		}
		v := views[0]
		views = nil
		return v, nil
	})
	mux := http.NewServeMux()
	p.Handle(mux)
	s := httptest.NewServer(Guard(mux, true))
	defer s.Close()
	defer p.Close()
	if m, sent := read(t, s, "", nil).next(); m.Tables != nil || m.Place == nil {
		t.Errorf("without a token: %s", sent)
	}
	r := read(t, s, "q=memory%3E4", cookies)
	m, sent := r.next()
	for m.Tables["resources"].Total == 0 { // before the first view
		m, sent = r.next()
	}
	if m.Tables["resources"].Total != 1 || m.Place == nil || m.Now != v.Taken.UnixMilli() {
		t.Errorf("%s", sent)
	}
	for _, c := range []struct {
		method, do, site string
		cookies          []*http.Cookie
		want             int
	}{
		{"POST", "pause", "", nil, 403},
		{"POST", "pause", "same-site", cookies, 403},
		{"POST", "pause", "cross-site", cookies, 403},
		{"GET", "pause", "", cookies, 405},
		{"POST", "stop", "same-origin", cookies, 400},
		{"POST", "pause", "same-origin", cookies, 204},
	} {
		r := try.Get(http.NewRequest(c.method, s.URL+"/replay?do="+c.do, nil))(t)
		with(c.cookies)(r)
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
			r.Header.Set("Sec-Fetch-Mode", "navigate")
		}
		resp := try.Get(s.Client().Do(r))(t)
		resp.Body.Close()
		try.Equal(t, resp.StatusCode, c.want, "%v", c)
		p.replay.mu.Lock()
		try.Equal(t, p.replay.isPaused, c.want == 204, "%v", c)
		p.replay.mu.Unlock()
	}
}

// A narrow listener accepts connections that hold few bytes on their way.
type narrow struct{ net.Listener }

func (n narrow) Accept() (net.Conn, error) {
	nc, err := n.Listener.Accept()
	if tcp, ok := nc.(*net.TCPConn); ok {
		err = errors.Join(err, tcp.SetWriteBuffer(4<<10))
	}
	return nc, err
}

// A viewer whose connection takes nothing is dropped. Until then the updates that it misses are not
// kept for it, and another viewer gets all of them.
//
// Promise (Commands): A viewer of the page that reads nothing is dropped.
func TestStuckConnection(t *testing.T) {
	g, socket := published(t)
	_, cookies := entered(t, g, try.Get(URL(socket))(t))
	begin, n := time.Now(), 0
	p := NewReplay(g, func() (*observe.View, error) {
		n++
		v := node(begin.Add(time.Duration(n)*time.Second), maxRows, n)
		for i := range v.Contexts {
			v.Contexts[i].Resources[0].Name = fmt.Sprintf("update=%d %s", n, strings.Repeat("x", 400))
		}
		return v, nil
	})
	mux := http.NewServeMux()
	p.Handle(mux)
	s := httptest.NewUnstartedServer(mux)
	s.Listener = narrow{s.Listener}
	s.Start()
	defer s.Close()
	defer p.Close()
	isDropped := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.viewers[true] == 1
	}
	good := read(t, s, "", cookies)
	good.next()
	nc := try.Get(net.Dial("tcp", s.Listener.Addr().String()))(t)
	defer nc.Close()
	try.OK(t, nc.(*net.TCPConn).SetReadBuffer(4<<10))
	try.Get(fmt.Fprintf(nc, "GET /events HTTP/1.1\r\nHost: localhost\r\nCookie: %s=%s\r\n\r\n", cookies[0].Name, cookies[0].Value))(t)
	eventually.True(t, "two viewers", func() bool { return !isDropped() })

	steps := func(n int) uint64 {
		for range n {
			rec := httptest.NewRecorder()
			p.control(rec, overUnix("POST", "/replay?do=step"))
			for m, _ := good.next(); len(m.Tables["resources"].Rows) != maxRows; { // it tells of the pause only
				m, _ = good.next()
			}
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := steps(8)                            // more than the connection holds
	if after := steps(40); after > before+2<<20 { // 40 updates have more than 4 MB
		t.Errorf("the memory has grown from %d to %d bytes", before, after)
	}
	eventually.True(t, "the stuck viewer is dropped", isDropped)
	steps(1)
}
