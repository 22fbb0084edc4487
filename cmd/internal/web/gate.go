// SPDX-License-Identifier: Apache-2.0

// Package web is the page at / of dirserver --http, and the token that opens it.
//
// Any process of the machine can connect to a loopback address, so a Gate tells the user of the
// node from other users: the daemon writes a secret into a file beside the directory's socket,
// which only that user can read.
//
//	rocl web                          dirserver
//	reads the secret
//	makes a ticket, prints a URL
//	      browser: GET /enter?ticket=  ->  the ticket is genuine, fresh and unused
//	                                   <-  cookie, and a page that leads to /
package web

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rocl-go/rocl/internal/os/secretfile"
)

const (
	ticketTime  = 2 * time.Minute // in which a URL of rocl web must be opened
	sessionTime = 12 * time.Hour  // for which a browser stays authorized

	maxTickets = 1024    // limit of tickets that are used within ticketTime
	maxFile    = 4 << 10 // limit of the file's size
)

// A Gate decides which requests may see identifiers and attributes. Its methods may be called
// concurrently.
type Gate struct {
	file   string
	secret []byte
	cookie string // name of the cookie: browsers send cookies to all ports of a host

	mu   sync.Mutex
	used map[string]time.Time // tickets that were used, with their ends
}

// access is the content of the file beside the directory's socket.
type access struct {
	URL    string `json:"url"` // of the page; or unix:PATH
	Secret string `json:"secret"`
}

// fileOf returns the path of the file of the daemon that serves the directory at socket.
func fileOf(socket string) string { return socket + ".web" }

// NewGate returns a gate with a new secret. The secret lets nobody in before Publish has written
// it, or URL was called. A gate that does not publish may have any text that is its own as socket.
func NewGate(socket string) *Gate {
	g := &Gate{file: fileOf(socket), secret: make([]byte, 32), used: map[string]time.Time{}}
	_, _ = rand.Read(g.secret) // never fails
	name := sha256.Sum256([]byte(socket))
	g.cookie = "rocl_" + hex.EncodeToString(name[:4])
	return g
}

// Publish writes the secret and the URL of the page into the file beside the directory's socket.
func (g *Gate) Publish(at string) error {
	b, err := json.Marshal(access{at, hex.EncodeToString(g.secret)})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(g.file), ".rocl-web-*") // of mode 0600
	if err != nil {
		return fmt.Errorf("writing %s: %w", g.file, err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), g.file)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("writing %s: %w", g.file, err)
	}
	return nil
}

// Withdraw removes the file.
func (g *Gate) Withdraw() { os.Remove(g.file) }

// sign returns the authentication code of a text. kind keeps codes of different uses apart.
func sign(secret []byte, kind, text string) string {
	m := hmac.New(sha256.New, secret)
	fmt.Fprintf(m, "%s\x00%s", kind, text)
	return hex.EncodeToString(m.Sum(nil))
}

// pass returns a text that is valid until a time: the time in seconds, a number that is used once,
// and their code.
func pass(secret []byte, kind string, until time.Time) string {
	text := strconv.FormatInt(until.Unix(), 10) + "." + rand.Text()
	return text + "." + sign(secret, kind, text)
}

// check returns the end of a pass that is genuine and not over. A pass that lasts longer than most
// was not made by this package.
func (g *Gate) check(kind, p string, most time.Duration) (until time.Time, ok bool) {
	at := strings.LastIndexByte(p, '.')
	if at < 0 || len(p) > 256 || !hmac.Equal([]byte(p[at+1:]), []byte(sign(g.secret, kind, p[:at]))) {
		return until, false
	}
	end, _, _ := strings.Cut(p, ".")
	n, err := strconv.ParseInt(end, 10, 64)
	until = time.Unix(n, 0)
	left := time.Until(until)
	return until, err == nil && left > 0 && left <= most
}

