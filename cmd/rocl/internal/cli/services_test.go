// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

// newServices returns the socket of a node, a context and a client of package rpc.
func newServices(t *testing.T) (string, *rocl.Context, *rpc.Client) {
	sock := node(t)
	c := open(t, sock)
	client := try.Get(rpc.NewClient(t.Context(), c))(t)
	t.Cleanup(func() { client.Close() })
	return sock, c, client
}

// newService returns a server that offers one call, with the interceptors around.
func newService(t *testing.T, c *rocl.Context, attrs rocl.Attrs, call string, result any, around ...rpc.Interceptor) *rpc.Server {
	s := try.Get(rpc.NewServer(t.Context(), c, attrs, rpc.WithInterceptors(around...)))(t)
	t.Cleanup(func() { s.Close(context.Background()) })
	try.OK(t, rpc.Register(s, call, func(context.Context, struct{}) (any, error) { return result, nil }))
	return s
}

// list lists the calls of servers with the given identifiers.
func list(ctx context.Context, w io.Writer, client *rpc.Client, g Globals, ids ...rocl.GID) error {
	p := g.withTimeout(ctx)
	defer p.stop()
	return listServices(p, w, client, func(yield func(rocl.Found, error) bool) {
		for _, id := range ids {
			if !yield(rocl.Found{ID: id}, nil) {
				return
			}
		}
	}, g, false)
}

