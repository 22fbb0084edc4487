// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/rocl-go/rocl/cmd/internal/web"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// output collects what a daemon writes.
type output struct{ logged.Log }

// find waits until the output matches what, and returns the last group in parentheses.
func (o *output) find(t *testing.T, what string) string {
	t.Helper()
	re := regexp.MustCompile(what)
	var m []string
	defer func() {
		if m == nil {
			t.Logf("it said: %s", o)
		}
	}()
	eventually.True(t, "it says "+what, func() bool { m = re.FindStringSubmatch(o.String()); return m != nil })
	return m[len(m)-1]
}

// started starts a daemon, waits until it serves, and ends it with the test.
func started(t *testing.T, args ...string) (said *output, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	said = &output{}
	code := make(chan int, 1)
	go func() { code <- run(ctx, args, said, said) }()
	stop = sync.OnceValue(func() int { cancel(); return <-code })
	t.Cleanup(func() { stop() })
	said.find(t, `"msg":"serving"`)
	return said, stop
}

// client returns a client whose connections end with the test.
func client(t *testing.T) *http.Client {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

func get(t *testing.T, c *http.Client, url string, change ...func(*http.Request)) (string, *http.Response) {
	t.Helper()
	r := try.Get(http.NewRequestWithContext(t.Context(), "GET", url, nil))(t)
	for _, f := range change {
		f(r)
	}
	resp := try.Get(c.Do(r))(t)
	defer resp.Body.Close()
	b := try.Get(io.ReadAll(resp.Body))(t)
	return string(b), resp
}

// value returns the value of a metric, which is named with its labels.
func value(t *testing.T, metrics, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(metrics)
	if m == nil {
		t.Fatalf("there is no %s", name)
	}
	return m[1]
}

func TestHTTP(t *testing.T) {
	sock := filepath.Join(short(t), "sock")
	said, stop := started(t, "--socket", sock, "--bind", "127.0.0.1:0", "--cluster", "here", "--http", ":0", "--metrics-series", "0")
	at := said.find(t, `"http":"(127\.0\.0\.1:\d+)"`) // without a host the address is on the loopback interface
	base := "http://" + at
	c := client(t)
	d := try.Get(directory.Join(t.Context(), directory.DialSocket(sock)))(t)
	defer d.Close()
	l := try.Get(resource.NewPattern(resource.Attrs{"type": "gpu"}))(t)
	try.Get(d.Register(t.Context(), d.Self().WithSerial(1), l))(t)
	try.Get(d.Find(t.Context(), l))(t)
	none, _ := resource.NewPattern(resource.Match{"type": "none"})
	if _, err := d.Find(t.Context(), none); !errors.Is(err, directory.ErrNotFound) {
		t.Fatal(err)
	}
	metrics, resp := get(t, c, base+"/metrics")
	if resp.StatusCode != 200 || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Fatalf("%v: %s", resp.Status, metrics)
	}
	for name, want := range map[string]string{
		"rocl_directory_contexts": "1", `rocl_directory_changes_total{change="registered"}`: "1",
		`rocl_directory_questions_total{kind="find",outcome="found"}`: "1", `rocl_directory_questions_total{kind="find",outcome="none"}`: "1",
		`rocl_directory_question_seconds_count{kind="find"}`: "2", `rocl_cluster_searches_total{outcome="none",way="nobody"}`: "1",
		`rocl_cluster_members{state="alive"}`: "1", "rocl_cluster_keys": "0", "rocl_ready": "1",
	} {
		try.Equal(t, value(t, metrics, name), want, "%s", name)
	}
	for _, want := range []string{"\ngo_goroutines ", "\nprocess_open_fds ", `rocl_build_info{`, `cluster="here"`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("there is no %q", want)
		}
	}
	asJSON := func(r *http.Request) { r.Header.Set("Accept", "application/json") }
	for _, path := range []string{"/healthz", "/readyz"} {
		if text, resp := get(t, c, base+path); resp.StatusCode != 200 || !strings.HasPrefix(text, "ok\n+ ") {
			t.Errorf("%s: %s %q", path, resp.Status, text)
		}
		var as struct {
			OK     bool
			Checks []check
		}
		text, resp := get(t, c, base+path, asJSON)
		if err := json.Unmarshal([]byte(text), &as); err != nil || !as.OK || len(as.Checks) == 0 || as.Checks[0].Reason == "" || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s as JSON: %v, %q", path, err, text)
		}
		if other, _ := get(t, c, base+path+"?format=json"); other == "" || other[0] != '{' {
			t.Errorf("%s?format=json: %q", path, other)
		}
	}
	for host, want := range map[string]int{"localhost": 200, "LOCALHOST:9464": 200, "127.0.0.1": 200, "[::1]:9": 200, "evil.example": 403, "evil.example:9464": 403, "127.0.0.1.evil.example": 403, "10.0.0.1": 403} {
		text, resp := get(t, c, base+"/metrics", func(r *http.Request) { r.Host = host })
		if resp.StatusCode != want || want == 403 && strings.Contains(text, "rocl_") {
			t.Errorf("Host %q: %s", host, resp.Status)
		}
	}
	for _, m := range []struct{ method, path string }{{"POST", "/metrics"}, {"DELETE", "/healthz"}, {"PUT", "/readyz"}, {"GET", "/no"}, {"POST", "/debug/pprof/"}} {
		r, _ := http.NewRequestWithContext(t.Context(), m.method, base+m.path, nil)
		resp := try.Get(c.Do(r))(t)
		resp.Body.Close()
		if resp.StatusCode != 405 && resp.StatusCode != 404 {
			t.Errorf("%s %s: %s", m.method, m.path, resp.Status)
		}
	}
	d.Close()
	try.Equal(t, stop(), 0, "exit code")
	if nc, err := net.Dial("tcp", at); err == nil {
		nc.Close()
		t.Error("it is served when the daemon has ended")
	}
}

