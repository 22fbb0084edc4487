// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stage is a demonstration in this process. Its indexers run by themselves; its crawlers do what
// the test lets them do.
type stage struct {
	t       *testing.T
	ctx     context.Context
	cluster *rocltest.TestCluster
	said    strings.Builder
	co      *coordinator
	actors  map[rocl.GID]*actor
}

type actor struct {
	c  *rocl.Context
	me *rocl.Resource
}

func newStage(t *testing.T, dir string) *stage {
	s := &stage{t: t, ctx: eventually.Context(t), cluster: rocltest.Cluster(t, 1), actors: map[rocl.GID]*actor{}}
	units, _, bad, err := walk(dir)
	if err != nil || bad != nil {
		t.Fatal(err, bad)
	}
	c := s.cluster.Open(0)
	me, err := c.Register(s.ctx, nil)
	s.check(err)
	s.co = newCoordinator(c, me, "run", &reporter{w: &s.said}, units)
	return s
}

func (s *stage) check(err error) {
	s.t.Helper()
	try.OK(s.t, err)
}

func (s *stage) enter(role string) *actor {
	s.t.Helper()
	c := s.cluster.Open(0)
	me, err := c.Register(s.ctx, rocl.Attrs{attrRun: "run", attrRole: role})
	s.check(err)
	s.check(s.co.enter(s.ctx, me.ID(), role, "1"))
	a := &actor{c, me}
	s.actors[me.ID()] = a
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

// end ends a process, and returns the message of the monitor.
func (s *stage) end(a *actor) *rocl.Message {
	s.t.Helper()
	s.check(a.c.Close())
	return s.next(tagGone)
}

// crawl makes the crawler of a unit send all of it.
func (s *stage) crawl(w *work) (u unit) {
	s.t.Helper()
	a := s.actors[w.crawler]
	m, err := a.me.Recv(s.ctx, rocl.Tag(tagUnit))
	s.check(err)
	defer m.Release()
	u, err = rocl.Value[unit](m)
	s.check(err)
	var done sent
	s.check(crawlUnit(s.ctx, a.c, a.me, m.From(), &u, &done))
	return u
}

// next returns the next message to the coordinator with a tag, before the coordinator has handled
// it.
func (s *stage) next(tag uint64) *rocl.Message {
	s.t.Helper()
	m, err := s.co.me.Recv(s.ctx, rocl.Tag(tag))
	s.check(err)
	return m
}

func (s *stage) assign() {
	s.t.Helper()
	s.check(s.co.assign(s.ctx))
}

func (s *stage) take(m *rocl.Message) {
	s.t.Helper()
	s.check(s.co.message(m))
	m.Release()
}

func tree(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		try.OK(t, os.MkdirAll(filepath.Dir(p), 0o755))
		try.OK(t, os.WriteFile(p, []byte(text), 0o644))
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
			news := s.next(tagIndexed)
			if gone == "gone first" {
				s.take(s.end(dead))
				s.assign()
				if s.actors[w.crawler] == dead {
					t.Fatal("the unit is given to the dead crawler")
				}
				again := s.crawl(w)
				if again.Attempt == first.Attempt || again.Indexer != first.Indexer {
					t.Errorf("first %+v, then %+v", first, again)
				}
				s.take(news) // the report of the attempt that was given up
				try.Equal(t, s.co.left, 1, "the news of an attempt that was given up counts")
				s.take(s.next(tagIndexed))
			} else {
				s.take(news)
				s.take(s.end(dead))
				s.assign()
			}
			if s.co.left != 0 || len(s.co.todo) != 0 {
				t.Errorf("%d units left, %d to do", s.co.left, len(s.co.todo))
			}
			if sum, err := lookUp(s.ctx, s.co.c, s.co.me, "run", "alpha"); err != nil || sum.Matches != 2 || sum.Indexers != 3 || len(sum.Names) != 2 || filepath.Base(string(sum.Names[0])) != "a" || filepath.Base(string(sum.Names[1])) != "b" {
				t.Errorf("looked up: %+v, %v, want 2 matches", sum, err)
			}
			if r := s.co.summary(); r.Killed != 1 || r.Files != 2 || !strings.Contains(s.said.String(), "is gone") {
				t.Errorf("summary %+v, said %q", r, s.said.String())
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
	s.take(s.next(tagIndexed))
	if s.co.left != 0 {
		t.Fatal("the unit is not done")
	}
	dead := s.actors[w.indexer]
	s.take(s.end(dead))
	s.assign()
	if s.co.left != 1 || s.actors[w.indexer] == dead {
		t.Fatalf("%d units left, given to the dead: %v", s.co.left, s.actors[w.indexer] == dead)
	}
	s.crawl(w)
	s.take(s.next(tagIndexed))
	if sum, err := lookUp(s.ctx, s.co.c, s.co.me, "run", "ALPHA"); err != nil || sum.Matches != 1 || sum.Indexers != 1 {
		t.Errorf("looked up: %+v, %v", sum, err)
	}
	if r := s.co.summary(); r.Killed != 1 || r.Redone != 1 || r.Files != 1 {
		t.Errorf("summary %+v", r)
	}
}

// Without crawlers or indexers the run ends with an error instead of waiting.
func TestNobodyLeft(t *testing.T) {
	for _, role := range []string{"crawler", "indexer"} {
		s := newStage(t, tree(t, map[string]string{"a": "alpha"}))
		as := map[string]*actor{"crawler": s.enter("crawler"), "indexer": s.enter("indexer")}
		m := s.end(as[role])
		defer m.Release()
		if err := s.co.message(m); err == nil || !strings.Contains(err.Error(), "no "+role) {
			t.Errorf("the last %s is gone: %v", role, err)
		}
	}
}

func TestWalk(t *testing.T) {
	files := map[string]string{}
	for i := range 2*unitFiles + 1 {
		files[fmt.Sprintf("d%d/f%d", i%3, i)] = "x"
	}
	dir := tree(t, files)
	try.OK(t, os.Symlink(filepath.Join(dir, "d0", "f0"), filepath.Join(dir, "link")))
	link := filepath.Join(t.TempDir(), "to")
	try.OK(t, os.Symlink(dir, link))
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
		try.Equal(t, len(seen), len(files), "different files in the units")
	}
	try.Fails(walk(filepath.Join(dir, "nowhere")))(t, os.ErrNotExist, "walk of nothing")
}

// An empty argument, for example of an unset variable, does not stand for the default.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"--word", "a b"}, {"--word", ""}, {"--crawlers", "0"}, {"--indexers", "65"}, {"--kill-indexer", "--indexers", "1"},
		{"/nowhere/at/all"}, {""}, {"a", "b"},
	} {
		root := cli.Root()
		root.AddCommand(Commands()...)
		root.SetErr(io.Discard)
		try.Equal(t, cli.Run(t.Context(), root, append([]string{"demo"}, args...)), 64, "%q: exit code", args)
	}
}
