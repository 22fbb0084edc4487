// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

func TestNodes(t *testing.T) {
	s, sock := labelled(t, resource.Attrs{"zone": "a", "bell": "\a"})
	name := nodeName(s.Node())
	nodes := func(args ...string) (string, string, int) {
		return execute(t.Context(), nil, append([]string{"nodes", "--socket", sock}, args...)...)
	}
	out, errOut, code := nodes("zone=a")
	if lines := strings.Split(out, "\n"); code != 0 || errOut != "" || len(lines) != 3 || !strings.HasPrefix(lines[0], "NODE ") || !strings.HasPrefix(lines[1], name+" ") ||
		!strings.Contains(lines[1], "zone=a") || !strings.Contains(lines[1], runtime.GOOS+"/"+runtime.GOARCH) || strings.Contains(out, "\a") {
		t.Errorf("nodes: %d, %q, %q", code, out, errOut)
	}
	out, _, code = nodes("--json")
	var n struct {
		Node, ID, Host, OS, Arch, Version string
		Cores, Memory                     uint64
		Addr                              *string
		Labels                            map[string]string
	}
	if err := json.Unmarshal([]byte(out), &n); err != nil || code != 0 || strings.Count(out, "\n") != 1 {
		t.Fatalf("nodes --json: %d, %q", code, out)
	}
	if n.Node != name || n.ID != directory.NodeResource(s.Node()).String() || n.Cores != uint64(runtime.NumCPU()) || n.Memory == 0 || n.Addr != nil ||
		n.Version == "" || !reflect.DeepEqual(n.Labels, map[string]string{"zone": "a", "bell": "\a"}) {
		t.Errorf("%+v", n)
	}
	for _, args := range [][]string{{"zone=b"}, {"zone=b", "--json"}} {
		if out, errOut, code := nodes(args...); code != 1 || out != "" || errOut != "" {
			t.Errorf("nodes %v: %d, %q, %q", args, code, out, errOut)
		}
	}
	if out, _, code := execute(t.Context(), nil, "find", "--socket", sock, "zone=a"); code != 1 {
		t.Errorf("a node is among the resources: %q", out)
	}
}

func TestFindCluster(t *testing.T) {
	s, sock := labelled(t, nil)
	find := func(args ...string) (string, string, int) {
		return execute(t.Context(), nil, append([]string{"find", "--cluster", "--socket", sock}, args...)...)
	}
	if out, errOut, code := find("a=b"); code != 1 || out != "" || errOut != "1 of 1 nodes told what they have\n" {
		t.Errorf("nothing: %d, %q, %q", code, out, errOut)
	}
	r := start(t, "register", "--socket", sock, "a=b")
	id := r.line()
	if out, errOut, code := find("a=b"); code != 0 || out != nodeName(s.Node())+" "+id+" {a=b}\n" || errOut != "1 of 1 nodes told what they have\n" {
		t.Errorf("%d, %q, %q", code, out, errOut)
	}
	out, errOut, code := find("a=b", "--json")
	if code != 0 || !strings.HasPrefix(out, `{"node":"`+nodeName(s.Node())+`","id":"`+id+`"`) || errOut != `{"covered":1,"failed":[]}`+"\n" {
		t.Errorf("%d, %q, %q", code, out, errOut)
	}
}

func TestReportCoverage(t *testing.T) {
	v := &rocl.Coverage{Covered: 3, Failed: []resource.NodeID{1, 0xabc}}
	for _, c := range []struct {
		g    Globals
		want string
	}{
		{Globals{}, "3 of 5 nodes told what they have\ncould not be asked: 000000000001 000000000abc\n"},
		{Globals{JSON: true}, `{"covered":3,"failed":["000000000001","000000000abc"]}` + "\n"},
	} {
		var b bytes.Buffer
		if err := reportCoverage(&b, c.g, v); err != errPartial || b.String() != c.want {
			t.Errorf("%v, %q, want %q", err, b.String(), c.want)
		}
	}
}