// The number of connections to --http that are kept open, idle or silent, is limited, and they do
// not keep other clients out.
func TestHTTPConnections(t *testing.T) {
	sock := filepath.Join(short(t), "sock")
	said, stop := started(t, "--socket", sock, "--http", ":0")
	defer stop()
	at := said.find(t, `"http":"(127\.0\.0\.1:\d+)"`)
	count := func() int {
		fds := try.Get(os.ReadDir("/proc/self/fd"))(t)
		return len(fds)
	}
	before := count()
	const many = 300
	for i := range many {
		nc := try.Get(net.Dial("tcp", at))(t)
		defer nc.Close()
		if i%2 == 0 {
			continue
		}
		try.Get(io.WriteString(nc, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"))(t)
		try.Get(nc.Read(make([]byte, 1)))(t)
	}
	if got := count() - before; got > many+maxReadersOfSource+10 { // both ends of each connection are in this process
		t.Errorf("%d descriptors for %d connections", got, many)
	}
	if _, resp := get(t, client(t), "http://"+at+"/healthz"); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

// Requests at the same time, or right after each other, get the same answer.
func TestHealthAtOnce(t *testing.T) {
	s := directory.NewServer()
	defer s.Close()
	w := &watched{server: s, log: slog.New(slog.DiscardHandler)}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if c := w.database(); !c.OK {
					t.Errorf("a request beside others: %s", c.Reason)
					return
				}
			}
		})
	}
	all.Wait()
}

// The daemon is ready when it serves, its database answers, and it has met another member or has
// waited long enough for one. It is not ready while it starts or ends.
//
// Promise (Commands): A daemon is ready when it serves and has met or awaited another member, until
// it begins to end.
func TestReady(t *testing.T) {
	s := directory.NewServer()
	defer s.Close()
	var c *cluster.Cluster
	w := &watched{server: s, cluster: func() *cluster.Cluster { return c }, joins: true, log: slog.New(slog.DiscardHandler), gate: web.NewGate("sock"), begun: time.Now()}
	defer w.openPage(newClient("sock", w.log))()
	h := w.handler(true)
	ask := func(path string, want int, says string) {
		t.Helper()
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("GET", "http://localhost"+path, nil))
		if rec.Code != want || !strings.Contains(rec.Body.String(), says) {
			t.Errorf("%s: %d %q, want %d %q", path, rec.Code, rec.Body, want, says)
		}
	}
	ask("/healthz", 200, "+ database: answers")
	ask("/readyz", 503, "- serving: starting")
	w.serving.Store(true)
	ask("/readyz", 503, "- cluster: not a member yet")
	open := func(n resource.NodeID, join ...string) *cluster.Cluster {
		m := try.Get(cluster.Open(cluster.Config{Node: n, DB: s.Database(), Bind: "127.0.0.1:0", Join: join}))(t)
		t.Cleanup(func() { m.Close() })
		return m
	}
	c = open(1)
	ask("/readyz", 503, "- cluster: no other member was met yet")
	w.begun = time.Now().Add(-aloneTime)
	ask("/readyz", 200, "the node serves alone")
	w.begun = time.Now()
	ask("/readyz", 503, "no other member")
	b := open(2, c.Addr())
	eventually.True(t, "a member has joined", func() bool { return c.Stats().Joins > 0 })
	ask("/readyz", 200, "2 members alive")
	b.Close()
	c = open(3) // this member has met another one, whatever happens afterwards
	ask("/readyz", 200, "1 members alive")
	ln := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	var busy sync.WaitGroup
	busy.Go(func() { // a member that refuses this one, as one with another key does
		for nc, err := ln.Accept(); err == nil; nc, err = ln.Accept() {
			nc.Close()
		}
	})
	defer busy.Wait()
	defer ln.Close()
	known := c
	c = open(4, ln.Addr().String())
	eventually.True(t, "it is refused", func() bool { return c.Stats().Refused > 0 })
	ask("/readyz", 503, "1 refuse this node: "+ln.Addr().String()+": it accepts streams and answers no datagrams")
	open(5, c.Addr())
	eventually.True(t, "it has met a member", func() bool { return c.Stats().Alive > 1 })
	ask("/readyz", 200, "1 refuse this node")
	c = known
	w.probe = &probe{done: make(chan struct{})}
	ask("/healthz", 503, "- database:")
	ask("/readyz", 503, "- database:")
	w.probe = nil
	w.ending.Store(true)
	ask("/readyz", 503, "- serving: stopping")
	ask("/healthz", 200, "ok")
}

