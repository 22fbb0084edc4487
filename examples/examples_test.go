// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	_ "github.com/rocl-go/rocl/bulk"     // if a package that the examples import changes, go test runs this test anew
	_ "github.com/rocl-go/rocl/election" // likewise
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	_ "github.com/rocl-go/rocl/live"    // likewise
	_ "github.com/rocl-go/rocl/netrocl" // likewise
	_ "github.com/rocl-go/rocl/rpc"     // likewise
	_ "github.com/rocl-go/rocl/tpvm"    // likewise
	_ "github.com/rocl-go/rocl/work"    // likewise
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The table of the examples: for each folder of one program, or of several that belong together,
// what they do.
var table = map[string]map[string]func(*testing.T, node){
	"hello": {"greets": prints(`^hello from \S+\n$`)},
	"calc":  {"adds": add},
	"kv":    {"keeps": keep},
	"filestore": {
		"whole":  putAndGet,
		"killed": killInPut,
		"rest":   getRest,
	},
	"pipeline": {
		"order":  passLines,
		"killed": passLinesAndKill,
		"fails": fails(map[string][]string{
			"usage":                 {},
			"usage: pipeline":       {"run", "many"},
			"usage: pipeline work ": {"work", "hard"},
			"n must be 1 or more":   {"run", "0"},
		}),
	},
	"wordcount": {
		"whole":  countWords,
		"groups": countInGroups,
		"killed": killInCount,
	},
	"traffic": {"groups": measureTraffic},
	"video":   {"groups": filterFilm},
	"httpd":   {"serves": get},
	"search": {
		"folder": searchFolder,
		"killed": searchAndKill,
		"fails":  fails(map[string][]string{"usage": {}, "is no word": {"find", "two words"}, "no such resource": {"find", "word"}}),
	},
	"serving":    {"killed": serveAndKill},
	"group1":     {"sums": prints(`^count 100, sum 4950\n$`)},
	"tpvm/hello": {"greets": prints(`^from \S+: hello, world from \S+\n$`)},
	"tpvm/group": {"reduces": prints(`^5 members, sum of their squares: 30\nmembers that are left: 0\n$`, "-n", "5")},
	"tpvm/mandelbrot": {
		"joined": drawWithJoined,
		"killed": drawAndKill,
	},
}

// Every example does what it says, also as processes are killed.
//
// Promise (Mailboxes): In stages with `MailboxMessages`, a stage that stands still stops the
// source, and nothing is lost. See also TestSlowSinkStopsSource.
//
// Promise (Source tree): Every example does what it says. See also TestEveryExampleIsInTable.
//
// Promise (Package rpc): A file put by calls and transfers is whole, even if its server is killed
// meanwhile.
//
// Promise (Source tree): While any processes of `examples/search` are killed, each answer that is
// said to be whole is that of `grep`.
//
// Promise (Source tree): While models of `examples/serving` are killed or stopped, no HTTP request
// fails as long as one model of its name lives.
func TestExamples(t *testing.T) {
	for example, tests := range table {
		t.Run(example, func(t *testing.T) {
			t.Parallel()
			dir := build(t, example, own()...)
			for what, test := range tests {
				t.Run(what, func(t *testing.T) {
					test(t, node{t, filepath.Join(dir, filepath.Base(example)), filepath.Join(t.TempDir(), "directory.sock")})
				})
			}
		})
	}
}

// Every program is in the table. The functions of the cookbook have tests of their own.
func TestEveryExampleIsInTable(t *testing.T) {
	isMain := regexp.MustCompile(`(?m)^package main$`)
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		if dir := filepath.Dir(path); isMain.Match(text) && table[dir] == nil && table[filepath.Dir(dir)] == nil {
			t.Errorf("%s is in no row of the table", path)
		} else if isMain.Match(text) {
			seen[dir] = true
		}
		return err
	})
	if err != nil || len(seen) < len(table) {
		t.Errorf("%d programs are found: %v", len(seen), err)
	}
}

// prints returns a test of a program that prints what the pattern matches.
func prints(pattern string, args ...string) func(*testing.T, node) {
	return func(t *testing.T, n node) {
		if said := n.must(args...); !regexp.MustCompile(pattern).MatchString(said) {
			t.Errorf("%q: the output is %q", args, said)
		}
	}
}