func TestSearchTrace(t *testing.T) {
	s, sock := labelled(t, nil)
	search := func(args ...string) (string, string, int) {
		return execute(t.Context(), nil, append([]string{"search-trace", "--socket", sock}, args...)...)
	}
	out, errOut, code := search("a=b")
	if code != 1 || errOut != "" || !strings.Contains(out, nodeName(s.Node())+"  local") || !strings.Contains(out, "not found") || !strings.Contains(out, "messages: 0 sent") {
		t.Errorf("%d, %q, %q", code, out, errOut)
	}
	r := start(t, "register", "--socket", sock, "a=b")
	id := r.line()
	for _, name := range []string{"auto", "tree", "unicast", "broadcast"} {
		if out, errOut, code := search("a=b", "--search", name); code != 0 || !strings.Contains(out, "found "+id+" in ") || (errOut != "") != (name == "broadcast") {
			t.Errorf("--search %s: %d, %q, %q", name, code, out, errOut)
		}
		out, _, code := search("a=b", "--search", name, "--json")
		var tr directory.Trace
		if err := json.Unmarshal([]byte(out), &tr); err != nil || code != 0 || tr.Strategy != name || tr.Found.String() != id || len(tr.Steps) != 1 || tr.Node != s.Node() {
			t.Errorf("--search %s --json: %d, %q, %v", name, code, out, err)
		}
	}
}

// others is the rest of a cluster of three nodes, one of which does not answer.
type others struct{ silent resource.NodeID }

func (r others) Find(context.Context, *resource.List) (resource.Record, error) {
	return resource.Record{}, directory.ErrPartial
}

func (r others) Summary(context.Context, resource.NodeID) ([]byte, error) {
	return nil, directory.ErrPartial
}

func (r others) Lookup(context.Context, resource.GID, *resource.List) (resource.Record, error) {
	return resource.Record{}, directory.ErrPartial
}

func (r others) All(_ context.Context, _ *resource.List, v *directory.Coverage) iter.Seq2[resource.Record, error] {
	return func(func(resource.Record, error) bool) { v.Covered, v.Failed = v.Covered+1, append(v.Failed, r.silent) }
}

func (r others) Trace(context.Context, strategy.Strategy, *resource.List) (directory.Trace, error) {
	return directory.Trace{
		Covered: 1, Failed: []resource.NodeID{r.silent},
		Steps: []directory.TraceStep{{Node: 2, How: "broadcast", Members: 1, Outcome: "none"}, {Node: r.silent, How: "broadcast", Members: 1, Outcome: "silent"}},
	}, nil
}

func (r others) Addr() string { return "127.0.0.1:7946" }

func (r others) Watch(*resource.List, *directory.Watch) func() { return func() {} }

// A node that could not be asked is named, and the exit code says so, whether or not the other
// nodes have a match.
func TestSilentNode(t *testing.T) {
	s, sock := labelled(t, resource.Attrs{"zone": "a"})
	s.Attach(others{0xabc})
	r := start(t, "register", "--socket", sock, "a=b")
	r.line()
	for args, lines := range map[string]int{
		"find --cluster a=b": 1, "find --cluster a=c": 0, "nodes": 2, "nodes zone=a": 2, "nodes zone=b": 0,
		"search-trace a=c": 7, "search-trace a=c --search broadcast": 7,
	} {
		out, errOut, code := execute(t.Context(), nil, append(strings.Fields(args), "--socket", sock)...)
		said := errOut
		if strings.HasPrefix(args, "search") {
			said = out
		}
		if code != 3 || strings.Count(out, "\n") != lines || !strings.Contains(said, "could not be asked: 000000000abc\n") || strings.Contains(errOut, "without a broadcast") {
			t.Errorf("%s: %d, %q, %q", args, code, out, errOut)
		}
	}
	if out, _, code := execute(t.Context(), nil, "search-trace", "--socket", sock, "a=b"); code != 0 || !strings.Contains(out, "silent") {
		t.Errorf("what is found: %d, %q", code, out)
	}
}

