// SPDX-License-Identifier: Apache-2.0

// Command serving answers HTTP requests with texts of models, which come and go meanwhile:
//
//	serving model NAME FILE   writes texts in the manner of the one in FILE
//	serving gateway ADDRESS   serves HTTP, for example at localhost:8080
//
// Start any number of each, on any node. Models of one name have the same file.
//
//	curl localhost:8080/complete -d '{"model": "NAME", "prompt": "the next", "max_tokens": 50}'
//
// With "stream": true the tokens come as events, with a "seed" the text is the same each time. No
// request fails as long as a model of its name lives: the gateway repeats it at another one, and
// continues a stream there. A model that gets a SIGTERM ends what it has begun.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/live"
	"github.com/rocl-go/rocl/rpc"
)

// A request asks for tokens. All models of a name give the same tokens for the same seed.
type request struct {
	Model, Prompt string
	Seed          uint64
	Stream        bool
	MaxTokens     int `json:"max_tokens"`
	Skip          int // so many tokens are left out: the client has them
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	switch n := len(os.Args); {
	case n == 4 && os.Args[1] == "model":
		err = serveModel(ctx, c, os.Args[2], os.Args[3])
	case n == 3 && os.Args[1] == "gateway":
		err = serveHTTP(ctx, c, os.Args[2])
	default:
		err = errors.New("usage: serving model NAME FILE | serving gateway ADDRESS")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// A model is a Markov chain: it continues two words as its text does in some place.
type model struct {
	words []string
	next  map[[2]string][]string // the words that follow each two words
}

const pace = time.Millisecond // for one token, as of a larger model

// serveModel answers calls until ctx ends, and then ends those that have begun.
func serveModel(ctx context.Context, c *rocl.Context, name, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	m := &model{strings.Fields(string(text)), map[[2]string][]string{}}
	if len(m.words) < 3 {
		return fmt.Errorf("%s has fewer than 3 words", file)
	}
	for i, w := range m.words[2:] {
		two := [2]string(m.words[i : i+2])
		m.next[two] = append(m.next[two], w)
	}
	return rpc.Serve(ctx, c, rocl.Attrs{"type": "model", "model": name},
		rpc.WithCall("complete", m.complete),
		rpc.WithCalls(func(s *rpc.Server) error { return rpc.RegisterStream(s, "tokens", m.tokens) }),
		rpc.PublishLoad("load"), rpc.DrainWithin(time.Minute))
}

func (m *model) complete(ctx context.Context, r request) (text string, _ error) {
	for token, err := range m.tokens(ctx, r) {
		if err != nil {
			return "", err
		}
		text += token
	}
	return text, nil
}

func (m *model) tokens(ctx context.Context, r request) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		random := rand.New(rand.NewPCG(r.Seed, 0))
		tail := append([]string{"", ""}, strings.Fields(r.Prompt)...)
		two := [2]string(tail[len(tail)-2:])
		for i := range r.MaxTokens {
			next := m.next[two]
			if len(next) == 0 { // the text never goes on like this
				next = m.words
			}
			two = [2]string{two[1], next[random.IntN(len(next))]}
			if i < r.Skip {
				continue
			}
			time.Sleep(pace)
			if err := context.Cause(ctx); !yield(two[1]+" ", err) || err != nil {
				return
			}
		}
	}
}

// A gateway passes requests on to models.
type gateway struct {
	c      *rocl.Context
	client *rpc.Client
	mu     sync.Mutex
	sets   map[string]*live.Set // of the models of each name
}

// repeat asks another model too: at once if the first ends, and also if it takes long.
var repeat = rpc.WithPolicy(rpc.Policy{Timeout: time.Minute, Attempts: 10, Idempotent: true, Hedge: 5 * time.Second})

// serveHTTP answers requests until ctx ends, and then ends those that have begun.
func serveHTTP(ctx context.Context, c *rocl.Context, address string) error {
	client, err := rpc.NewClient(ctx, c)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("serves at", l.Addr())
	g := &gateway{c: c, client: client, sets: map[string]*live.Set{}}
	http.HandleFunc("POST /complete", g.complete)
	var s http.Server
	go s.Serve(l)
	<-ctx.Done()
	return s.Shutdown(context.Background())
}

// models returns the set of the models of a name.
func (g *gateway) models(name string) (*live.Set, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.sets[name]; s != nil {
		return s, nil
	}
	pattern := rocl.Match{"type": "model", "model": name, "rpc": "1"} // without those that drain
	s, err := live.Follow(context.Background(), g.c, pattern)
	if err == nil && s.Len() > 0 {
		g.sets[name] = s
	} else if err == nil {
		err = errors.Join(fmt.Errorf("model %q: %w", name, rocl.ErrNotFound), s.Close())
	}
	return s, err
}

// complete answers with a text, or with events of tokens.
func (g *gateway) complete(w http.ResponseWriter, r *http.Request) {
	in := request{MaxTokens: 16, Seed: rand.Uint64()}
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	in.MaxTokens = min(in.MaxTokens, 10_000)
	set, err := g.models(in.Model)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	if in.Stream {
		w.Header().Set("Content-Type", "text/event-stream")
		g.stream(r.Context(), set, in, w)
		return
	}
	a, err := rpc.CallAny[request, string](r.Context(), g.client, nil, "complete", in, repeat, rpc.Among(set.Picker(live.Least("load"))))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, a.Value)
}

// stream writes tokens as events. If a model ends, or drains, another one continues.
func (g *gateway) stream(ctx context.Context, set *live.Set, in request, w http.ResponseWriter) {
	for drained := []rocl.GID(nil); ; {
		m, err := set.Await(ctx, live.Least("load"), drained...)
		if err != nil {
			return // the client has gone
		}
		for token, e := range rpc.Stream[request, string](ctx, g.client, m.ID, "tokens", in) {
			if err = e; err != nil {
				break
			}
			fmt.Fprintf(w, "data: %s\n\n", token)
			http.NewResponseController(w).Flush()
			in.Skip++
		}
		if m.Done(err); err == nil {
			fmt.Fprint(w, "data: [DONE]\n\n")
			return
		}
		if !rocl.IsEnd(err) { // a model that has ended is not in the set any more
			drained = append(drained, m.ID)
		}
	}
}