// fails returns a test of arguments with which a program prints an error, which has the text of the
// key.
func fails(all map[string][]string) func(*testing.T, node) {
	return func(_ *testing.T, n node) {
		for what, args := range all {
			n.fails(what, args...)
		}
	}
}

// The client prints the sum and the server, and fails without a server. The server ends when it is
// interrupted.
func add(t *testing.T, n node) {
	n.open() // serves the directory
	client, server := n.of("client"), n.of("server")
	client.fails("no such resource")
	servers := server.start(rocl.Match{"type": "calculator"}, nil)
	prints(`^42 \S+\n$`)(t, client)
	server.interrupt(servers...)
}

// Five providers in two processes share the keys. If a process is killed, the keys of its providers
// are lost, and no others.
func keep(t *testing.T, n node) {
	home := n.open()
	first := n.serve("3 providers serve", "serve", "3")
	n.serve("2 providers serve", "serve", "2")
	var names []string
	for i := range 20 {
		name := fmt.Sprint("key", i)
		names = append(names, name)
		if out, err := n.run("put", name, "value of "+name); err != nil || len(out) > 0 {
			t.Fatalf("put: %s, %v", out, err)
		}
	}
	n.fails(`key "nothing": file does not exist`, "get", "nothing")
	all := listed(n)
	if slices.Sort(names); !slices.Equal(all, names) {
		t.Errorf("%q are listed", all)
	}
	n.kill(first)
	n.remain(home, rocl.Match{"service": "kv"}, 2)
	kept := listed(n)
	if len(kept) == 0 || len(kept) == len(names) {
		t.Errorf("%d keys of %d are listed after a process was killed", len(kept), len(names))
	}
	for _, name := range kept {
		try.Gives(n.run("get", name))(t, "value of "+name+"\n", "get %s", name)
	}
}

// listed returns the names that "kv list" prints, in order.
func listed(n node) (names []string) {
	for line := range strings.Lines(n.must("list")) {
		if name, ok := strings.CutPrefix(line, "  "); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	slices.Sort(names)
	return names
}

// Workers of unequal speed do not change the order, and no line is lost: neither empty lines, nor
// long ones, nor the last one, which has no newline.
func passLines(t *testing.T, n node) {
	workers := n.start(rocl.Match{"type": "capitals"}, []string{"work", "0s"}, []string{"work", "3ms"}, []string{"work", "1ms"})
	var lines []string
	for i := range 200 {
		lines = append(lines, fmt.Sprint("line ", i), "")
	}
	lines = append(lines, strings.Repeat("long", 100_000), "the last")
	for _, input := range []string{"", "\n", "one", strings.Join(lines, "\n")} { // several runs with the same workers
		run := n.command("run", "3")
		run.Stdin = strings.NewReader(input)
		if said, err := run.Output(); err != nil || string(said) != strings.ToUpper(input) {
			t.Errorf("%d bytes became %d, %v", len(input), len(said), err)
		}
	}
	n.interrupt(workers...)
}

// A worker that is killed ends the run with an error.
func passLinesAndKill(t *testing.T, n node) {
	pause := []string{"work", "1ms"}
	workers := n.start(rocl.Match{"type": "capitals"}, pause, pause)
	cmd := n.command("run", "2")
	in, w, err := os.Pipe()
	try.OK(t, err)
	defer w.Close() // the input has no end
	defer in.Close()
	go func() {
		for {
			if _, err := w.WriteString("a line\n"); err != nil {
				return
			}
		}
	}()
	var errOut strings.Builder
	cmd.Stdin, cmd.Stderr = in, &errOut
	run := n.launch(cmd)
	try.Get(run.Line(t.Context()))(t)
	n.kill(workers[0])
	for range run.Lines {
	}
	if err := run.Wait(); err == nil || !strings.Contains(errOut.String(), rocl.ErrGone.Error()) {
		t.Errorf("the run ended with %v, %q", err, errOut.String())
	}
	n.interrupt(workers[1])
}

// The words of files are counted as tr, sort and uniq count them.
func countWords(t *testing.T, n node) {
	texts := try.Get(filepath.Glob("../docs/*.md"))(t)
	if got := n.must(texts...); got != unixCount(t, texts) {
		t.Error("the counts differ")
	}
}

// unixCount counts words with commands of Unix.
func unixCount(t *testing.T, files []string) string {
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `cat "$@" | tr -cs a-zA-Z0-9 '\n' | grep . | sort | uniq -c`, "-"}, files...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	return string(try.Get(cmd.Output())(t))
}