// Authorized reports whether a request may see identifiers and attributes. No other page's script
// sent it, and it came over a Unix socket, whose mode keeps other users out, or it came from this
// machine and has the cookie of Enter.
func (g *Gate) Authorized(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site": // a page of another port is of the same site, and gets the cookie
		if r.Header.Get("Sec-Fetch-Mode") != "navigate" {
			return false
		}
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if _, ok := local.(*net.UnixAddr); ok {
		return true
	}
	if !isHere(r.RemoteAddr, local) {
		return false
	}
	for _, c := range r.CookiesNamed(g.cookie) {
		if _, ok := g.check("session", c.Value, sessionTime); ok {
			return true
		}
	}
	return false
}

// isHere reports whether the other end of a connection is on this machine. A token that came over a
// network may have been read on its way.
func isHere(remote string, local net.Addr) bool {
	from, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	if from.Addr().Unmap().IsLoopback() {
		return true
	}
	l, ok := local.(*net.TCPAddr)
	return ok && l.AddrPort().Addr().Unmap() == from.Addr().Unmap()
}

// Enter serves /enter: it exchanges the ticket of a URL into a cookie, once.
func (g *Gate) Enter(rw http.ResponseWriter, r *http.Request) {
	if local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr); !isHere(r.RemoteAddr, local) || !g.redeem(r.URL.Query().Get("ticket")) {
		http.Error(rw, "This link was used, is older than "+ticketTime.String()+", or is of a daemon that has ended. 'rocl web' prints a new one.", http.StatusForbidden)
		return
	}
	http.SetCookie(rw, &http.Cookie{
		Name: g.cookie, Value: pass(g.secret, "session", time.Now().Add(sessionTime)), Path: "/",
		MaxAge: int(sessionTime / time.Second), HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
	if !wantsHTML(r) { // such as curl, which follows no link of a page
		http.Redirect(rw, r, "/", http.StatusSeeOther)
		return
	}
	// A redirect would be a part of the navigation that a file or another program began, with which
	// the browser sends no such cookie.
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(rw, "<!doctype html><meta http-equiv=refresh content=\"0; url=/\"><a href=\"/\">rocl</a>\n")
}

// wantsHTML reports whether a request is one of a browser.
func wantsHTML(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

// redeem reports whether a ticket is valid, and makes it invalid.
func (g *Gate) redeem(ticket string) bool {
	until, ok := g.check("ticket", ticket, ticketTime)
	if !ok {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for t, end := range g.used {
		if time.Now().After(end) {
			delete(g.used, t)
		}
	}
	if _, ok := g.used[ticket]; ok || len(g.used) >= maxTickets {
		return false
	}
	g.used[ticket] = until
	return true
}

// ErrNoPage is returned by URL if no daemon with a page serves the directory.
var ErrNoPage = errors.New("no daemon with a page serves the directory")

// URL returns a URL that opens the page of the daemon that serves the directory at socket. It is
// valid once, for two minutes. If the page is served at a Unix socket, URL returns unix:PATH.
func URL(socket string) (string, error) {
	file := fileOf(socket)
	f, err := os.OpenFile(file, os.O_RDONLY|openFlags, 0)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%w: %s is missing", ErrNoPage, file)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return "", err
	}
	uid, ok := owner(fi)
	me := os.Geteuid()
	switch {
	case !fi.Mode().IsRegular():
		return "", fmt.Errorf("reading %s: it is no regular file (%v)", file, fi.Mode())
	case ok && me != 0 && uid != 0 && uid != me: // its owner would get the ticket
		return "", fmt.Errorf("reading %s: it is of user %d", file, uid)
	}
	if err := secretfile.CheckMode(fi); err != nil {
		return "", fmt.Errorf("reading %s: %w", file, err)
	}
	var a access
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	secret, herr := hex.DecodeString(a.Secret)
	if err != nil || herr != nil || len(secret) == 0 {
		return "", fmt.Errorf("reading %s: it is not the file of a daemon", file)
	}
	if strings.HasPrefix(a.URL, "unix:") {
		return a.URL, nil
	}
	return ticketURL(a.URL, secret), nil
}

// URL returns a URL that opens the page at an address such as http://127.0.0.1:9464. It is valid
// once, for two minutes.
func (g *Gate) URL(at string) string { return ticketURL(at, g.secret) }

func ticketURL(at string, secret []byte) string {
	return at + "/enter?ticket=" + url.QueryEscape(pass(secret, "ticket", time.Now().Add(ticketTime)))
}
