// SPDX-License-Identifier: Apache-2.0

// Package demo is a demonstration of rocl on real input: an inverted index of a tree of text files,
// built by processes that know each other only by attributes.
//
//	coordinator ──units──► crawlers ──contents──► indexers ◄──words── front end
//	     ▲                                           │                   ▲
//	     └──────────────── what is indexed ──────────┘      questions ───┘
//
// Each box is a process with a context of its own. The files are cut into units. One crawler reads
// a unit and sends it file by file to one indexer. The unit counts when the indexer has received
// its end. If an indexer ends, another one indexes its units again.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/cmd/rocl/internal/demo/index"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/spf13/cobra"
)

// Result is the result of a run, which is printed with --json.
type Result struct {
	Dir      string   `json:"dir"`
	Word     string   `json:"word"`
	Matches  int      `json:"matches"`
	Files    int      `json:"files"` // text files that were indexed
	Binary   int      `json:"binary"`
	Bytes    uint64   `json:"bytes"`
	Messages uint64   `json:"messages"`
	Words    int      `json:"words"` // sum over all indexers: a word in several of them counts for each
	Seconds  float64  `json:"seconds"`
	Skipped  []string `json:"skipped"`
	Redone   int      `json:"redone"` // units that were done again
	Killed   int      `json:"killed"` // processes that were lost
	Crawlers int      `json:"crawlers"`
	Indexers int      `json:"indexers"`
}

// Commands returns the command demo and the hidden commands that it starts as processes.
func Commands() []*cobra.Command {
	var o options
	demo := &cobra.Command{
		Use:   "demo [DIR]",
		Short: "Index a tree of files with processes that find each other by attributes",
		Long: "Index the text files under DIR (the Go installation's source if not given) with several\n" +
			"processes that know of each other only by attributes, then look a word up.\n" +
			"The number of matches is what 'LC_ALL=C grep -rIliw WORD DIR | wc -l' counts, but that a NUL byte\n" +
			"anywhere makes a file binary, while grep does not look behind a match for one.\n" +
			"The processes use a directory of their own unless --socket or ROCL_SOCKET names one.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if o.dir = args[0]; o.dir == "" {
					return usage.Errorf("the folder to index is empty; without an argument it is the Go installation's source")
				}
			}
			g := cli.Flags(cmd)
			o.json, o.socket, o.globals = g.JSON, g.Socket, g
			return run(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := demo.Flags()
	f.StringVar(&o.word, "word", "goroutine", "the word to look up")
	f.IntVar(&o.crawlers, "crawlers", 2, "number of crawler processes")
	f.IntVar(&o.indexers, "indexers", 3, "number of indexer processes")
	f.BoolVar(&o.kill, "kill-indexer", false, "kill an indexer half way, to see its share done again")

	hidden := &cobra.Command{
		Use: "demo-role ROLE RUN", Hidden: true, Args: cobra.ExactArgs(2),
		Short: "One process of a demo; started by demo",
		RunE: func(cmd *cobra.Command, args []string) error {
			return play(cmd.Context(), cli.Flags(cmd).Socket, args[0], args[1], cmd.InOrStdin())
		},
	}
	return []*cobra.Command{demo, hidden}
}

type options struct {
	dir, word, socket  string
	crawlers, indexers int
	kill               bool
	json               bool
	globals            cli.Globals
}

// goSource returns the source tree of the Go installation.
func goSource() (string, error) {
	root := os.Getenv("GOROOT")
	if root == "" {
		if b, err := exec.Command("go", "env", "GOROOT").Output(); err == nil {
			root = strings.TrimSpace(string(b))
		}
	}
	src := filepath.Join(root, "src")
	if _, err := os.Stat(src); root == "" || err != nil {
		return "", usage.Errorf("no Go installation found to index: name a directory, as in 'rocl demo ~/documents'")
	}
	return src, nil
}