// inGroups runs the program once for each group, and returns what they print.
func (n node) inGroups(groups []string, args ...string) (all string) {
	n.t.Helper()
	n.open() // serves the directory
	var printed [8]strings.Builder
	var ps []*subprocess.Process
	for i, group := range groups {
		cmd := n.command(append([]string{"--DFF_GName=" + group}, args...)...)
		cmd.Stdout = &printed[i]
		ps = append(ps, n.launch(cmd))
	}
	for i, p := range ps {
		try.Check(n.t, p.Wait(), "group %s", groups[i])
		all += printed[i].String()
	}
	return all
}

// Four processes count as one does.
func countInGroups(t *testing.T, n node) {
	texts := try.Get(filepath.Glob("../docs/*.md"))(t)
	if n.inGroups([]string{"read", "split", "count", "print"}, texts...) != unixCount(t, texts) {
		t.Error("the counts differ")
	}
}

// Four processes find the same speeds as one, and as many passages as there are positions.
func measureTraffic(t *testing.T, n node) {
	args := []string{"-cars", "100"}
	sorted := func(text string) []string { return slices.Sorted(strings.Lines(text)) }
	whole := sorted(n.must(args...))
	cut := sorted(n.inGroups([]string{"0", "1", "2", "3"}, args...))
	try.Equal(t, strings.Join(cut, ""), strings.Join(whole, ""), "in groups")
	count := map[string]int{}
	for _, line := range whole {
		if f := strings.Fields(line); f[0] != "road" {
			count[f[0]] += try.Get(strconv.Atoi(f[1]))(t)
		}
	}
	if count["sent"] != 4*100*100 || count["received"] != count["sent"] {
		t.Errorf("passages: %v", count)
	}
}

// The frames that three processes write are those that one writes.
func filterFilm(t *testing.T, n node) {
	whole, cut := t.TempDir(), t.TempDir()
	n.must("-frames", "20", whole)
	n.inGroups([]string{"draw", "filter", "write"}, "-frames", "20", cut)
	files := try.Get(os.ReadDir(whole))(t)
	try.Equal(t, len(files), 20, "frames")
	for _, f := range files {
		a := try.Get(os.ReadFile(filepath.Join(whole, f.Name())))(t)
		if b := try.Get(os.ReadFile(filepath.Join(cut, f.Name())))(t); !bytes.Equal(a, b) {
			t.Errorf("%s differs", f.Name())
		}
	}
}

// A group is killed while words are counted. The other processes end with an error that names it.
func killInCount(t *testing.T, n node) {
	n.open() // serves the directory
	in, w, err := os.Pipe()
	try.OK(t, err)
	defer w.Close() // the input has no end
	var all []*subprocess.Process
	var errOut [4]strings.Builder
	for i, group := range []string{"read", "split", "count", "print"} {
		cmd := n.command("--DFF_GName", group, "/dev/stdin")
		cmd.Stdin, cmd.Stderr = in, &errOut[i]
		all = append(all, n.launch(cmd))
	}
	in.Close()
	const flows = 4 << 20 // more than a pipe holds
	for written := 0; written < flows; {
		k, err := w.WriteString("some words of a text\n")
		try.OK(t, err)
		written += k
	}
	n.kill(all[2])
	go func() {
		for {
			if _, err := w.WriteString("some words of a text\n"); err != nil {
				return
			}
		}
	}()
	for i, p := range all {
		if err := p.Wait(); i != 2 && (err == nil || !strings.Contains(errOut[i].String(), "group count")) {
			t.Errorf("%q ended with %v, %q", p.Cmd.Args[1:], err, errOut[i].String())
		}
	}
}

// A client gets the answer of a server. If that server is killed, another one answers.
func get(t *testing.T, n node) {
	n.open() // serves the directory
	servers := n.start(rocl.Match{"type": "web"}, []string{"serve"}, []string{"serve"})
	gets := func(path, want string) {
		for range 5 {
			prints(want, "get", path)(t, n)
		}
	}
	gets("/a/path", " serves /a/path to ")
	n.kill(servers[0])
	gets("/again", fmt.Sprintf("^process %d serves /again to ", servers[1].Cmd.Process.Pid))
	n.interrupt(servers[1])
	n.fails("", "get", "/")
}
