// SPDX-License-Identifier: Apache-2.0

// Command search crawls a site, indexes its pages, and finds those that have all of some words: the
// example of the RoCL paper. Start its roles in any number of shells, on any node:
//
//	search shard                  keeps a part of the index in memory
//	search crawler                fetches pages
//	search frontier URL           leads the crawl of the site that begins at URL, or stands by
//	search find WORD...           prints the pages, and fails if some may be lacking
//	search all DIR|URL [WORD...]  keeps processes of all roles running; a folder is served by HTTP
//
// Roles find each other by their attributes. Each may come, and may be killed, at any time: others
// of its role do its work again. The site is taken not to change meanwhile.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/election"
	"github.com/rocl-go/rocl/live"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/work"
)

var (
	shards    = rocl.Match{"search": "shard", "rpc": "1"} // a shard that drains has another value of rpc
	crawlers  = rocl.Match{"search": "crawler"}
	frontiers = rocl.Match{"search": "frontier"}

	brief = rpc.WithPolicy(rpc.Policy{Attempt: 2 * time.Second}) // gives up shards that stand still
	until = rpc.WithPolicy(rpc.Policy{Attempt: 5 * time.Second, Attempts: 20, Idempotent: true})

	web  = http.Client{Timeout: 10 * time.Second}
	href = regexp.MustCompile(`(?i)\shref\s*=\s*["']?([^"'\s>]+)`)
	word = regexp.MustCompile(`[0-9A-Za-z_]+`) // as of grep -w
)

