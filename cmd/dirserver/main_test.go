// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/loglevel"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/tpvm"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(shardSocket); socket != "" {
		shard(socket)
		return
	}
	// These variables may be set in the shell that runs the tests.
	for _, env := range []string{"ROCL_SOCKET", "ROCL_LISTEN", "ROCL_LABEL", "ROCL_TLS_CERT", "ROCL_TLS_KEY", "ROCL_TLS_CA", "ROCL_LOG_LEVEL", "ROCL_LOG_FORMAT", "ROCL_CONFIG", "ROCL_BIND", "ROCL_JOIN", "ROCL_CLUSTER", "ROCL_KEY_FILE", "ROCL_GROUP", "ROCL_SEARCH", "ROCL_POLL", "ROCL_HTTP", "ROCL_IMAGE", "ROCL_TPVM", "ROCL_METRICS_LABEL", "ROCL_METRICS_SERIES", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		os.Unsetenv(env)
	}
	if len(os.Args) == 3 && os.Args[1] == "program" {
		program(os.Args[2])
		return
	}
	goleak.VerifyTestMain(m)
}

// call runs a command line that ends by itself.
func call(t *testing.T, args ...string) (out, errOut string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Timeout)
	defer cancel()
	var o, e bytes.Buffer
	code = run(ctx, append([]string{}, args...), &o, &e) // not nil, for which cobra would take the arguments of the test
	try.OK(t, ctx.Err(), "dirserver %v goes on", args)
	return o.String(), e.String(), code
}

func file(t *testing.T, text string) string {
	p := filepath.Join(t.TempDir(), "dirserver.toml")
	try.OK(t, os.WriteFile(p, []byte(text), 0o600))
	return p
}

// short returns a new folder for sockets, whose paths must not exceed the kernel's limit of 107
// bytes.
func short(t *testing.T) string { return filepath.Dir(freeaddr.Socket(t)) }

// Flags precede the environment, which precedes the file, which precedes the defaults.
// --print-config shows the origin of each setting.
func TestPrecedence(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/me")
	config := file(t, `
socket = "/file/sock"
listen = ["unix:/file/a", "unix:///file/b"]
log-level = "error"
log-format = "json"
bind = "127.0.0.1:7946"
group = "239.1.2.3:7947"
search = "broadcast"
poll = "50us"
http = ":9464"
`)
	flags := []string{"--socket", "/flag/sock", "--listen", "unix:/flag/a", "--listen", "unix:/flag/b", "--log-level", "debug", "--log-format", "text",
		"--search", "unicast", "--poll", "2ms", "--http", "localhost:1", "--group", "10.0.0.255:1"}
	env := map[string]string{"ROCL_SOCKET": "/env/sock", "ROCL_LISTEN": "unix:/env/a,unix:/env/b", "ROCL_LOG_LEVEL": "warn", "ROCL_LOG_FORMAT": "text",
		"ROCL_SEARCH": "tree", "ROCL_POLL": "1ms", "ROCL_HTTP": "[::1]:1", "ROCL_GROUP": "239.9.9.9:1"}
	for _, c := range []struct {
		name             string
		env, file, flags bool
		want             []string // of each setting
		origin           func(name string) string
	}{
		{"default", false, false, false, []string{"/run/me/rocl/directory.sock", "", "info", "", "auto", "0", "", ""},
			func(string) string { return "default" }},
		{"file", false, true, false, []string{"/file/sock", "unix:/file/a,unix:///file/b", "error", "json", "broadcast", "50us", ":9464", "239.1.2.3:7947"},
			func(string) string { return "file " + config }},
		{"environment", true, true, false, []string{"/env/sock", "unix:/env/a,unix:/env/b", "warn", "text", "tree", "1ms", "[::1]:1", "239.9.9.9:1"},
			func(n string) string {
				return "environment ROCL_" + strings.ToUpper(strings.ReplaceAll(n, "-", "_"))
			}},
		{"flags", true, true, true, []string{"/flag/sock", "unix:/flag/a,unix:/flag/b", "debug", "text", "unicast", "2ms", "localhost:1", "10.0.0.255:1"},
			func(n string) string { return "flag --" + n }},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := []string{"--print-config"}
			if c.env {
				for k, v := range env {
					t.Setenv(k, v)
				}
			}
			if c.file {
				args = append(args, "--config", config)
			}
			if c.flags {
				args = append(args, flags...)
			}
			out, errOut, code := call(t, args...)
			if code != 0 || errOut != "" {
				t.Fatalf("exit code %d, %q", code, errOut)
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) != 20 {
				t.Fatalf("printed %q", out)
			}
			for i, name := range []string{"socket", "listen", "log-level", "log-format", "search", "poll", "http", "group"} {
				line := lines[slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, name+" ") })]
				want := strconv.Quote(c.want[i])
				if name == "listen" {
					want = strings.ReplaceAll("["+want+"]", ",", `", "`)
					want = strings.ReplaceAll(want, `[""]`, "[]")
				}
				if !strings.HasPrefix(line[13:], want+" ") {
					t.Errorf("%s: printed %q, want %s", name, line, want)
				}
				if _, origin, _ := strings.Cut(line, "# "); origin != c.origin(name) {
					t.Errorf("%s is said to come from %q, want %q", name, origin, c.origin(name))
				}
			}
		})
	}
}

