// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// wait is a process with a resource name. "full" has room for 10 messages. For each message it
// calls the resource next. With the next "7" it receives the tag 7 only, and with "" nothing. It
// ends with its standard input.
func wait(sock, name, next string) {
	ctx := context.Background()
	c, err := rocl.Open(ctx, rocl.WithSocket(sock))
	if err != nil {
		panic(err)
	}
	var opts []rocl.RegisterOption
	if name == "full" {
		opts = append(opts, rocl.MailboxMessages(10))
	}
	r, err := c.Register(ctx, rocl.Attrs{"name": name}, opts...)
	if err != nil {
		panic(err)
	}
	go func() {
		switch next {
		case "":
			return
		case "7":
			_, _ = r.Recv(ctx, rocl.Tag(7))
			return
		}
		_ = r.Handle(ctx, func(*rocl.Message) {
			if f, err := c.Find(ctx, rocl.Match{"name": next}); err == nil {
				_, _ = r.CallBytes(ctx, f.ID, 1, nil)
			}
		})
	}()
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// 'rocl waits' finds a call to a stopped process, sends to a mailbox from which nobody receives
// what waits, a call to a process that receives another tag, and two processes that call each
// other.
//
// Promise (Observing): rocl waits names the process for which a call waits, if that process is
// stopped, and the mailbox for which a send waits, if nobody receives from it.
func TestWaits(t *testing.T) {
	ctx, sock := eventually.Context(t), node(t)
	c := open(t, sock)
	me := try.Get(c.Register(ctx, rocl.Attrs{"name": "me"}))(t)
	names, ids, processes := []string{fmt.Sprintf("process %d (%s)", os.Getpid(), filepath.Base(os.Args[0])), "ME"}, map[string]rocl.GID{}, map[string]*subprocess.Process{}
	for name, next := range map[string]string{"a": "b", "b": "a", "stopped": "", "full": "", "picky": "7"} {
		cmd := subprocess.Self(sock, name, next)
		cmd.Env = append(os.Environ(), "BE_WAITER=1")
		p := try.Get(subprocess.Start(cmd))(t)
		t.Cleanup(p.Kill)
		try.OK(t, p.Expect(ctx, "ready"))
		process := fmt.Sprintf("process %d", cmd.Process.Pid)
		names = append(names, process+fmt.Sprintf(" (%s)", filepath.Base(os.Args[0])), strings.ToUpper(name), process, strings.ToUpper(name))
		ids[name], processes[name] = try.Get(c.Find(ctx, rocl.Match{"name": name}))(t).ID, p
	}
	waiting, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	waits := []func() error{
		func() error { _, err := me.CallBytes(waiting, ids["a"], 1, nil); return err },
		func() error { _, err := me.CallBytes(waiting, ids["stopped"], 7, nil); return err },
		func() error {
			for {
				if err := me.SendBytes(waiting, ids["full"], 5, nil); err != nil {
					return err
				}
			}
		},
		func() error { _, err := me.CallBytes(waiting, ids["picky"], 5, nil); return err },
	}
	processes["stopped"].Signal(posix.SIGSTOP)
	for _, w := range waits {
		go func() { ended <- w() }()
	}
	defer func() {
		cancel()
		for range waits {
			try.Rejects(<-ended)(t) // canceled, or the stopped process is out of reach
		}
	}()
	program := strings.NewReplacer(names...)
	for pattern, want := range map[string]string{
		"stopped": "ME calls name=stopped in STOPPED\n" +
			"end: STOPPED has not answered for TIME\n",
		"full": "ME sends to name=full in FULL, and waits for room\n" +
			"end: name=full in FULL: nobody receives: 10 messages wait\n",
		"picky": "ME calls name=picky in PICKY\n" +
			"end: name=picky in PICKY: nobody receives: 1 message waits, the first with tag 5 from name=me, the only receive selects tag 7\n",
		"a": "ME calls name=a in A\n" +
			"name=a in A: a handler runs, and 1 message waits\n" +
			"A calls name=b in B\n" +
			"name=b in B: a handler runs\n" +
			"B calls name=a in A\n" +
			"cycle: the last 4 steps wait for each other\n",
	} {
		var out, errOut string
		is := eventually.Within(eventually.Timeout, func() bool {
			var code int
			out, errOut, code = execute(ctx, nil, "waits", "--socket", sock, "--least", "100ms", "--timeout", "2s", "name="+pattern)
			got := ""
			for line := range strings.Lines(program.Replace(out)) {
				if strings.HasPrefix(line, "≥") {
					_, line, _ = strings.Cut(line, " ")
				}
				got += strings.TrimLeft(line, " ")
			}
			if i := strings.Index(got, "answered for "); i >= 0 {
				got = got[:i] + "answered for TIME\n"
			}
			return code == 3 && got == want && strings.Contains(errOut, fmt.Sprintf("process %d of node", processes["stopped"].Cmd.Process.Pid))
		})
		if !is {
			t.Errorf("%s: never\n%s in place of\n%s%s", pattern, out, want, errOut)
		}
	}
	out, _, code := execute(ctx, nil, "waits", "--socket", sock, "--least", "100ms", "--timeout", "2s", "--json", "name=a")
	var chain observe.Chain
	if err := json.Unmarshal([]byte(out), &chain); err != nil || code != 3 || chain.Cycle != 4 || chain.Age < 100*time.Millisecond {
		t.Errorf("%d, %q: %v", code, out, err)
	}
}

// Without a wait there is no output, a line on standard error, and the exit code is 1.
func TestWaitsOfNothing(t *testing.T) {
	sock := node(t)
	c := open(t, sock)
	try.Get(c.Register(t.Context(), rocl.Attrs{"name": "idle"}))(t)
	for _, args := range [][]string{nil, {"name=idle"}, {"name=none"}, {"--cluster"}} {
		out, errOut, code := execute(t.Context(), nil, append([]string{"waits", "--socket", sock, "--least", "10ms"}, args...)...)
		if out != "" || errOut != "nothing waits\n" || code != 1 {
			t.Errorf("%v: %d, %q, %q", args, code, out, errOut)
		}
	}
	_, errOut, code := execute(t.Context(), nil, "waits", "--socket", sock, "--least", "0s")
	if code != 64 {
		t.Errorf("%d, %q", code, errOut)
	}
}
