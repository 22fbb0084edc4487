// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

var exampleKills = flag.Int("example.kills", 6, "times that the tests of search and of serving kill processes")

// A site is a folder of pages with links between them.
type site struct {
	dir    string
	url    string // of its first page
	served atomic.Int64
}

// words are what pages consist of.
var words = strings.Fields("alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu")

// newSite writes pages of some random words and links, and serves them.
func newSite(t *testing.T, random *rand.Rand, pages int) *site {
	s := &site{dir: t.TempDir()}
	for i := range pages {
		var text strings.Builder
		for _, to := range []int{2*i + 1, 2*i + 2, random.IntN(pages)} { // a tree, and others
			fmt.Fprintf(&text, "<a href=\"p%d.html#top\">", to%pages)
		}
		for range 1 + random.IntN(8) {
			text.WriteString(words[random.IntN(len(words))] + ", ")
		}
		try.OK(t, os.WriteFile(filepath.Join(s.dir, fmt.Sprintf("p%d.html", i)), []byte(text.String()), 0o600))
	}
	files := http.FileServer(http.Dir(s.dir))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.served.Add(1)
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL + "/p0.html"
	return s
}

// grep returns the URLs of the pages with all of the words, in order.
func (s *site) grep(t *testing.T, words []string) (urls []string) {
	for i, w := range words {
		args := []string{"-rlwi", w, s.dir}
		if i > 0 {
			args = append([]string{"-lwi", w}, urls...)
		}
		out, err := exec.CommandContext(t.Context(), "grep", args...).Output()
		if urls = strings.Fields(string(out)); err != nil && len(urls) > 0 {
			t.Fatalf("grep: %v", err)
		}
		if len(urls) == 0 {
			return nil
		}
	}
	for i, f := range urls {
		urls[i] = strings.TrimSuffix(s.url, "p0.html") + filepath.Base(f)
	}
	slices.Sort(urls)
	return urls
}

// asks runs a query, and reports whether its answer is said to be whole. Then it must be that of
// grep, and otherwise a part of it.
func (s *site) asks(n node, words ...string) (whole bool) {
	n.t.Helper()
	c := n.command(append([]string{"find"}, words...)...)
	c.Stderr = nil
	out, err := c.Output()
	got, want := strings.Fields(string(out)), s.grep(n.t.(*testing.T), words)
	if err == nil && !slices.Equal(got, want) {
		n.t.Errorf("%q: %d pages, %d wanted: %q, %q", words, len(got), len(want), got, want)
	}
	for _, url := range got {
		if _, is := slices.BinarySearch(want, url); !is {
			n.t.Errorf("%q: %s is wrong", words, url)
		}
	}
	return err == nil
}

// A folder is searched by one command, as grep does.
func searchFolder(t *testing.T, n node) {
	var want strings.Builder
	for _, file := range strings.Fields(string(try.Get(exec.CommandContext(t.Context(), "grep", "-rlwi", "takeover", "../docs").Output())(t))) {
		want.WriteString(file + "\n")
	}
	got := ""
	for line := range strings.Lines(n.must("all", "../docs", "Takeover")) {
		_, path, _ := strings.Cut(strings.TrimPrefix(line, "http://"), "/")
		got += "../docs/" + path
	}
	try.Equal(t, strings.Join(slices.Sorted(strings.Lines(got)), ""), strings.Join(slices.Sorted(strings.Lines(want.String())), ""))
}

// Shards, crawlers and frontiers are killed at random, and others are started. An answer that is
// said to be whole is always that of grep, and in the end there is one.
func searchAndKill(t *testing.T, n node) {
	n.open() // serves the directory
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := newSite(t, random, 500)
	roles := [][]string{{"shard"}, {"crawler"}, {"frontier", s.url}, {"shard"}, {"crawler"}, {"frontier", s.url}, {"shard"}}
	running := make([]*subprocess.Process, len(roles))
	for i, role := range roles {
		running[i] = n.launch(n.command(role...))
	}
	for range *exampleKills {
		// The crawl goes on for a while, or has ended.
		until := s.served.Load() + random.Int64N(300)
		eventually.Within(200*time.Millisecond, func() bool { return s.served.Load() >= until })
		killed := random.Perm(len(roles))[:1+random.IntN(3)]
		for _, i := range killed {
			n.kill(running[i])
		}
		s.asks(n, words[random.IntN(len(words))])
		for _, i := range killed {
			running[i] = n.launch(n.command(roles[i]...))
		}
	}
	becomesWhole := func(query ...string) {
		t.Helper()
		eventually.True(t, "the answer is whole", func() bool { return s.asks(n, query...) })
	}
	becomesWhole("alpha")
	of := func(kind string, do func(i int)) {
		for i, role := range roles {
			if role[0] == kind {
				do(i)
			}
		}
	}
	of("frontier", func(i int) { running[i].Signal(posix.SIGSTOP) }) // they do not learn that shards end
	of("shard", func(i int) { n.kill(running[i]) })
	if s.asks(n, "alpha") {
		t.Error("an answer without a shard is said to be whole")
	}
	of("frontier", func(i int) { running[i].Signal(posix.SIGCONT) })
	of("shard", func(i int) { running[i] = n.launch(n.command("shard")) })
	for _, query := range [][]string{{"alpha"}, {"Beta", "gamma"}, {"mu", "zeta", "eta"}, {"nowhere"}} {
		becomesWhole(query...)
	}
	n.interrupt(running...)
}