// The output of --print-config is a configuration file with the same settings.
//
// Promise (Commands): `dirserver --print-config` prints what `--config` reads.
func TestPrintedConfigIsRead(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/me")
	for _, args := range [][]string{
		nil,
		{"--socket", "/a \"b\"\\c\x1b\u202e\U000e0041é", "--listen", "unix:/a,unix:/b", "--listen", "tcp://127.0.0.1:0", "-v", "--log-format", "json", "--image", "off", "--http", ":9464",
			"--label", "zone=a,b", "--label", "note=\t\"", "--label", "list=x", "--metrics-label", "type,a b", "--metrics-series", "0"},
		{"--bind", "127.0.0.1:0", "--join", "a:1,b:2", "--join", "c:3", "--cluster", "c # d", "--group", "239.1.2.3:7947", "--search", "unicast", "--poll", "50us"},
		{"--bind", "127.0.0.1:0", "--join", "srv:_member._udp.example.org", "--join", "exec:/bin/members --of x"},
		{"--search", "auto", "--poll", "0"}, // the defaults are allowed without a cluster
	} {
		printed, errOut, code := call(t, append(args, "--print-config")...)
		if code != 0 {
			t.Fatalf("%q: exit code %d, %q", args, code, errOut)
		}
		again, errOut, code := call(t, "--config", file(t, printed), "--print-config")
		if code != 0 {
			t.Fatalf("%q: what it printed is refused: %q\n%s", args, errOut, printed)
		}
		values := regexp.MustCompile(`(?m) +# (default|flag --|environment |file ).*$`)
		if got, want := values.ReplaceAllString(again, ""), values.ReplaceAllString(printed, ""); got != want {
			t.Errorf("%q: read as\n%s, printed as\n%s", args, got, want)
		}
		if strings.Contains(printed, "\x1b") || !strings.HasPrefix(printed, "socket") {
			t.Errorf("printed %q", printed)
		}
	}
}

// -v means the same as for the command rocl, and precedes the environment and the file.
func TestVerbose(t *testing.T) {
	t.Setenv("ROCL_LOG_LEVEL", "error")
	for _, flag := range []string{"-v", "--verbose"} {
		if out, _, code := call(t, flag, "--print-config"); code != 0 || !regexp.MustCompile(`(?m)^log-level += "debug" +# flag --verbose$`).MatchString(out) {
			t.Errorf("%s: exit code %d, %s", flag, code, out)
		}
	}
	if _, errOut, code := call(t, "-v", "--log-level", "warn"); code != 2 || !strings.Contains(errOut, "contradict") {
		t.Errorf("-v --log-level warn: exit code %d, %q", code, errOut)
	}
}

// The environment may name the file, and the file may have a part of the settings.
func TestConfigFromEnvironment(t *testing.T) {
	t.Setenv("ROCL_CONFIG", file(t, `log-level = "error"`))
	if out, _, code := call(t, "--print-config"); code != 0 || !regexp.MustCompile(`(?m)^log-level += "error" +# file `).MatchString(out) {
		t.Errorf("exit code %d, %s", code, out)
	}
	// A flag names another file.
	if out, _, code := call(t, "--print-config", "--config", file(t, "")); code != 0 || !regexp.MustCompile(`(?m)^log-level += "info" +# default$`).MatchString(out) {
		t.Errorf("exit code %d, %s", code, out)
	}
}

