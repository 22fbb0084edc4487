// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"html"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/cmd/internal/web"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// opener makes xdg-open a script, and returns the file into which it writes its arguments, a line
// each.
func opener(t *testing.T, script string) (arguments string) {
	t.Helper()
	dir := t.TempDir()
	arguments = filepath.Join(dir, "arguments")
	try.OK(t, os.WriteFile(filepath.Join(dir, "xdg-open"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\" >"+arguments+"\n"+script+"\n"), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return arguments
}

// served publishes a gate of a page at a socket, and returns the socket and the page's URL.
func served(t *testing.T) (sock, at string) {
	t.Helper()
	sock = freeaddr.Socket(t)
	g := web.NewGate(sock)
	s := httptest.NewServer(http.HandlerFunc(g.Enter))
	t.Cleanup(s.Close)
	try.OK(t, g.Publish(s.URL))
	return sock, s.URL
}

// rocl web prints a URL that lets its user in. With --open a browser gets it by a file that only
// the user can read, for other users see the arguments of processes.
func TestWebOpen(t *testing.T) {
	sock, at := served(t)
	arguments := opener(t, "")
	entered := func(url string) {
		t.Helper()
		r := try.Get(http.NewRequest("GET", url, nil))(t)
		r.Header.Set("Accept", "text/html")
		resp := try.Get(http.DefaultTransport.RoundTrip(r))(t)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || len(resp.Cookies()) != 1 {
			t.Errorf("%s: %s, %v", url, resp.Status, resp.Cookies())
		}
	}
	for range 2 { // the file of an earlier URL does not matter
		out, errOut, code := execute(t.Context(), nil, "web", "--open", "--socket", sock)
		if out != "" || errOut != "" || code != 0 {
			t.Fatalf("code %d: %s%s", code, out, errOut)
		}
		given := string(try.Get(os.ReadFile(arguments))(t))
		file := strings.TrimSuffix(given, "\n")
		if strings.ContainsAny(file, "\n") || strings.Contains(given, "ticket") {
			t.Fatalf("the opener gets %q", given)
		}
		try.Equal(t, try.Get(os.Stat(file))(t).Mode(), 0o600, "mode")
		m := regexp.MustCompile(`url=([^"]+)"`).FindSubmatch(try.Get(os.ReadFile(file))(t))
		if m == nil || !strings.HasPrefix(string(m[1]), at+"/enter?ticket=") {
			t.Fatalf("the file has %q", m)
		}
		entered(html.UnescapeString(string(m[1])))
	}
	out, _, code := execute(t.Context(), nil, "web", "--socket", sock)
	try.Equal(t, code, 0, "code")
	entered(strings.TrimSpace(out))
	out, _, code = execute(t.Context(), nil, "web", "--json", "--socket", sock)
	var told map[string]string
	try.OK(t, json.Unmarshal([]byte(out), &told))
	try.Equal(t, code, 0, "code")
	entered(told["url"])
}

// A browser that cannot be opened, a page at a Unix socket, and a daemon that has ended or has no
// page, are errors that say so.
func TestWebFails(t *testing.T) {
	opener(t, "exit 3")
	sock, _ := served(t)
	fails := func(sock string, code int, want string, args ...string) {
		t.Helper()
		out, errOut, got := execute(t.Context(), nil, append(args, "--socket", sock)...)
		if got != code || !strings.Contains(errOut, want) || strings.Contains(out+errOut, "ticket=") {
			t.Errorf("code %d, want %d: %s%s", got, code, out, errOut)
		}
	}
	fails(sock, 1, "exit status 3", "web", "--open")
	fails(freeaddr.Socket(t), exitNoDirectory, "no daemon with a page", "web", "--open")

	over := freeaddr.Socket(t)
	ln := try.Get(net.Listen("unix", over+".http"))(t)
	defer ln.Close()
	try.OK(t, web.NewGate(over).Publish("unix:"+over+".http"))
	fails(over, 1, "ssh -L", "web", "--open")
	out, _, code := execute(t.Context(), nil, "web", "--socket", over)
	if code != 0 || out != "unix:"+over+".http\n" {
		t.Errorf("code %d: %s", code, out)
	}
	ln.Close()
	fails(over, exitNoDirectory, "no daemon with a page", "web")
}
