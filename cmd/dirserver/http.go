// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rocl-go/rocl/cmd/internal/web"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/connlimit"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/os/sockerr"
)

const (
	aliveTime = time.Second      // in which the database must answer
	aloneTime = 10 * time.Second // after which a member that should join others is ready without having met one
	closeTime = 2 * time.Second  // limit for requests under way at the end

	listenAgain = time.Second // how often an address is tried that the machine does not have

	maxReaders         = 64 // limit of concurrent connections to metrics and health
	maxReadersOfSource = 32 // limit of those from one address
)

// watched is the state that metrics and health report.
type watched struct {
	server  *directory.Server
	cluster func() *cluster.Cluster // nil without a cluster; returns nil until the node is a member
	missing func() error            // why the node is no member; nil without a cluster
	joins   bool                    // the settings name other members
	name    string                  // name of the cluster
	log     *slog.Logger
	gate    *web.Gate // decides which requests may see more than counts
	page    *web.Page

	programs prometheus.Collector // of metrics of the contexts of the node; nil: they are not asked

	begun   time.Time
	serving atomic.Bool
	ending  atomic.Bool
	met     atomic.Bool

	probeMu sync.Mutex
	probe   *probe // the probe of the database that waits for an answer, or nil
}

// A probe asks the database how many resources it has. All requests that arrive while it waits
// share it.
type probe struct {
	done      chan struct{}
	resources int // set before done is closed
}

// node returns the number of the node as text.
func (w *watched) node() string { return fmt.Sprintf("%012x", uint64(w.server.Node())) }

// check is one condition, with whether it is met and why.
type check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason"`
}

// database checks that the database answers. If the database hangs, one probe waits for it, not one
// for each request.
func (w *watched) database() check {
	w.probeMu.Lock()
	p := w.probe
	if p == nil {
		p = &probe{done: make(chan struct{})}
		w.probe = p
		go func() {
			p.resources = w.server.Database().Len()
			w.probeMu.Lock()
			w.probe = nil
			w.probeMu.Unlock()
			close(p.done)
		}()
	}
	w.probeMu.Unlock()
	late := time.NewTimer(aliveTime)
	defer late.Stop()
	select {
	case <-p.done:
		return check{"database", true, fmt.Sprintf("answers, %d resources", p.resources)}
	case <-late.C:
		return check{"database", false, fmt.Sprintf("has not answered for %v", aliveTime)}
	}
}

// served checks that all sockets are served.
func (w *watched) served() check {
	switch {
	case w.ending.Load():
		return check{"serving", false, "stopping"}
	case !w.serving.Load():
		return check{"serving", false, "starting"}
	}
	return check{"serving", true, "all sockets are served"}
}

// member checks the node's membership. The check is met if the node is in no cluster, has met
// another member, has no others to meet, or has tried for aloneTime. In the last case the node is
// the first member, or all other members are down, and it must serve its own programs. The check is
// not met if more members refuse the node than it has met: then the node is most likely the one
// with the wrong key.
func (w *watched) member() check {
	if w.cluster == nil {
		return check{"cluster", true, "the node is in none"}
	}
	c := w.cluster()
	if c == nil && w.missing != nil && w.missing() != nil {
		return check{"cluster", false, display.Error(w.missing())}
	}
	if c == nil {
		return check{"cluster", false, "not a member yet"}
	}
	s := c.Stats()
	if s.Joins > 0 {
		w.met.Store(true)
	}
	here := fmt.Sprintf("%d members alive, %d away, %d dead", s.Alive, s.Away, s.Dead)
	if s.Refused > 0 {
		here += "; " + display.Escape(fmt.Sprintf("%d refuse this node: %s", s.Refused, strings.Join(s.Refusing, "; ")))
	}
	switch {
	case s.Refused > s.Alive-1:
		return check{"cluster", false, here}
	case w.met.Load(), !w.joins:
		return check{"cluster", true, here}
	case time.Since(w.begun) >= aloneTime:
		return check{"cluster", true, fmt.Sprintf("no other member was met in %v: the node serves alone; %s", aloneTime, here)}
	}
	return check{"cluster", false, "no other member was met yet"}
}

// handler returns the handler of all that is served at --http. It serves reading only. local says
// that the address is reachable from this machine only.
func (w *watched) handler(local bool) http.Handler {
	reg := newRegistry(w)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(w.log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: 4, Timeout: 10 * time.Second, EnableOpenMetrics: true,
	}))
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, r *http.Request) { writeChecks(rw, r, w.database()) })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, r *http.Request) {
		writeChecks(rw, r, w.served(), w.database(), w.member())
	})
	w.page.Handle(mux)
	mux.HandleFunc("GET /debug/pprof/", w.authorized(pprof.Index)) // the address of each profile, too
	for name, h := range map[string]http.HandlerFunc{"cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
		mux.HandleFunc("GET /debug/pprof/"+name, w.authorized(h))
	}
	return web.Guard(mux, local)
}

// authorized returns a handler that refuses requests that the gate does not let in.
func (w *watched) authorized(h http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		if !w.gate.Authorized(r) {
			http.Error(rw, "this needs the token of the node's user: 'rocl web' prints a URL with one", http.StatusForbidden)
			return
		}
		h(rw, r)
	}
}