// hanging is the rest of a cluster, of which nothing comes before the end of a question.
type hanging struct{ others }

func (hanging) All(ctx context.Context, _ *resource.List, _ *directory.Coverage) iter.Seq2[resource.Record, error] {
	return func(yield func(resource.Record, error) bool) {
		<-ctx.Done()
		yield(resource.Record{}, context.Cause(ctx))
	}
}

// Beside a node that is silent for longer than --timeout, each command that lists prints what it
// has, and then the error.
//
// Promise (Commands): A command that lists prints what it has before the error if a node or server
// does not answer. See also TestSilentNode.
func TestHangingNode(t *testing.T) {
	s, sock := labelled(t, resource.Attrs{"zone": "a"})
	s.Attach(hanging{})
	c := open(t, sock)
	r := try.Get(c.Register(t.Context(), rocl.Attrs{"a": "b", "rpc": "1"}))(t)
	for args, want := range map[string]string{
		"find a=b": r.ID().String(), "nodes": nodeName(s.Node()), "nodes zone=a": "zone=a", "services": r.ID().String(), "routes": "",
	} {
		isEarly := func(out, _ string) bool { return !strings.Contains(out, want) }
		_, out, errOut, code := withinMore(t, 300*time.Millisecond, "", isEarly, append(strings.Fields(args), "--socket", sock)...)
		if code != 3 && code != 4 || !strings.Contains(out, want) || !strings.Contains(errOut, "not answer") {
			t.Errorf("%s: %d, %q, %q", args, code, out, errOut)
		}
	}
}

// withinMore executes a command with a time-out, and with twice as much as long as isEarly says
// that the machine was too slow for it. It returns the last time-out, and what execute returned.
func withinMore(t *testing.T, least time.Duration, in string, isEarly func(out, errOut string) bool, args ...string) (timeout time.Duration, out, errOut string, code int) {
	for timeout = least; ; timeout *= 2 {
		out, errOut, code = execute(t.Context(), strings.NewReader(in), append(args, "--timeout", timeout.String())...)
		if !isEarly(out, errOut) || timeout >= time.Minute {
			return timeout, out, errOut, code
		}
	}
}

// A command that only asks the directory opens no port.
func TestAskingOpensNoPort(t *testing.T) {
	sock := node(t)
	try.OK(t, Globals{Socket: sock, Timeout: long}.ask(t.Context(), func(_ *timeoutContext, c *rocl.Context) error {
		if len(c.Addrs()) > 0 {
			t.Errorf("it listens at %q", c.Addrs())
		}
		return nil
	}, askOnly()))
	c := open(t, sock, askOnly())
	w := start(t, "watch", "--socket", sock, "--json", rocl.AttrKind+"=context", rocl.AttrAddr+"=")
	w.line()
	for f, err := range c.FindAll(t.Context(), rocl.Match{rocl.AttrKind: "context"}) {
		try.OK(t, err)
		try.Equal(t, f.Attrs.GetString(rocl.AttrAddr), "", "a context listens: %v", &f.Attrs)
	}
}

// An error in a line is printed below the table, whose columns stay as narrow as without it.
func TestErrorsBelowTable(t *testing.T) {
	id := resource.MakeGID(1, 2, 0)
	route := routeJSON{Context: id, PID: 7, Route: &rocl.Route{Peer: id, Transport: "shm"}}
	broken := routeJSON{Context: id, PID: 8, Error: strings.Repeat("x", 200)}
	var plain, both, alone bytes.Buffer
	for w, lines := range map[*bytes.Buffer][]routeJSON{&plain: {route}, &both: {broken, route, broken}, &alone: {broken}} {
		try.OK(t, printRoutes(w, Globals{}, lines))
	}
	below := fmt.Sprintf("%v (PID 8): %s\n", id, broken.Error)
	if !strings.HasPrefix(plain.String(), "CONTEXT") || both.String() != plain.String()+below+below || alone.String() != below {
		t.Errorf("%q, %q, %q", plain.String(), both.String(), alone.String())
	}
}

