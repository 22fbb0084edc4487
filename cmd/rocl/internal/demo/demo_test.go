// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/rocltest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// notes is a reporter that keeps what it is told.
type notes struct{ said []string }

func (n *notes) printf(format string, args ...any) {
	n.said = append(n.said, fmt.Sprintf(format, args...))
}
func (n *notes) total(int)        {}
func (n *notes) step(int, uint64) {}

func (n *notes) has(what string) bool {
	return slices.ContainsFunc(n.said, func(s string) bool { return strings.Contains(s, what) })
}

// stage is a demonstration in this process. Its indexers run by themselves; its crawlers do what
// the test lets them do.
type stage struct {
	t       *testing.T
	ctx     context.Context
	cluster *rocltest.TestCluster
	notes   notes
	co      *coordinator
	actors  map[rocl.GID]*actor
}

type actor struct {
	c  *rocl.Context
	me *rocl.Resource
}

func newStage(t *testing.T, dir string) *stage {
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Timeout)
	t.Cleanup(cancel)
	s := &stage{t: t, ctx: ctx, cluster: rocltest.Cluster(t, 1), actors: map[rocl.GID]*actor{}}
	units, _, bad, err := walk(dir)
	if err != nil || bad != nil {
		t.Fatal(err, bad)
	}
	a := s.enter("coordinator")
	s.co = newCoordinator(a.c, a.me, "run", &s.notes, units)
	s.co.synced = true
	return s
}

func (s *stage) enter(role string) *actor {
	s.t.Helper()
	c := s.cluster.Open(0)
	me, err := c.Register(s.ctx, rocl.Attrs{attrRun: "run", attrRole: role, "pid": "1"})
	if err != nil {
		s.t.Fatal(err)
	}
	a := &actor{c, me}
	s.actors[me.ID()] = a
	if role != "coordinator" {
		s.event(rocl.Appeared, a, role)
	}
	if role == "indexer" {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = runIndexer(s.ctx, c, me)
		}()
		s.t.Cleanup(func() { c.Close(); <-ended })
	}
	return a
}

// event gives the coordinator an event of the watch.
func (s *stage) event(kind directory.EventKind, a *actor, role string) {
	s.t.Helper()
	if err := s.co.event(event(kind, a.me.ID(), role)); err != nil {
		s.t.Fatal(err)
	}
}

func event(kind directory.EventKind, id rocl.GID, role string) rocl.Event {
	var ev rocl.Event
	ev.Kind, ev.ID = kind, id
	_ = ev.Attrs.AddString(attrRole, role)
	return ev
}

// crawl makes the crawler of a unit send all of it.
func (s *stage) crawl(w *work) (u unit) {
	s.t.Helper()
	a := s.actors[w.crawler]
	m, err := a.me.Recv(s.ctx, rocl.Tag(tagUnit))
	if err != nil {
		s.t.Fatal(err)
	}
	defer m.Release()
	if err := json.Unmarshal(m.Bytes(), &u); err != nil {
		s.t.Fatal(err)
	}
	var done sent
	if err := crawlUnit(s.ctx, a.c, a.me, m.From(), &u, &done); err != nil {
		s.t.Fatal(err)
	}
	return u
}