// writeChecks writes the checks, a line for each, or as JSON if the request asks for JSON. The
// status is 200 if all checks are met, and 503 otherwise.
func writeChecks(rw http.ResponseWriter, r *http.Request, checks ...check) {
	ok := true
	for _, c := range checks {
		ok = ok && c.OK
	}
	status, word := http.StatusOK, "ok"
	if !ok {
		status, word = http.StatusServiceUnavailable, "not ok"
	}
	if r.URL.Query().Get("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json") {
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(status)
		_ = json.NewEncoder(rw).Encode(struct {
			OK     bool    `json:"ok"`
			Checks []check `json:"checks"`
		}{ok, checks})
		return
	}
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	rw.WriteHeader(status)
	fmt.Fprintln(rw, word)
	for _, c := range checks {
		mark := "+"
		if !c.OK {
			mark = "-"
		}
		fmt.Fprintf(rw, "%s %s: %s\n", mark, c.Name, c.Reason)
	}
}

// open serves metrics and health at an address until end is called.
func (w *watched) open(at string) (end func(), err error) {
	if path, ok := strings.CutPrefix(at, "unix:"); ok {
		ln, err := listenUnix(path)
		if err != nil {
			return nil, fmt.Errorf("serving metrics and health at --http %s: %w", at, err)
		}
		return w.serveHTTP(ln), nil
	}
	ln, err := net.Listen("tcp", at)
	if sockerr.Is(err, syscall.EADDRNOTAVAIL) {
		return w.openLater(at, err), nil
	}
	if err != nil {
		return nil, fmt.Errorf("serving metrics and health at --http %s: %w", at, err)
	}
	return w.serveHTTP(ln), nil
}

// listenUnix listens at a Unix socket, in place of one that a dead process left. The socket has
// mode 0600.
func listenUnix(path string) (net.Listener, error) {
	lc := net.ListenConfig{Control: beforeBind}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if !sockerr.Is(err, syscall.EADDRINUSE) {
		return ln, err
	}
	if fi, e := os.Lstat(path); e != nil || fi.Mode().Type() != os.ModeSocket {
		return nil, err
	}
	nc, e := net.DialTimeout("unix", path, time.Second)
	if e == nil {
		nc.Close()
	}
	if !sockerr.Is(e, syscall.ECONNREFUSED) {
		return nil, err
	}
	if e := os.Remove(path); e != nil {
		return nil, e
	}
	return lc.Listen(context.Background(), "unix", path)
}

// pageURL returns the URL by which programs of this machine reach the page at a listener.
func pageURL(at net.Addr) string {
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return "unix:" + at.String()
	}
	host := tcp.AddrPort().Addr().Unmap()
	switch {
	case host.Is4() && host.IsUnspecified():
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case host.IsUnspecified():
		host = netip.IPv6Loopback()
	}
	return "http://" + netip.AddrPortFrom(host, uint16(tcp.Port)).String()
}

// openLater serves metrics and health as soon as the machine has the address, until end is called.
// err says that it does not have the address now.
func (w *watched) openLater(at string, err error) func() {
	// Cause: the address of `--http` is tried every second. Remedy: correct it if it does not come.
	w.log.Warn("metrics and health are not served: the machine does not have the address", "http", at, "err", err)
	life, stop := context.WithCancel(context.Background())
	end := func() {}
	var busy sync.WaitGroup
	busy.Go(func() {
		t := time.NewTicker(listenAgain)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-life.Done():
				return
			}
			if ln, err := net.Listen("tcp", at); err == nil {
				end = w.serveHTTP(ln)
				return
			}
		}
	})
	return func() {
		stop()
		busy.Wait()
		end()
	}
}

// serveHTTP serves metrics and health at a listener until end is called.
func (w *watched) serveHTTP(ln net.Listener) (end func()) {
	tcp, ok := ln.Addr().(*net.TCPAddr)
	local := !ok || tcp.IP.IsLoopback()
	if !local {
		// Cause: `--http` is not on loopback. Remedy: allow only the monitoring server.
		w.log.Warn("every process that reaches the address can read the metrics", "http", ln.Addr().String())
	}
	s := web.NewServer(w.handler(local))
	s.ErrorLog = slog.NewLogLogger(w.log.Handler(), slog.LevelDebug)
	var busy sync.WaitGroup
	busy.Go(func() {
		if err := s.Serve(connlimit.New(maxReaders, maxReadersOfSource).Listener(ln)); !errors.Is(err, http.ErrServerClosed) {
			// Cause: the HTTP server failed. Remedy: restart the daemon.
			w.log.Error("metrics and health are no longer served", "err", err)
		}
	})
	w.log.Info("serving metrics and health", "http", ln.Addr().String())
	if err := w.gate.Publish(pageURL(ln.Addr())); err != nil {
		// Cause: the token for the page cannot be written beside the directory's socket. Remedy:
		// correct `err`, and restart.
		w.log.Warn("the page shows counts only", "err", err)
	}
	return func() {
		w.gate.Withdraw()
		w.page.Close() // its streams do not end by themselves
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		if s.Shutdown(ctx) != nil {
			s.Close()
		}
		busy.Wait()
	}
}