// The metrics are consistent and follow the naming conventions of Prometheus. Their names, kinds
// and texts are those of testdata/metrics.txt, by which dashboards and alerts are checked.
//
// Promise (Commands): Each metric says what it means. Metrics are shown to the machine itself alone
// unless configured otherwise. See also directory: TestStats.
func TestMetrics(t *testing.T) {
	s := directory.NewServer()
	defer s.Close()
	c := try.Get(cluster.Open(cluster.Config{Node: s.Node(), DB: s.Database(), Bind: "127.0.0.1:0"}))(t)
	defer c.Close()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(collector{&watched{server: s, cluster: func() *cluster.Cluster { return c }, log: slog.New(slog.DiscardHandler)}})
	got := try.Get(reg.Gather())(t)
	problems, err := promlint.NewWithMetricFamilies(got).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	text := try.Get(os.ReadFile("testdata/metrics.txt"))(t)
	listed := map[string]string{} // kind and help, by name
	for _, m := range regexp.MustCompile(`(?m)^(rocl_[a-z_]+)\S* (.*)$`).FindAllStringSubmatch(string(text), -1) {
		listed[m[1]] = m[2]
	}
	for _, f := range got {
		if is := strings.ToLower(f.GetType().String()) + ": " + f.GetHelp(); listed[f.GetName()] != is {
			t.Errorf("testdata/metrics.txt has of %s %q, it is %q", f.GetName(), listed[f.GetName()], is)
		}
		delete(listed, f.GetName())
	}
	for name := range listed {
		t.Errorf("testdata/metrics.txt has %s, which there is not", name)
	}
}

// SIGHUP makes the daemon read the keys again. A file that cannot be used changes nothing and is
// logged. No log line contains a key.
//
// Promise (Keys): Daemons and serving programs follow the key file. A file that cannot be used
// changes nothing, and no key is logged. See also TestRekey.
func TestKeys(t *testing.T) {
	dir := short(t)
	file := filepath.Join(dir, "keys")
	keys := []string{"one-secret-of-the-cluster", "two-secret-of-the-cluster", "bad-secret"}
	write := func(of ...string) {
		t.Helper()
		try.OK(t, os.WriteFile(file, []byte("# keys\n"+strings.Join(of, "\n")+"\n"), 0o600))
	}
	write(keys[0])
	args := []string{"--socket", filepath.Join(dir, "sock"), "--bind", "127.0.0.1:0", "--key-file", file, "--log-level", "debug"}
	said, stop := started(t, append(args, "--http", "127.0.0.1:0")...)
	base := "http://" + said.find(t, `"http":"([^"]+)"`)
	c := client(t)
	seen := ""
	look := func(want string) {
		t.Helper()
		for _, path := range []string{"/metrics", "/healthz", "/readyz?format=json"} {
			text, _ := get(t, c, base+path)
			seen += text
			if path == "/metrics" && value(t, text, "rocl_cluster_keys") != want {
				t.Errorf("%s keys, want %s", value(t, text, "rocl_cluster_keys"), want)
			}
		}
	}
	hup := func(says string) {
		t.Helper()
		try.OK(t, posix.Kill(os.Getpid(), syscall.SIGHUP))
		said.find(t, says)
	}
	look("1")
	write(keys[0], keys[1])
	hup(`"msg":"keys read again","changed":true.*"keys":2`)
	look("2")
	write(keys[2])
	hup(`"msg":"keys not changed: the file cannot be used","changed":false.*line 2, has 10 bytes`)
	look("2")
	write(keys[1])
	hup(`"msg":"keys read again","changed":true.*"keys":1\D`)
	look("1")
	out, errOut, _ := call(t, append(args, "--print-config")...)
	seen += out + errOut
	write(keys[2])
	out, errOut, code := call(t, append(args, "--print-config")...)
	if seen += out + errOut; code != 2 {
		t.Errorf("with a bad file: exit code %d, %q", code, errOut)
	}
	try.Equal(t, stop(), 0, "exit code")
	seen += said.String()
	for _, k := range keys {
		link := cluster.LinkKey("", []byte(k))
		for _, secret := range [][]byte{[]byte(k), link[:]} {
			for _, form := range []string{string(secret), hex.EncodeToString(secret), strings.ToUpper(hex.EncodeToString(secret)), base64.StdEncoding.EncodeToString(secret), fmt.Sprint(secret)} {
				if strings.Contains(seen, form) {
					t.Errorf("%q was said", form)
				}
			}
		}
	}
	if len(seen) < 10_000 {
		t.Errorf("only %d bytes were looked at", len(seen))
	}
}

func TestKeysWithoutFile(t *testing.T) {
	said, stop := started(t, "--socket", filepath.Join(short(t), "sock"))
	try.OK(t, posix.Kill(os.Getpid(), syscall.SIGHUP))
	said.find(t, `"msg":"keys not read again: there is no --key-file","changed":false`)
	try.Equal(t, stop(), 0, "exit code")
}