func TestWrong(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  string
		says []string // what the user needs to know to correct the mistake
	}{
		{[]string{"--log-level", "loud"}, "", []string{`"loud"`, "flag --log-level", "debug, info, warn or error"}},
		{nil, "ROCL_LOG_LEVEL=loud", []string{`"loud"`, "environment ROCL_LOG_LEVEL"}},
		{[]string{"--config", file(t, `log-level = "loud"`)}, "", []string{`"loud"`, "dirserver.toml"}},
		{[]string{"--image", "yes"}, "", []string{`"yes"`, "flag --image", "on or off"}},
		{[]string{"--bind", "127.0.0.1:0", "--tpvm", "vm"}, "", []string{"flag --tpvm", "without --key-file"}},
		{[]string{"--group", "239.1.2.3:1"}, "", []string{"--group", "without --bind"}},
		{[]string{"--search", "tree"}, "", []string{"--search", "without --bind"}},
		{[]string{"--poll", "1ms"}, "", []string{"--poll", "without --bind"}},
		{[]string{"--bind", "127.0.0.1:0", "--search", "nonsense"}, "", []string{`"nonsense"`, "flag --search", "auto, unicast, broadcast or tree"}},
		{[]string{"--bind", "127.0.0.1:0", "--poll", "soon"}, "", []string{`"soon"`, "flag --poll", "50us"}},
		{[]string{"--http", "9464"}, "", []string{`"9464"`, "flag --http", ":PORT"}},
		{[]string{"--http", "name:9464"}, "", []string{`"name:9464"`, "IP:PORT"}},
		{[]string{"--metrics-series", "-1"}, "", []string{`"-1"`, "flag --metrics-series", "from 0 to"}},
		{nil, "ROCL_METRICS_LABEL=a.b,type,a-b", []string{"a-b", "environment ROCL_METRICS_LABEL", "attr_a_b twice"}},
		{[]string{"--log-format", "xml"}, "", []string{`"xml"`, "flag --log-format", "text or json"}},
		{[]string{"--listen", "tcp:127.0.0.1:1"}, "", []string{`"tcp:127.0.0.1:1"`, "flag --listen", "unix:PATH"}},
		{nil, "ROCL_LISTEN=unix:/a,nonsense", []string{`"nonsense"`, "environment ROCL_LISTEN"}},
		{[]string{"--socket", "/a", "--listen", "unix:/a"}, "", []string{`"unix:/a"`, "already"}},
		{[]string{"--socket", ""}, "", []string{"--socket is empty"}},
		{[]string{"--key-file", ""}, "ROCL_BIND=127.0.0.1:0", []string{"--key-file is empty"}},
		{[]string{"--socket", "unix:/d.sock"}, "", []string{"flag --socket", "a URL"}},
		{nil, "ROCL_SOCKET=/" + strings.Repeat("x", 107), []string{"environment ROCL_SOCKET", "at most 107"}},
		{[]string{"--listen", "tcp://127.0.0.1"}, "", []string{"flag --listen", `"tcp://127.0.0.1"`, "HOST:PORT"}},
		{[]string{"--listen", "tcp://10.0.0.7:1"}, "", []string{"flag --listen", "loopback"}},
		{[]string{"--bind", "127.0.0.1:99999"}, "", []string{"flag --bind", "99999", "HOST:PORT"}},
		{[]string{"--bind", "127.0.0.1:0", "--join", "a:99999"}, "", []string{"flag --join", "a:99999", "HOST:PORT"}},
		{[]string{"--bind", "127.0.0.1:0", "--join", "srv:a:1"}, "", []string{"flag --join", "srv:a:1", "srv:NAME"}},
		{[]string{"--bind", "127.0.0.1:0", "--group", "x"}, "", []string{"dirserver: --group (flag --group): the group", `"x"`}},
		{[]string{"--bind", "127.0.0.1:0", "--poll", "2s"}, "", []string{"dirserver: --poll (flag --poll): polling for 2s"}},
		{[]string{"--bind", "127.0.0.1:0"}, "ROCL_SEARCH=broadcast", []string{"dirserver: --search (environment ROCL_SEARCH): search by broadcast needs a group"}},
		{[]string{"--bind", "127.0.0.1:0", "--key-file", "/nowhere/key"}, "", []string{"dirserver: --key-file (flag --key-file): the cluster's key: open /nowhere/key: no such file"}},
		{[]string{"--bind", "127.0.0.1:0", "--tls-cert", "c"}, "", []string{"--tls-ca (default): a certificate"}},
		{[]string{"--cluster", strings.Repeat("x", 251), "--bind", "127.0.0.1:0"}, "", []string{"flag --cluster", "at most 250"}},
		{[]string{"--log-level", "info+3"}, "", []string{`"info+3"`, "flag --log-level"}},
		{[]string{"--verbose=loud"}, "", []string{`--verbose "loud" is not true or false`}},
		{[]string{"--config", file(t, `poll = 5`)}, "", []string{"line 1: poll is not a string"}},
		{[]string{"--config", file(t, `join = "a:1"`)}, "", []string{"line 1: join is not a list of strings"}},
		{[]string{"--config", "/dev/zero"}, "", []string{"flag --config", "/dev/zero has more than"}},
		{[]string{"--config", file(t, `socket = ""`)}, "", []string{"socket", "dirserver.toml", "empty"}},
		{[]string{"--config", file(t, "socket = \"/a\"\nsockets = \"/a\"")}, "", []string{"dirserver.toml", "line 2", "sockets"}},
		{[]string{"--config", file(t, `socket = `)}, "", []string{"dirserver.toml"}},
		{[]string{"--config", "/nowhere/at/all.toml"}, "", []string{"/nowhere/at/all.toml", "no such file"}},
		{[]string{"--nonsense"}, "", []string{"--nonsense"}},
		{[]string{"--socket"}, "", []string{"--socket"}},
		{[]string{"nonsense"}, "", []string{`dirserver takes no arguments, such as "nonsense"`}},
		{[]string{"help", "nonsense"}, "", []string{"help"}},
		{[]string{"--label", "zone"}, "", []string{`"zone"`, "flag --label", "NAME=VALUE"}},
		{[]string{"--label", strings.Repeat("n", 2000) + "=x"}, "", []string{"flag --label", "too large"}},
		{[]string{"--label", "rocl.kind=context"}, "", []string{"flag --label", `"rocl."`}},
		{nil, "ROCL_LABEL=zone=a,,gpu=b", []string{`""`, "environment ROCL_LABEL"}},
		{[]string{"--config", file(t, `label = ["zone"]`)}, "", []string{`"zone"`, "dirserver.toml"}},
		{[]string{"--tls-cert", "c"}, "", []string{"--tls-cert", "flag --tls-cert", "--bind"}},
		{[]string{"--bind", "127.0.0.1:0", "--tls-cert", "c", "--tls-ca", "a"}, "", []string{"belong together", `"c", "", "a"`}},
		{[]string{"--bind", "127.0.0.1:0", "--tls-cert", "c", "--tls-key", "k"}, "ROCL_TLS_CA=a", []string{"without --key-file"}},
		{labels(600, "x"), "", []string{"flag --label", "too many", "256"}},
	} {
		t.Run(fmt.Sprintf("%.60s", strings.Join(append(c.args, c.env), " ")), func(t *testing.T) {
			if k, v, ok := strings.Cut(c.env, "="); ok {
				t.Setenv(k, v)
			}
			out, errOut, code := call(t, append([]string{"--print-config"}, c.args...)...)
			if code != 2 || out != "" || !strings.HasPrefix(errOut, "dirserver: ") || !strings.Contains(errOut, "dirserver --help") {
				t.Errorf("exit code %d, %q, %q", code, out, errOut)
			}
			if strings.Contains(errOut, "rocl:") || strings.Contains(errOut, "settings of a member") || strings.Count(errOut, "\n") != 2 {
				t.Errorf("%q is not one line about the setting", errOut)
			}
			for _, s := range c.says {
				if !strings.Contains(errOut, s) {
					t.Errorf("%q does not say %q", errOut, s)
				}
			}
		})
	}
}

