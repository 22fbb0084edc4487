// SPDX-License-Identifier: Apache-2.0

package web

import (
	"net"
	"net/http"
	"time"

	"github.com/rocl-go/rocl/internal/connlimit"
	"github.com/rocl-go/rocl/internal/os/loopback"
)

// NewServer returns a server with limits for slow clients. Its listener is one of package
// connlimit, which closes idle connections first.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 30 * time.Second,
		ConnState: func(nc net.Conn, now http.ConnState) {
			if c, ok := nc.(*connlimit.Conn); ok && (now == http.StateActive || now == http.StateIdle) {
				c.SetBusy(now == http.StateActive)
			}
		},
		MaxHeaderBytes: 16 << 10,
	}
}

// Guard returns a handler that refuses requests of web pages. A page can make a browser of this
// machine send requests here, by a name of the page's own that leads here (DNS rebinding). local
// says that the address is reachable from this machine only.
func Guard(h http.Handler, local bool) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		head := rw.Header()
		head.Set("Cache-Control", "no-store")
		head.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("X-Content-Type-Options", "nosniff")
		if local && !isLocal(r.Host) {
			http.Error(rw, "this is served to the machine itself alone: ask by a loopback address or localhost", http.StatusForbidden)
			return
		}
		h.ServeHTTP(rw, r)
	})
}

// isLocal reports whether a Host header names the machine itself.
func isLocal(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return loopback.IsHost(host)
}
