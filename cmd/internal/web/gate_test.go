// SPDX-License-Identifier: Apache-2.0

package web

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// published returns a gate whose file is in a new folder, and the path of the directory's socket.
func published(t *testing.T) (*Gate, string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "sock")
	g := NewGate(socket)
	try.OK(t, g.Publish("http://127.0.0.1:9464"))
	return g, socket
}

// request returns a request from this machine.
func request(path string, change ...func(*http.Request)) *http.Request {
	r := httptest.NewRequest("GET", "http://127.0.0.1:9464"+path, nil)
	r.RemoteAddr = "127.0.0.1:5000"
	for _, f := range change {
		f(r)
	}
	return r
}

// entered opens the path and query of a URL at the gate, and returns the cookies that it sets.
func entered(t *testing.T, g *Gate, at string) (int, []*http.Cookie) {
	t.Helper()
	u := try.Get(url.Parse(at))(t)
	rec := httptest.NewRecorder()
	g.Enter(rec, request(u.RequestURI(), func(r *http.Request) { r.Header.Set("Accept", "text/html,*/*") }))
	return rec.Code, rec.Result().Cookies()
}

// with returns a change of a request that adds cookies.
func with(cookies []*http.Cookie) func(*http.Request) {
	return func(r *http.Request) {
		for _, c := range cookies {
			r.AddCookie(c)
		}
	}
}

// A URL of rocl web lets its browser in, once. Forged, changed and old ones, those of another
// daemon, requests of another machine and of other pages are refused.
//
// Promise (Commands): Identifiers and attributes on the page of a daemon need a token that only the
// user of the node can read. A URL with a token is valid once.
func TestGate(t *testing.T) {
	g, socket := published(t)
	at := try.Get(URL(socket))(t)
	code, cookies := entered(t, g, at)
	if code != http.StatusOK || len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode {
		t.Fatalf("%d %v", code, cookies)
	}
	if !g.Authorized(request("/", with(cookies))) {
		t.Error("the cookie does not authorize")
	}
	if code, again := entered(t, g, at); code != http.StatusForbidden || len(again) > 0 {
		t.Errorf("the URL is used again: %d %v", code, again)
	}
	rec := httptest.NewRecorder()
	g.Enter(rec, request(try.Get(url.Parse(try.Get(URL(socket))(t)))(t).RequestURI())) // as curl does
	if rec.Code != http.StatusSeeOther || rec.Header().Get("Location") != "/" || !g.Authorized(request("/", with(rec.Result().Cookies()))) {
		t.Errorf("a client that is no browser: %d %v", rec.Code, rec.Header())
	}
	next := try.Get(URL(socket))(t)
	forged := strings.Replace(next, "ticket=1", "ticket=2", 1)
	for _, bad := range []string{"/enter", "/enter?ticket=", "/enter?ticket=" + strings.Repeat("1.", 4000), forged, next + "0", next[:len(next)-1]} {
		if code, c := entered(t, g, bad); code != http.StatusForbidden || len(c) > 0 {
			t.Errorf("%.80s: %d", bad, code)
		}
	}
	session := *cookies[0]
	for name, r := range map[string]*http.Request{
		"without a cookie":     request("/"),
		"a ticket as a cookie": request("/", with([]*http.Cookie{{Name: session.Name, Value: url.QueryEscape(strings.SplitAfter(next, "=")[1])}})),
		"another cookie":       request("/", with([]*http.Cookie{{Name: session.Name, Value: strings.Replace(session.Value, "1", "2", 1)}})),
		"another machine":      request("/", with(cookies), func(r *http.Request) { r.RemoteAddr = "192.0.2.1:5000" }),
		"another page": request("/", with(cookies), func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "same-site")
			r.Header.Set("Sec-Fetch-Mode", "cors")
		}),
	} {
		if g.Authorized(r) {
			t.Errorf("%s: authorized", name)
		}
	}
	other, _ := published(t)
	if code, _ := entered(t, other, next); code != http.StatusForbidden || other.Authorized(request("/", with(cookies))) {
		t.Errorf("another daemon: %d", code)
	}
	g.Withdraw()
	if _, err := URL(socket); err == nil || !strings.Contains(err.Error(), "no daemon with a page") {
		t.Errorf("without a daemon: %v", err)
	}
}

// Tickets and cookies end.
func TestGateTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, socket := published(t)
		late, early := try.Get(URL(socket))(t), try.Get(URL(socket))(t)
		time.Sleep(ticketTime - time.Second)
		code, cookies := entered(t, g, early)
		try.Equal(t, code, http.StatusOK, "in time")
		time.Sleep(time.Second)
		code, _ = entered(t, g, late)
		try.Equal(t, code, http.StatusForbidden, "too late")
		time.Sleep(sessionTime - 2*time.Second)
		try.Equal(t, g.Authorized(request("/", with(cookies))), true, "at the end of the session")
		time.Sleep(time.Second)
		try.Equal(t, g.Authorized(request("/", with(cookies))), false, "after it")
	})
}

// The file of the secret is readable by its user alone, and rocl web takes no other.
func TestGateFile(t *testing.T) {
	_, socket := published(t)
	file := fileOf(socket)
	try.Equal(t, try.Get(os.Stat(file))(t).Mode(), 0o600, "mode")
	try.OK(t, os.Chmod(file, 0o644))
	if _, err := URL(socket); err == nil || !strings.Contains(err.Error(), "other users have rights") {
		t.Errorf("a file that others can read: %v", err)
	}
	for name, text := range map[string]string{"empty": "", "no secret": `{"url":"http://localhost"}`, "no JSON": "x", "long": strings.Repeat(" ", maxFile) + "{}"} {
		try.OK(t, os.WriteFile(file, []byte(text), 0o600))
		try.OK(t, os.Chmod(file, 0o600))
		if u, err := URL(socket); err == nil {
			t.Errorf("%s: %s", name, u)
		}
	}
	try.OK(t, os.Rename(file, file+"2"))
	try.OK(t, os.Symlink(file+"2", file))
	if u, err := URL(socket); err == nil {
		t.Errorf("a symbolic link: %s", u)
	}
}