func TestVersionAndHelp(t *testing.T) {
	if out, _, code := call(t, "--version"); code != 0 || !regexp.MustCompile(`^dirserver \d+\.\d+\.\d+.*\n$`).MatchString(out) {
		t.Errorf("--version: %d, %q", code, out)
	}
	out, _, code := call(t, "--help")
	for _, f := range []string{"--socket", "--listen", "--config", "--log-level", "--log-format", "--print-config", "--version"} {
		if code != 0 || !strings.Contains(out, f) {
			t.Errorf("--help does not name %s: %d, %q", f, code, out)
		}
	}
}

// The log is JSON unless it is told to be text, and durations have units in both.
func TestLogger(t *testing.T) {
	for format, json := range map[string]bool{"": true, "json": true, "text": false} { // the output is not a terminal here
		var b bytes.Buffer
		s := &config{format: setting{value: format}, level: slog.LevelWarn}
		log := s.logger(&b, &control{levels: loglevel.New(s.level), recent: new(recent)})
		log.Info("quiet")
		log.Warn("loud", "for", 1500*time.Millisecond)
		if b.Len() == 0 || strings.Contains(b.String(), "quiet") || (b.Bytes()[0] == '{') != json || !strings.Contains(b.String(), "1.5s") {
			t.Errorf("format %q: %q", format, b.String())
		}
	}
}