func run(ctx context.Context, o options, out, errOut io.Writer) (err error) {
	if o.crawlers < 1 || o.indexers < 1 || o.crawlers > 64 || o.indexers > 64 {
		return usage.Errorf("--crawlers and --indexers must be from 1 to 64")
	}
	if o.kill && o.indexers < 2 {
		return usage.Errorf("--kill-indexer needs another one to go on: --indexers 2 or more")
	}
	if !index.IsWord(o.word) {
		return usage.Errorf("%q is not a word: one run of ASCII letters, digits and underscores", o.word)
	}
	if o.dir == "" {
		if o.dir, err = goSource(); err != nil {
			return err
		}
	}
	units, files, bad, err := walk(o.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return usage.Errorf("%s does not exist", o.dir)
	}
	if err != nil {
		return err
	}
	if o.socket == "" {
		dir, err := os.MkdirTemp("", "rocl-demo-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.socket = filepath.Join(dir, "directory.sock")
	}
	rep := &reporter{w: errOut, begun: time.Now()}
	if o.json {
		rep.w = io.Discard
	}
	start := time.Now()
	o.globals.Socket = o.socket
	c, err := o.globals.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	name := strings.ToLower(rand.Text()[:8])
	me, err := c.Register(ctx, rocl.Attrs{attrRun: name, attrRole: "coordinator", "pid": fmt.Sprint(os.Getpid())})
	if err != nil {
		return err
	}
	rep.printf("coordinator {demo=%s, role=coordinator} serves the directory; %d files under %s", name, files, o.dir)

	children := map[string][]*subprocess.Process{} // of each role
	defer func() {
		for _, ps := range children {
			for _, p := range ps {
				_ = p.Stop()
			}
		}
	}()
	for role, n := range map[string]int{"crawler": o.crawlers, "indexer": o.indexers, "front": 1} {
		for range n {
			p, err := subprocess.Start(subprocess.Self("demo-role", role, name, "--socket", o.socket))
			if err != nil {
				return err
			}
			children[role] = append(children[role], p)
		}
	}
	co := newCoordinator(c, me, name, rep, units)
	if err := co.gather(ctx, o.crawlers+o.indexers+2); err != nil {
		return err
	}
	if o.kill {
		co.kill = func() {
			p := children["indexer"][0]
			rep.printf("killing an indexer: process %d", p.Cmd.Process.Pid)
			p.Kill()
		}
	}
	if err := co.index(ctx); err != nil {
		return err
	}
	rep.printf("all is indexed: asking the front end for %q", o.word)
	t, err := co.query(ctx, o.word)
	if err != nil {
		return err
	}
	r := co.summary()
	r.Dir, r.Word, r.Matches, r.Words = o.dir, o.word, t.Matches, t.Words
	r.Seconds = time.Since(start).Seconds()
	r.Crawlers, r.Indexers = o.crawlers, o.indexers
	r.Skipped = append(bad, r.Skipped...)
	for _, s := range r.Skipped {
		fmt.Fprintln(errOut, "skipped:", display.Quote(s))
	}
	if o.json {
		if r.Skipped == nil {
			r.Skipped = []string{}
		}
		return cli.Print(out, r)
	}
	fmt.Fprintf(out, "%q is in %d of %d text files (%d others are binary, %d unreadable)\n", r.Word, r.Matches, r.Files, r.Binary, len(r.Skipped))
	for _, name := range t.Names {
		fmt.Fprintln(out, "  "+display.Quote(string(name)))
	}
	if r.Matches > len(t.Names) {
		fmt.Fprintf(out, "  and %d more\n", r.Matches-len(t.Names))
	}
	fmt.Fprintf(out, "%.1f MB in %d messages, %.2f s, %.0f MB/s; %d crawlers, %d indexers with %d words between them",
		float64(r.Bytes)/1e6, r.Messages, r.Seconds, float64(r.Bytes)/1e6/r.Seconds, r.Crawlers, r.Indexers, r.Words)
	if r.Killed > 0 {
		fmt.Fprintf(out, "; %s lost, %d units done again", processesOf(r.Killed), r.Redone)
	}
	_, err = fmt.Fprintln(out)
	return err
}

func processesOf(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprint(n, " processes")
}

// play runs a child process in its role until its input ends.
func play(ctx context.Context, socket, name, run string, in io.Reader) error {
	ctx, cancel := subprocess.UntilEnd(ctx, in)
	defer cancel()
	c, me, err := role(ctx, socket, run, name)
	if err == nil {
		defer c.Close()
		switch name {
		case "crawler":
			err = crawl(ctx, c, me)
		case "indexer":
			err = runIndexer(ctx, c, me)
		case "front":
			err = runFront(ctx, c, me, run)
		default:
			err = usage.Errorf("no role %q", name)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// A reporter writes lines that say what happens. One goroutine uses it.
type reporter struct {
	w     io.Writer
	begun time.Time
}

func (t *reporter) printf(format string, args ...any) {
	fmt.Fprintf(t.w, "%6.2fs  %s\n", time.Since(t.begun).Seconds(), fmt.Sprintf(format, args...))
}
