// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// program is a process with a context, until its input ends.
func program(socket string) {
	ctx := context.Background()
	c, err := rocl.Open(ctx, rocl.WithSocket(socket), rocl.JoinOnly())
	if err == nil {
		_, err = c.Register(ctx, rocl.Attrs{"type": "worker"})
	}
	fmt.Println("registered", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	c.Close()
}

// The daemon exports the figures of the node's programs: of messages that nobody receives, of a
// process that has been stopped, of hostile attributes. Series of what has ended are gone. Without
// --metrics-label the metrics have neither attributes nor identifiers.
//
// Promise (Commands): One target a node has the metrics of all its programs, without attributes
// unless configured otherwise.
func TestProgramMetrics(t *testing.T) {
	sock := filepath.Join(short(t), "sock")
	said, stop := started(t, "--socket", sock, "--http", ":0", "--metrics-label", "type,name")
	defer stop()
	plainSaid, plainStop := started(t, "--socket", filepath.Join(short(t), "sock"), "--http", ":0", "--metrics-series", "0")
	defer plainStop()
	url := func(said *output) string { return "http://" + said.find(t, `"http":"(127\.0\.0\.1:\d+)"`) + "/metrics" }
	base, client := url(said), client(t)
	ctx := eventually.Context(t)
	c := try.Get(rocl.Open(ctx, rocl.WithSocket(sock), rocl.JoinOnly(), rocl.WithLinger(0)))(t)
	defer c.Close()
	shard := try.Get(c.Register(ctx, rocl.Attrs{"type": "shard"}))(t)
	bad := "\x1b[2J\u202e<script>\"\\\n} 1\xff" + strings.Repeat("x", 1<<20)
	hostile := try.Get(c.Register(ctx, rocl.Attrs{"type": bad, "name": "n"}))(t)
	for range 300 {
		try.OK(t, shard.SendBytes(ctx, shard.ID(), 1, []byte("unread")))
	}
	pid, name := os.Getpid(), filepath.Base(try.Get(os.Executable())(t))
	series := func(metric, typ, attrName string, pid int) string {
		return fmt.Sprintf(`rocl_%s{attr_name="%s",attr_type="%s",pid="%d",program="%s"}`, metric, attrName, typ, pid, name)
	}
	var metrics string
	sees := func(what string, is func() bool) { // on a busy machine a program may answer too late
		t.Helper()
		eventually.True(t, what, func() bool {
			var resp *http.Response
			metrics, resp = get(t, client, base)
			try.Equal(t, resp.StatusCode, 200, "status")
			return is()
		})
	}
	has := func(series, value string) bool { return strings.Contains(metrics, series+" "+value+"\n") }
	messages, answering := series("mailbox_messages", "shard", "", pid), `rocl_contexts{state="answering"}`
	sees("what this program has", func() bool { return has(messages, "300") && has(answering, "1") })
	shown := regexp.MustCompile(`(?m)^rocl_mailbox_messages\{attr_name="n",attr_type="(.*)",pid="\d+",program="[^"]*"\} 0$`).FindStringSubmatch(metrics)
	if shown == nil || len(shown[1]) > 200 || !strings.Contains(shown[1], `u202e<script>`) || strings.ContainsAny(metrics, "\x1b\u202e") || strings.Contains(metrics, "\xff") {
		t.Errorf("the hostile attribute is shown as %q", shown)
	}
	checkMetrics(t, metrics)

	try.OK(t, hostile.Delete(ctx))
	p := try.Get(subprocess.Start(subprocess.Self("program", sock)))(t)
	defer p.Signal(syscall.SIGKILL)
	try.Equal(t, <-p.Lines, "registered <nil>", "line")
	worker, id := series("mailbox_messages", "worker", "", p.Cmd.Process.Pid), fmt.Sprint(p.Cmd.Process.Pid)
	sees("the process", func() bool { return has(worker, "0") })
	if strings.Contains(metrics, `attr_name="n"`) {
		t.Error("a deleted resource has series")
	}
	p.Signal(posix.SIGSTOP)
	silent := `rocl_context_silent_seconds{pid="` + id + `",program="` + name + `"}`
	sees("a stopped process, and what another one has", func() bool {
		return strings.Contains(metrics, silent) && has(`rocl_contexts{state="silent"}`, "1") && has(messages, "300")
	})
	p.Signal(posix.SIGCONT)
	sees("the process answers", func() bool { return !strings.Contains(metrics, silent) })
	p.CloseInput()
	sees("the process has ended", func() bool { return !strings.Contains(metrics, `pid="`+id+`"`) })

	plain, _ := get(t, client, url(plainSaid))
	if strings.Contains(plain, "rocl_contexts") || strings.Contains(plain, "rocl_mailbox") {
		t.Error("programs are asked with --metrics-series 0")
	}
	_, _ = get(t, client, base)
	c.Close()
	try.Equal(t, stop(), 0, "exit code")
	if strings.Contains(said.String(), `"level":"ERROR"`) || strings.Contains(said.String(), `"level":"WARN"`) {
		t.Errorf("it logged %s", said)
	}
}

// Without --metrics-label, the metrics have no attribute and no identifier of a program.
func TestPlainMetrics(t *testing.T) {
	sock := filepath.Join(short(t), "sock")
	said, stop := started(t, "--socket", sock, "--http", ":0")
	defer stop()
	ctx := eventually.Context(t)
	c := try.Get(rocl.Open(ctx, rocl.WithSocket(sock), rocl.JoinOnly(), rocl.WithLinger(0)))(t)
	defer c.Close()
	r := try.Get(c.Register(ctx, rocl.Attrs{"type": "secret-attribute"}))(t)
	try.OK(t, r.SendBytes(ctx, r.ID(), 1, nil))
	var metrics string
	messages := fmt.Sprintf("rocl_mailbox_messages{pid=\"%d\",program=\"%s\"} 1\n", os.Getpid(), filepath.Base(try.Get(os.Executable())(t)))
	eventually.True(t, "the message", func() bool { // on a busy machine a program may answer too late
		metrics, _ = get(t, client(t), "http://"+said.find(t, `"http":"(127\.0\.0\.1:\d+)"`)+"/metrics")
		return strings.Contains(metrics, messages)
	})
	if strings.Contains(metrics, "secret-attribute") || strings.Contains(metrics, c.ID().String()) {
		t.Error("the metrics have an attribute, or an identifier")
	}
}

// checkMetrics checks the text of metrics by promtool, if that is installed.
func checkMetrics(t *testing.T, metrics string) {
	t.Helper()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("ROCL_PROMTOOL") == "must" {
			t.Error(err)
		}
		t.Log("promtool is not installed: the form of the metrics is not checked")
		return
	}
	cmd := exec.CommandContext(eventually.Context(t), tool, "check", "metrics")
	cmd.Stdin = strings.NewReader(metrics)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v: %s", err, out)
	}
}