func TestPrintTrace(t *testing.T) {
	id := resource.MakeGID(3, 1, 1)
	tr := &directory.Trace{
		Node: 1, Covered: 4, Failed: []resource.NodeID{9}, Took: 2e6, Sent: 6, Received: 3, Messages: 14, More: 2,
		Steps: []directory.TraceStep{
			{Node: 1, How: "local", Members: 1, Outcome: "none"},
			{Node: 2, How: "summary", Members: 1, Asked: 1e5, Took: 5e5, Outcome: "none", Covered: 1},
			{Node: 4, How: "tree", Members: 5, Outcome: "none", Covered: 4, Failed: 1, Took: 1},
			{Node: 9, How: "unicast", Members: 1, Outcome: "silent"},
			{Node: 5, How: "unicast", Members: 1},
			{Node: 3, How: "unicast", Members: 1, Outcome: "found", Found: id, Took: 1},
			{Node: 6, How: "by\x1b[2J", Members: 1, Outcome: "new\n"}, // of a later version
		},
	}
	print := func() []string {
		var b strings.Builder
		try.OK(t, printTrace(&b, tr))
		if strings.Contains(b.String(), "\x1b") {
			t.Errorf("%q", b.String())
		}
		return strings.Split(strings.TrimSpace(b.String()), "\n")
	}
	lines := print()
	for i, want := range []string{
		"", "none", "none", "none of 4, 1 not reached", "silent", "not waited for", "found " + id.String(), `"new\n"`,
		"and 2 more", "not found in 2.00 ms, and 1 of 5 nodes could not be asked", "could not be asked: 000000000009",
		"messages: 6 sent and 3 received by this node, 14 at least in all",
	} {
		if i >= len(lines) || !strings.HasSuffix(lines[i], want) {
			t.Fatalf("line %d of %q does not end in %q", i, lines, want)
		}
	}
	if !strings.Contains(strings.Join(strings.Fields(lines[2]), " "), "summary 1 node +0.10 ms 0.50 ms") || !strings.Contains(lines[3], "5 nodes") {
		t.Errorf("%q, %q", lines[2], lines[3])
	}
	tr.Found = id
	if lines := print(); !slices.Contains(lines, "found "+id.String()+" in 2.00 ms") {
		t.Errorf("%q", lines)
	}
	tr.Found, tr.Failed, tr.More = resource.GID{}, nil, 0
	if lines := print(); !slices.Contains(lines, "not found in 2.00 ms: 4 nodes asked") {
		t.Errorf("%q", lines)
	}
}

func TestCompletion(t *testing.T) {
	for line, want := range map[string][]string{
		"help se":                    {"send", "search-trace", "serve", "services"},
		"help nonsense ":             {},
		"search-trace a=b --search ": {"auto", "tree", "unicast", "broadcast"},
		"no":                         {"nodes"},
	} {
		out, _, code := execute(t.Context(), nil, append([]string{"__complete"}, strings.Split(line, " ")...)...)
		var got []string
		for l := range strings.Lines(out) {
			name, _, _ := strings.Cut(strings.TrimSpace(l), "\t")
			if !strings.HasPrefix(name, ":") {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if code != 0 || !slices.Equal(got, want) {
			t.Errorf("%q: %d, %q, want %q", line, code, got, want)
		}
	}
}

// The command help prints what --help prints.
func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"find"}, {"search-trace"}, {"completion", "bash"}, {"help"}} {
		a, _, code := execute(t.Context(), nil, append([]string{"help"}, args...)...)
		b, _, _ := execute(t.Context(), nil, append(slices.Clone(args), "--help")...)
		if code != 0 || a != b || a == "" {
			t.Errorf("help %v: %d, %q; --help %q", args, code, a, b)
		}
	}
}