// Text that other processes chose is logged with escapes, so that it cannot control a terminal.
func TestLogIsSafe(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		s := &config{format: setting{value: format}}
		s.logger(&b, &control{levels: loglevel.New(s.level), recent: new(recent)}).Info("refused\x1b[2J", "peer\u202e", "a\u009b31m\u200b\u3164\n", "err", errors.New("\x7f\x1b]0;x\a"))
		for _, r := range strings.TrimSuffix(b.String(), "\n") {
			if !display.IsSafe(r) {
				t.Errorf("%s: %q in %q", format, r, b.String())
			}
		}
		if format == "json" && !json.Valid(b.Bytes()) {
			t.Errorf("%q is not JSON", b.String())
		}
	}
}

func answers(t *testing.T, path string) error {
	c, err := directory.Join(t.Context(), directory.DialSocket(path))
	if err == nil {
		c.Close()
	}
	return err
}

func TestServe(t *testing.T) {
	dir := short(t)
	one, two := filepath.Join(dir, "new", "one"), filepath.Join(dir, "two")
	_, stop := started(t, "--socket", one, "--listen", "unix:"+two)
	for _, p := range []string{one, two} {
		try.OK(t, answers(t, p))
		try.Equal(t, try.Get(os.Stat(p))(t).Mode().Perm(), 0o600, "%s", p)
	}
	try.Equal(t, try.Get(os.Stat(filepath.Dir(one)))(t).Mode().Perm(), 0o700, "the folder it made")
	for _, args := range [][]string{{"--socket", one}, {"--socket", filepath.Join(dir, "three"), "--listen", "unix:" + two}} {
		if _, errOut, code := call(t, args...); code != 3 || !strings.Contains(errOut, "Another dirserver") {
			t.Errorf("dirserver %v beside it: exit code %d, %q", args, code, errOut)
		}
	}
	try.Equal(t, stop(), 0, "ended as asked: exit code")
	for _, p := range []string{one, two, filepath.Join(dir, "three")} {
		try.Fails(answers(t, p))(t, directory.ErrNoDirectory, "%s, when it has ended", p)
	}
	// The files that the first daemon left behind do not stop the next one.
	started(t, "--socket", one, "--listen", "unix:"+two)
}

// A dirserver with --tpvm lets tasks start programs. One without does not.
func TestPod(t *testing.T) {
	for _, c := range []struct{ vm, launcher string }{{"", tpvm.LauncherTask}, {"other", tpvm.LauncherTask}, {"mine", tpvm.LauncherDirserver}} {
		socket := filepath.Join(short(t), "d")
		args := []string{"--socket", socket}
		if c.vm != "" {
			args = append(args, "--tpvm", c.vm)
		}
		_, stop := started(t, args...)
		ctx, cancel := context.WithTimeout(t.Context(), eventually.Timeout)
		defer cancel()
		task := try.Get(tpvm.Enrol(ctx, tpvm.WithVM("mine"), tpvm.WithRocl(rocl.JoinOnly(), rocl.WithSocket(socket))))(t)
		var hosts []tpvm.Host
		eventually.True(t, "the pod begins", func() bool { // after the dirserver
			hosts = try.Get(task.Hosts(ctx))(t)
			return hosts[0].Launcher == c.launcher
		})
		try.Fails(task.DelHosts(ctx, hosts[0].Node))(t, tpvm.ErrNoPod, "--tpvm %q", c.vm)
		try.OK(t, task.Exit(ctx))
		try.Equal(t, stop(), 0, "--tpvm %q: exit code", c.vm)
	}
}