// A server that answers late does not delay the questions to the others, and the order of the
// output stays.
func TestServicesAreAskedAtOnce(t *testing.T) {
	_, c, client := newServices(t)
	lastAsked := make(chan struct{})
	first := newService(t, c, nil, "one", nil, func(ctx context.Context, _ *rpc.Invocation, _ func(context.Context) error) error {
		select {
		case <-lastAsked:
			return errors.New("the last server was asked")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	last := newService(t, c, nil, "two", nil, func(ctx context.Context, _ *rpc.Invocation, next func(context.Context) error) error {
		close(lastAsked)
		return next(ctx)
	})
	var out bytes.Buffer
	err := list(t.Context(), &out, client, Globals{Timeout: long, JSON: true}, first.ID(), last.ID())
	if err == nil || !strings.HasPrefix(err.Error(), "1 of 2 ") {
		t.Errorf("%v", err)
	}
	type line struct {
		Server rocl.GID
		Error  string
		Name   string
		Calls  *int
	}
	var lines []line
	for text := range strings.Lines(out.String()) {
		var l line
		try.OK(t, json.Unmarshal([]byte(text), &l), "%q", text)
		lines = append(lines, l)
	}
	if len(lines) != 2 || lines[0].Server != first.ID() || lines[1].Server != last.ID() {
		t.Fatalf("%q, want a line of %v and one of %v", out.String(), first.ID(), last.ID())
	}
	if l := lines[0]; !strings.Contains(l.Error, "the last server was asked") || l.Name != "" || l.Calls != nil {
		t.Errorf("the first server: %q", out.String())
	}
	if l := lines[1]; l.Error != "" || l.Name != "two" || l.Calls == nil {
		t.Errorf("the last server: %q", out.String())
	}
}

// rocl services --types lists the types of calls. The completion of rocl call
// has the names of calls.
func TestServicesTypes(t *testing.T) {
	sock, c, _ := newServices(t)
	s := newService(t, c, rocl.Attrs{"is": "typed"}, "one", nil)
	type in struct{ A int }
	try.OK(t, rpc.Register(s, "two", func(context.Context, in) (string, error) { return "", nil }))
	for flags, want := range map[string]string{"": "\n  one({}) interface {}\n  two(cli.in {A int}) string\n", "--json": `"name":"two","form":0,"in":"cli.in {A int}","out":"string"}`} {
		out, _, code := execute(t.Context(), nil, append(strings.Fields(flags), "services", "--types", "--socket", sock)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%d, %s", code, out)
		}
	}
	out, _, _ := execute(t.Context(), nil, "__complete", "call", "--socket", sock, "tw")
	if !strings.HasPrefix(out, "two\ttwo(cli.in {A int}) string\n:4") {
		t.Errorf("completions %q", out)
	}
	_, errOut, code := call(t, sock, "", "three", "is=typed")
	if code == 0 || !strings.Contains(errOut, "it offers one, two") {
		t.Errorf("%d, %q", code, errOut)
	}
}

// A resource that never replies is listed with the time for which the command waited.
func TestServiceThatHangs(t *testing.T) {
	_, c, client := newServices(t)
	hung := try.Get(c.Register(t.Context(), rocl.Attrs{"rpc": "1"}))(t)
	why := hung.ID().String() + " did not reply within 50ms"
	for asJSON, want := range map[bool]string{false: "does not answer: " + why + "\n", true: `"error":"` + why + `"`} {
		var out bytes.Buffer
		err := list(t.Context(), &out, client, Globals{Timeout: 50 * time.Millisecond, JSON: asJSON}, hung.ID())
		if err == nil || !strings.Contains(out.String(), want) || json.Valid(out.Bytes()) != asJSON {
			t.Errorf("%v, %q, want %q", err, out.String(), want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if err := list(ctx, &out, client, Globals{Timeout: long}, hung.ID()); !errors.Is(err, context.Canceled) || out.Len() > 0 {
		t.Errorf("interrupted: %v, %q", err, out.String())
	}
}

// Beside a server whose process is stopped, services waits for --timeout once: for the directory
// and the servers together. It does not wait for the stopped process as it ends.
func TestServicesBesideStopped(t *testing.T) {
	sock, c, _ := newServices(t)
	newService(t, c, rocl.Attrs{"is": "running"}, "echo", nil)
	cmd := subprocess.Self("register", "--socket", sock, "rpc=1", "is=stopped")
	cmd.Env = append(os.Environ(), "BE_ROCL=1")
	s := try.Get(subprocess.Start(cmd))(t)
	t.Cleanup(func() {
		s.Signal(posix.SIGCONT)
		s.Kill()
	})
	try.Get(c.Await(t.Context(), rocl.Attrs{"is": "stopped"}, 1))(t)
	s.Signal(posix.SIGSTOP)
	isEarly := func(out, _ string) bool { return !strings.Contains(out, "echo") }
	timeout, out, errOut, code := withinMore(t, 500*time.Millisecond, "", isEarly, "services", "--socket", sock)
	if code != exitFailed || !strings.Contains(out, "echo") || !strings.Contains(out, "is=stopped") || !strings.Contains(out, "within "+timeout.String()) || !strings.Contains(errOut, "1 of 2 servers") {
		t.Errorf("%d, %q, %q", code, out, errOut)
	}
}

// Names of calls, results and errors of servers never reach the terminal unchanged.
func TestNothingUnsafeOfServices(t *testing.T) {
	sock, c, _ := newServices(t)
	newService(t, c, rocl.Attrs{"a": evil}, evil, nil)
	newService(t, c, rocl.Attrs{"is": "plain"}, "echo", map[string]string{evil: evil})
	newService(t, c, rocl.Attrs{"is": "broken"}, "echo", nil, func(context.Context, *rpc.Invocation, func(context.Context) error) error {
		return errors.New(evil)
	})
	for _, line := range []string{"services", "call echo is=plain", "call echo is=broken"} {
		printsSafely(t, sock, line)
	}
	var result map[string]string
	if out, _, code := call(t, sock, "", "echo", "is=plain"); code != 0 || json.Unmarshal([]byte(out), &result) != nil || result[evil] != evil {
		t.Errorf("%d, %q means %q", code, out, result)
	}
	if out, _, code := call(t, sock, "", "--raw", "echo", "is=plain"); code != 0 || unsafe(out) == "" {
		t.Errorf("--raw: %d, %q", code, out)
	}
}