// report returns the next report to the coordinator, before the coordinator has handled it.
func (s *stage) report() *rocl.Message {
	s.t.Helper()
	m, err := s.co.me.Recv(s.ctx, rocl.Tag(tagIndexed))
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func (s *stage) assign() {
	s.t.Helper()
	if err := s.co.assign(s.ctx); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) take(m *rocl.Message) {
	s.t.Helper()
	if _, err := s.co.message(m); err != nil {
		s.t.Fatal(err)
	}
	m.Release()
}

func tree(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A crawler ends when its unit is in the index and the report of that is under way. Whichever event
// comes first, the unit counts once.
func TestCrawlerDiesAfterSending(t *testing.T) {
	for _, gone := range []string{"gone first", "news first"} {
		t.Run(gone, func(t *testing.T) {
			s := newStage(t, tree(t, map[string]string{"a": "alpha", "b": "beta alpha"}))
			for _, role := range []string{"indexer", "indexer", "indexer", "crawler", "crawler"} {
				s.enter(role)
			}
			w := s.co.units[0]
			s.assign()
			dead := s.actors[w.crawler]
			first := s.crawl(w)
			news := s.report()
			if gone == "gone first" {
				s.event(rocl.Gone, dead, "crawler")
				s.assign()
				if s.actors[w.crawler] == dead {
					t.Fatal("the unit is given to the dead crawler")
				}
				again := s.crawl(w)
				if again.Attempt == first.Attempt || again.Indexer != first.Indexer {
					t.Errorf("first %+v, then %+v", first, again)
				}
				s.take(news) // the report of the attempt that was given up
				if s.co.left != 1 {
					t.Error("the news of an attempt that was given up counts")
				}
				s.take(s.report())
			} else {
				s.take(news)
				s.event(rocl.Gone, dead, "crawler")
				s.assign()
			}
			if s.co.left != 0 || len(s.co.todo) != 0 {
				t.Errorf("%d units left, %d to do", s.co.left, len(s.co.todo))
			}
			if sum, err := lookUp(s.ctx, s.co.c, s.co.me, "run", ask{Word: "alpha"}); err != nil || sum.Matches != 2 || sum.Indexers != 3 || len(sum.Names) != 2 || filepath.Base(string(sum.Names[0])) != "a" || filepath.Base(string(sum.Names[1])) != "b" {
				t.Errorf("looked up: %+v, %v, want 2 matches", sum, err)
			}
			if r := s.co.summary(); r.Killed != 1 || r.Files != 2 || !s.notes.has("is gone") {
				t.Errorf("summary %+v, said %q", r, s.notes.said)
			}
		})
	}
}

// An indexer that ends loses all its units, even those that it had finished.
func TestIndexerDiesWithResults(t *testing.T) {
	s := newStage(t, tree(t, map[string]string{"a": "alpha"}))
	for _, role := range []string{"indexer", "indexer", "crawler"} {
		s.enter(role)
	}
	w := s.co.units[0]
	s.assign()
	s.crawl(w)
	s.take(s.report())
	if s.co.left != 0 {
		t.Fatal("the unit is not done")
	}
	dead := s.actors[w.indexer]
	if err := dead.c.Close(); err != nil {
		t.Fatal(err)
	}
	s.event(rocl.Gone, dead, "indexer")
	s.assign()
	if s.co.left != 1 || s.actors[w.indexer] == dead {
		t.Fatalf("%d units left, given to the dead: %v", s.co.left, s.actors[w.indexer] == dead)
	}
	s.crawl(w)
	s.take(s.report())
	if sum, err := lookUp(s.ctx, s.co.c, s.co.me, "run", ask{Word: "ALPHA"}); err != nil || sum.Matches != 1 || sum.Indexers != 1 {
		t.Errorf("looked up: %+v, %v", sum, err)
	}
	if r := s.co.summary(); r.Killed != 1 || r.Redone != 1 || r.Files != 1 {
		t.Errorf("summary %+v", r)
	}
}

// A new watch shows by omission which processes have ended.
func TestGoneBetweenWatches(t *testing.T) {
	s := newStage(t, tree(t, map[string]string{"a": "alpha"}))
	dead, alive, crawler := s.enter("indexer"), s.enter("indexer"), s.enter("crawler")
	w := s.co.units[0]
	w.unit.Indexer, w.indexer, w.crawler = "x", dead.me.ID(), crawler.me.ID()
	w.result, s.co.left, s.co.todo = &indexed{}, 0, nil
	s.co.before = []rocl.GID{dead.me.ID(), alive.me.ID(), crawler.me.ID()}
	s.co.crawler, s.co.indexer, s.co.synced = map[rocl.GID]int{}, nil, false
	s.event(rocl.Appeared, crawler, "crawler")
	s.event(rocl.Appeared, alive, "indexer")
	s.event(rocl.Synced, alive, "")
	if !s.co.synced || s.co.left != 1 || len(s.co.todo) != 1 || s.co.summary().Killed != 1 || !s.notes.has("indexer "+dead.me.ID().String()) {
		t.Errorf("%d left, %d to do, said %q", s.co.left, len(s.co.todo), s.notes.said)
	}
	// The process is given up, whatever later events say of it.
	s.event(rocl.Appeared, dead, "indexer")
	if len(s.co.indexer) != 1 {
		t.Error("an indexer that was given up is used")
	}
}

// Without crawlers or indexers the run ends with an error instead of waiting.
func TestNobodyLeft(t *testing.T) {
	for _, role := range []string{"crawler", "indexer"} {
		s := newStage(t, tree(t, map[string]string{"a": "alpha"}))
		as := map[string]*actor{"crawler": s.enter("crawler"), "indexer": s.enter("indexer")}
		if err := s.co.event(event(rocl.Gone, as[role].me.ID(), role)); err == nil || !strings.Contains(err.Error(), "no "+role) {
			t.Errorf("the last %s is gone: %v", role, err)
		}
		s.co.crawler, s.co.indexer = map[rocl.GID]int{}, nil
		if err := s.co.event(event(rocl.Synced, rocl.GID{}, "")); err == nil {
			t.Error("a watch that yields no resource is no error")
		}
	}
}

func TestWalk(t *testing.T) {
	files := map[string]string{}
	for i := range 2*unitFiles + 1 {
		files[fmt.Sprintf("d%d/f%d", i%3, i)] = "x"
	}
	dir := tree(t, files)
	if err := os.Symlink(filepath.Join(dir, "d0", "f0"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "to")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, link} {
		units, n, bad, err := walk(d)
		if err != nil || bad != nil || n != len(files) || len(units) != 3 {
			t.Errorf("walk(%s): %d units, %d files, %v, %v", d, len(units), n, bad, err)
		}
		seen := map[string]bool{}
		for i, w := range units {
			if int(w.unit.ID) != i || len(w.unit.Paths) > unitFiles {
				t.Errorf("unit %d is %d with %d files", i, w.unit.ID, len(w.unit.Paths))
			}
			for _, p := range w.unit.Paths {
				seen[string(p)] = true
			}
		}
		if len(seen) != len(files) {
			t.Errorf("%d different files in the units, want %d", len(seen), len(files))
		}
	}
	if _, _, _, err := walk(filepath.Join(dir, "nowhere")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("walk of nothing: %v", err)
	}
}

func TestContentHeader(t *testing.T) {
	want := content{unit: 1, attempt: 2, file: 1 << 30, flags: flagLast | flagFailed}
	b := append(make([]byte, contentHead), "rest"...)
	want.put(b)
	var got content
	if rest, err := got.parse(b); err != nil || got != want || string(rest) != "rest" {
		t.Errorf("%+v, %q, %v", got, rest, err)
	}
	if _, err := got.parse(b[:contentHead-1]); err == nil {
		t.Error("a truncated header is read")
	}
}

func TestWrongFlags(t *testing.T) {
	for _, o := range []options{
		{word: "a b", crawlers: 1, indexers: 1},
		{word: "", crawlers: 1, indexers: 1},
		{word: "a", crawlers: 0, indexers: 1},
		{word: "a", crawlers: 1, indexers: 65},
		{word: "a", crawlers: 1, indexers: 1, kill: true},
		{word: "a", crawlers: 1, indexers: 1, dir: "/nowhere/at/all"},
	} {
		var u *cli.UsageError
		if err := run(t.Context(), o, io.Discard, io.Discard); !errors.As(err, &u) {
			t.Errorf("%+v: %v, want a usage error", o, err)
		}
	}
}

// An empty argument, for example of an unset variable, does not stand for the default.
func TestWrongFolder(t *testing.T) {
	for _, args := range [][]string{{""}, {"a", "b"}} {
		cmd := Commands()[0]
		var u *cli.UsageError
		if err := cmd.Args(cmd, args); !errors.As(err, &u) {
			t.Errorf("%q: %v, want a usage error", args, err)
		}
	}
}