func TestCannotServe(t *testing.T) {
	dir := short(t)
	plain := filepath.Join(dir, "plain")
	try.OK(t, os.WriteFile(plain, nil, 0o600))
	for _, p := range []string{plain, filepath.Join(plain, "sock")} {
		if _, errOut, code := call(t, "--socket", p); code != 1 || !strings.Contains(errOut, plain) || strings.Contains(errOut, "rocl:") {
			t.Errorf("dirserver --socket %s: exit code %d, %q", p, code, errOut)
		}
	}
}

// labels returns n flags with labels.
func labels(n int, value string) (args []string) {
	for i := range n {
		args = append(args, "--label", fmt.Sprintf("label%d=%s", i, value))
	}
	return args
}

// Labels come from the same places as other settings. A comma separates them only in the
// environment.
func TestLabels(t *testing.T) {
	conf := []string{"--config", file(t, `label = ["zone=file", "list=a,b"]`)}
	for _, c := range []struct {
		env  string
		args []string
		want resource.Match
		not  resource.Match
	}{
		{"", nil, resource.Match{}, resource.Match{"zone": "flag"}},
		{"", conf, resource.Match{"zone": "file", "list": "a,b"}, nil},
		{"zone=env,gpu=yes", conf, resource.Match{"zone": "env", "gpu": "yes"}, resource.Match{"list": "a,b"}},
		{"zone=env", append(conf, "--label", "zone=flag", "--label", "zone=x,y", "--label", "empty="), resource.Match{"zone": "x,y", "empty": ""}, resource.Match{"zone": "env"}},
	} {
		t.Run(c.env+" "+strings.Join(c.args, " "), func(t *testing.T) {
			t.Setenv("ROCL_LABEL", c.env)
			path := filepath.Join(short(t), "sock")
			started(t, append([]string{"--socket", path}, c.args...)...)
			d := try.Get(directory.Join(t.Context(), directory.DialSocket(path)))(t)
			defer d.Close()
			find := func(m resource.Match) error {
				l, err := resource.NewPattern(m)
				if err == nil {
					err = l.AddString(directory.AttrKind, "node")
				}
				if err == nil {
					_, err = d.Find(t.Context(), l)
				}
				return err
			}
			try.OK(t, find(c.want))
			if err := find(c.not); c.not != nil && !errors.Is(err, directory.ErrNotFound) {
				t.Errorf("%v: %v", c.not, err)
			}
		})
	}
}

// The messages to systemd come in order.
func TestNotify(t *testing.T) {
	dir := short(t)
	path := filepath.Join(dir, "notify")
	for _, name := range []string{path, "@rocl-test-" + strconv.Itoa(os.Getpid())} {
		addr := name
		if name[0] == '@' {
			addr = "\x00" + name[1:]
		}
		l := try.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: addr, Net: "unixgram"}))(t)
		hear := func() string {
			t.Helper()
			b := make([]byte, 100)
			_ = l.SetReadDeadline(time.Now().Add(30 * time.Second))
			n := try.Get(l.Read(b))(t)
			return string(b[:n])
		}
		t.Setenv("NOTIFY_SOCKET", name)
		t.Setenv("WATCHDOG_USEC", "20000")
		_, stop := started(t, "--socket", filepath.Join(dir, "sock"))
		for _, want := range []string{"READY=1", "WATCHDOG=1", "WATCHDOG=1"} {
			try.Equal(t, hear(), want, "told")
		}
		ended := make(chan struct{})
		go func() { stop(); close(ended) }()
		got := hear() // before the daemon has ended: it waits while the socket is full
		for got == "WATCHDOG=1" {
			got = hear()
		}
		<-ended
		try.Equal(t, got, "STOPPING=1", "told at the end")
		l.Close()
	}
	// No process listens at the socket: the daemon serves all the same.
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "nobody"))
	_, stop := started(t, "--socket", filepath.Join(dir, "sock"))
	try.Equal(t, stop(), 0, "exit code")
}