func main() {
	args := os.Args[1:]
	log.SetPrefix(fmt.Sprintf("%s, process %d: ", strings.Join(args, " "), os.Getpid()))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	client, err := rpc.NewClient(ctx, c)
	if err != nil {
		log.Fatal(err)
	}
	switch n := len(args); {
	case n == 1 && args[0] == "shard":
		err = serveShard(ctx, c)
	case n == 1 && args[0] == "crawler":
		err = serveCrawler(ctx, c, client)
	case n == 2 && args[0] == "frontier":
		err = serveFrontier(ctx, c, client, args[1])
	case n > 1 && args[0] == "find":
		var urls []string
		urls, err = find(ctx, c, client, args[1:])
		fmt.Print(strings.Join(append(urls, ""), "\n"))
	case n > 1 && args[0] == "all":
		err = all(ctx, c, client, args[1], args[2:])
	default:
		err = errors.New("usage: search shard | crawler | frontier URL | find WORD... | all DIR|URL [WORD...]")
	}
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// all keeps processes of all roles running until the words are found, or until ctx ends.
func all(ctx context.Context, c *rocl.Context, client *rpc.Client, site string, words []string) error {
	var roles sync.WaitGroup
	defer roles.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if !strings.Contains(site, "://") {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		files := http.FileServer(http.Dir(site))
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/") { // a list of files
				w.Header().Set("X-Robots-Tag", "noindex")
			}
			files.ServeHTTP(w, r)
		}))
		site = "http://" + l.Addr().String() + "/"
	}
	for range 3 {
		for _, role := range [][]string{{"shard"}, {"crawler"}, {"frontier", site}} {
			roles.Go(func() {
				for ctx.Err() == nil {
					cmd := exec.CommandContext(ctx, os.Args[0], role...)
					cmd.Stderr = os.Stderr
					if err := cmd.Run(); ctx.Err() == nil {
						log.Printf("a %s has ended: %v", role[0], err)
					}
				}
			})
		}
	}
	for len(words) > 0 && ctx.Err() == nil {
		if urls, err := find(ctx, c, client, words); err == nil {
			fmt.Print(strings.Join(append(urls, ""), "\n"))
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// A shard has some of the pages.
type shard struct {
	mu    sync.RWMutex
	index map[string]map[string]bool // the URLs of the pages that have a word
	links map[string][]string        // of each page
}

// A page is what a crawler sends to a shard.
type page struct {
	URL          string
	Words, Links []string // each once
}

func serveShard(ctx context.Context, c *rocl.Context) error {
	s := &shard{index: map[string]map[string]bool{}, links: map[string][]string{}}
	return rpc.Serve(ctx, c, rocl.Attrs{"search": "shard"},
		rpc.WithCall("add", s.add), rpc.WithCall("find", s.find), rpc.WithCall("urls", s.urls))
}

func (s *shard) add(_ context.Context, p page) (struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links[p.URL] = p.Links
	for _, w := range p.Words {
		if s.index[w] == nil {
			s.index[w] = map[string]bool{}
		}
		s.index[w][p.URL] = true
	}
	return struct{}{}, nil
}

// find returns the pages that have all of the words.
func (s *shard) find(_ context.Context, words []string) (urls []string, _ error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(words) == 0 {
		return nil, errors.New("no words")
	}
	for url := range s.index[words[0]] {
		if !slices.ContainsFunc(words, func(w string) bool { return !s.index[w][url] }) {
			urls = append(urls, url)
		}
	}
	return urls, nil
}

// urls returns all pages of the shard with their links.
func (s *shard) urls(context.Context, struct{}) (map[string][]string, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.links), nil
}

// find returns the pages that have all of the words, and, as an error, why some may be lacking.
func find(ctx context.Context, c *rocl.Context, client *rpc.Client, words []string) ([]string, error) {
	for i, w := range words {
		if words[i] = strings.ToLower(w); word.FindString(w) != w {
			return nil, fmt.Errorf("%q is no word", w)
		}
	}
	f, lacking := c.Find(ctx, frontiers)
	whole := strings.Fields(f.Attrs.GetString("shards"))
	if lacking == nil && len(whole) == 0 {
		lacking = errors.New("the crawl goes on")
	}
	urls, answered := map[string]bool{}, map[string]bool{}
	for a, err := range rpc.CallAll[[]string, []string](ctx, client, shards, "find", words, brief) {
		answered[a.Provider.String()] = err == nil
		for _, url := range a.Value {
			urls[url] = true
		}
	}
	if i := slices.IndexFunc(whole, func(id string) bool { return !answered[id] }); i >= 0 {
		lacking = fmt.Errorf("shard %s has not answered", whole[i])
	}
	return slices.Sorted(maps.Keys(urls)), lacking
}

// A visit is the result of a task of a crawler. The task is a URL.
type visit struct {
	Shard rocl.GID // that has the page now
	Links []string
}

func serveCrawler(ctx context.Context, c *rocl.Context, client *rpc.Client) error {
	set, err := live.Follow(context.WithoutCancel(ctx), c, shards) // the last visits end after ctx
	if err != nil {
		return err
	}
	defer set.Close()
	return work.Serve(ctx, c, rocl.Attrs(crawlers), func(ctx context.Context, url string) (visit, error) {
		p, err := fetch(url)
		if err != nil {
			return visit{}, err
		}
		among := rpc.Among(set.Picker(live.Hash(url)))
		a, err := rpc.CallAny[page, struct{}](ctx, client, nil, "add", p, among, until) // twice does no harm
		if err != nil {
			return visit{}, fmt.Errorf("%w: %w", work.Again, err)
		}
		return visit{a.Provider, p.Links}, nil
	}, work.Handlers(8))
}

// fetch gets a page. Its error wraps work.Again if another attempt may succeed.
func fetch(url string) (page, error) {
	r, err := web.Get(url)
	if err != nil {
		return page{}, fmt.Errorf("%w: %w", work.Again, err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	switch {
	case err != nil || r.StatusCode >= 500:
		return page{}, fmt.Errorf("%w: %s, %v", work.Again, r.Status, err)
	case r.StatusCode != 200 || len(text) == 16<<20:
		return page{}, fmt.Errorf("%s, %d bytes", r.Status, len(text))
	}
	words, links := map[string]bool{}, map[string]bool{}
	if r.Header.Get("X-Robots-Tag") != "noindex" && !bytes.Contains(text, []byte{0}) { // it is no binary file
		for _, w := range word.FindAll(text, -1) {
			words[strings.ToLower(string(w))] = true
		}
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "text/html") {
		for _, ref := range href.FindAllSubmatch(text, -1) {
			if u, err := r.Request.URL.Parse(html.UnescapeString(string(ref[1]))); err == nil {
				u.Fragment = ""
				links[u.String()] = true
			}
		}
	}
	return page{url, slices.Collect(maps.Keys(words)), slices.Collect(maps.Keys(links))}, nil
}

// A frontier knows the pages of a site.
type frontier struct {
	*election.Term
	site  string // what the URLs of all its pages begin with
	queue *work.Queue[string, visit]

	mu     sync.Mutex
	places map[string]rocl.GID // the shard of each page; zero: none has it, or not yet
	visits int                 // under way
	whole  string              // the attribute "shards"
}

// serveFrontier leads the crawl while this process holds the name of the frontier, and stands by
// otherwise. After a cut, two may lead for a while, which does no harm.
func serveFrontier(ctx context.Context, c *rocl.Context, client *rpc.Client, site string) error {
	for {
		term, err := election.Hold(ctx, c, frontiers)
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { term.Close() })
		err = lead(term, c, client, site)
		term.Close()
		if !errors.Is(err, election.ErrLost) {
			return err
		}
		log.Print(err)
	}
}

// lead crawls until the term ends.
func lead(term *election.Term, c *rocl.Context, client *rpc.Client, first string) error {
	if strings.Count(first, "/") < 3 {
		first += "/" // only a host is named
	}
	ctx := term.Context()
	set, err := live.Follow(ctx, c, shards)
	if err != nil {
		return err
	}
	defer set.Close()
	// All URLs are in memory anyway, so the queue has no limit.
	queue, err := work.Open[string, visit](ctx, c, crawlers, work.Backlog(math.MaxInt))
	if err != nil {
		return err
	}
	defer queue.Close()
	f := &frontier{Term: term, site: first[:strings.LastIndexByte(first, '/')+1], queue: queue, places: map[string]rocl.GID{}}
	seen := []string{first} // and the links of all pages that shards have
	for a, err := range rpc.CallAll[struct{}, map[string][]string](ctx, client, shards, "urls", struct{}{}, brief) {
		if err != nil {
			log.Print("a shard's pages are visited again: ", err)
		}
		for url, links := range a.Value {
			f.places[url] = a.Provider
			seen = append(seen, links...)
		}
	}
	f.see(seen...)
	go f.follow(set)
	for r, err := range queue.Results(ctx) {
		if err != nil {
			return err
		}
		if lost := (*work.DeadLetter)(nil); errors.As(r.Err, &lost) { // its server fails, or its crawlers
			time.AfterFunc(time.Second, func() { _ = queue.Put(ctx, r.Task) })
			continue
		} else if r.Err != nil {
			log.Printf("%s is left out: %v", r.Task, r.Err)
		}
		f.mu.Lock()
		f.visits--
		f.places[r.Task] = r.Out.Shard
		f.see(r.Out.Links...)
		f.publish()
		f.mu.Unlock()
	}
	return nil
}

// see has pages of the site visited, unless they were seen before. mu must be held.
func (f *frontier) see(urls ...string) {
	for _, url := range urls {
		if _, isSeen := f.places[url]; !isSeen && strings.HasPrefix(url, f.site) {
			f.visits++
			f.places[url] = rocl.GID{}
			_ = f.queue.Put(f.Context(), url) // fails only at the end of the term
		}
	}
}

// follow has the pages of shards that have ended visited again, until the term ends. Each second it
// looks whether a crawler has used a shard whose end the frontier knew.
func (f *frontier) follow(set *live.Set) {
	for f.Err() == nil {
		changed := set.Changed()
		living := map[rocl.GID]bool{{}: true}
		for s := range set.All() {
			living[s.ID] = true
		}
		f.mu.Lock()
		for url, shard := range f.places {
			if !living[shard] {
				delete(f.places, url)
				f.see(url)
			}
		}
		f.publish()
		f.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(time.Second):
		case <-f.Done():
		}
	}
}

// publish says by an attribute which shards together have all pages, if no visit is under way. If
// they all answer a query, its answer is whole: a shard has its pages as long as it lives. mu must
// be held.
func (f *frontier) publish() {
	ids := map[string]bool{}
	if f.visits == 0 {
		for _, shard := range f.places {
			ids[shard.String()] = true
		}
		delete(ids, rocl.GID{}.String())
	}
	whole := strings.Join(slices.Sorted(maps.Keys(ids)), " ")
	if whole != f.whole && f.Resource().Set(f.Context(), "shards", whole) == nil {
		f.whole = whole
	}
}