// An error about an address says what to do. The exit code says that the reason may pass.
func TestAddressTaken(t *testing.T) {
	ln := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer ln.Close()
	socket := filepath.Join(short(t), "sock")
	for _, flag := range []string{"--bind", "--http"} {
		if _, errOut, code := call(t, "--socket", socket, flag, ln.Addr().String()); code != codePassing || !strings.Contains(errOut, "Another process listens there") {
			t.Errorf("%s: exit code %d, %q", flag, code, errOut)
		}
		try.Fails(answers(t, socket))(t, directory.ErrNoDirectory, "%s: the node is not free afterwards", flag)
	}
}

// A reason that may pass has an exit code of its own, and so has one that lasts.
func TestExitCodes(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("serving: %w", err) }
	for err, want := range map[error]int{
		nil:                             0,
		errors.New("anything"):          codeFailed,
		wrap(syscall.EACCES):            codeFailed,
		wrap(wrong(errors.New("flag"))): codeMisuse,
		wrap(cluster.ErrConfig):         codeMisuse,
		wrap(directory.ErrInUse):        codeServed,
		wrap(fmt.Errorf("%w: %w", directory.ErrInUse, directory.ErrSilent)): codePassing,
		wrap(syscall.EADDRINUSE): codePassing,
		wrap(syscall.EMFILE):     codePassing,
		wrap(&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}): codePassing,
	} {
		var out bytes.Buffer
		if code := report(err, &out); code != want || (out.Len() == 0) != (err == nil) {
			t.Errorf("%v: exit code %d, want %d; printed %q", err, code, want, out.String())
		}
	}
}

// A daemon whose address is not there serves the node, and says in its log and in /readyz what it
// lacks. It serves metrics when it has the address for them.
func TestAddressNotThere(t *testing.T) {
	socket := filepath.Join(short(t), "sock")
	said, stop := started(t, "--socket", socket, "--bind", "203.0.113.254:7946", "--http", "127.0.0.1:0")
	said.find(t, "the node is served, and is not a member yet")
	body, resp := get(t, client(t), "http://"+said.find(t, `"http":"([^"]*)"`)+"/readyz")
	if resp.StatusCode != 503 || !strings.Contains(body, "- cluster: this node is not a member of its cluster at present") || !strings.Contains(body, "203.0.113.254") {
		t.Errorf("%s: %q", resp.Status, body)
	}
	try.OK(t, answers(t, socket))
	try.Equal(t, stop(), 0, "exit code")
	said, stop = started(t, "--socket", socket, "--http", "203.0.113.254:1")
	said.find(t, "metrics and health are not served")
	try.Equal(t, stop(), 0, "exit code")
}

func TestCompletion(t *testing.T) {
	for flag, want := range map[string]string{"search": "auto\nunicast\nbroadcast\ntree\n", "log-level": "debug\ninfo\nwarn\nerror\n", "log-format": "text\njson\n"} {
		if out, _, code := call(t, "__complete", "--"+flag, ""); code != 0 || !strings.HasPrefix(out, want) {
			t.Errorf("--%s: exit code %d, %q", flag, code, out)
		}
	}
}

// A pipe whose other end does not write does not keep the daemon from ending, and is refused as a
// file of keys or certificates.
func TestPipes(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	try.OK(t, posix.Mkfifo(pipe))
	key := file(t, "a key of the cluster\n")
	for _, args := range [][]string{
		{"--bind", "127.0.0.1:0", "--key-file", pipe},
		{"--bind", "127.0.0.1:0", "--key-file", key, "--tls-cert", pipe, "--tls-key", key, "--tls-ca", key},
	} {
		args = append(args, "--socket", filepath.Join(short(t), "d.sock"))
		if _, errOut, code := call(t, args...); code == 0 || !strings.Contains(errOut, pipe+" is not a regular file") {
			t.Errorf("dirserver %v: exit code %d, %q", args, code, errOut)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int)
	go func() { code <- run(ctx, []string{"--config", pipe}, io.Discard, io.Discard) }()
	cancel()
	try.Equal(t, <-code, 2, "interrupted while it waits for its configuration: exit code")
	// The pipe has a reader as soon as the goroutine opens it; opening the other end lets the
	// goroutine end.
	var w *os.File
	var err error
	eventually.True(t, "the pipe has a reader", func() bool {
		w, err = os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		return !errors.Is(err, syscall.ENXIO)
	})
	try.OK(t, err)
	w.Close()
}
