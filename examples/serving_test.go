// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A completion is what a test asks of a gateway.
type completion struct {
	Model  string `json:"model"`
	Tokens int    `json:"max_tokens"`
	Seed   uint64 `json:"seed"`
	Stream bool   `json:"stream"`
}

// post asks a gateway, and returns the text.
func (c completion) post(gateway string) (text string, err error) {
	in, _ := json.Marshal(c)
	r, err := http.Post("http://"+gateway+"/complete", "application/json", strings.NewReader(string(in)))
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s, %w", r.Status, body, err)
	}
	events, whole := strings.CutSuffix(string(body), "data: [DONE]\n\n")
	if whole != c.Stream {
		return "", fmt.Errorf("a stream: %v, and whole: %v", c.Stream, whole)
	}
	for part := range strings.SplitSeq(strings.TrimSpace(events), "\n\n") {
		text += strings.TrimPrefix(part, "data: ")
	}
	return strings.TrimSpace(text), nil
}

// startGateway starts a gateway and returns its address.
func startGateway(n node) (*subprocess.Process, string) {
	p := n.launch(n.command("gateway", "127.0.0.1:0"))
	line := try.Get(p.Line(n.t.Context()))(n.t)
	return p, strings.TrimPrefix(line, "serves at ")
}

// Models are killed, or stopped by SIGTERM, while requests are under way, and others are started
// before. No request fails: each gets the text of its seed. A gateway that is killed has no effect
// on the requests at another one.
func serveAndKill(t *testing.T, n node) {
	home := n.open() // serves the directory
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pattern := rocl.Match{"type": "model", "rpc": "1"}
	text := try.Get(filepath.Abs("../docs/RPC.md"))(t)
	model := func() *subprocess.Process { return n.launch(n.command("model", "docs", text)) }
	models := []*subprocess.Process{model(), model()}
	try.Get(home.Await(t.Context(), pattern, 2))(t)
	doomed, other := startGateway(n)
	stays, gateway := startGateway(n)
	_, err := completion{Model: "nothing"}.post(gateway)
	try.Rejects(err)(t, "no such model")

	texts := map[uint64]string{}
	for s := range uint64(4) {
		texts[s] = try.Get(completion{"docs", 300, s + 1, false}.post(gateway))(t)
		if n := len(strings.Fields(texts[s])); n != 300 || s > 0 && texts[s] == texts[0] {
			t.Fatalf("%d tokens: %q", n, texts[s])
		}
	}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for s, want := range texts {
		clients.Go(func() {
			for isStream := false; ; isStream = !isStream {
				select {
				case <-stop:
					return
				default:
				}
				if got, err := (completion{"docs", 300, s + 1, isStream}).post(gateway); err != nil || got != want {
					t.Errorf("seed %d: %q instead of %q, %v", s, got, want, err)
				}
			}
		})
	}
	for range *exampleKills {
		_, err := completion{"docs", random.IntN(300), 0, true}.post(other) // for a while
		if try.Check(t, err); doomed != nil && random.IntN(2) == 0 {
			n.kill(doomed)
			doomed, other = nil, gateway
		}
		models = append(models, model())
		try.Get(home.Await(t.Context(), pattern, 3))(t)
		i := random.IntN(2)
		if random.IntN(2) == 0 {
			n.kill(models[i])
		} else {
			n.terminate(models[i])
		}
		models = append(models[:i], models[i+1:]...)
		n.remain(home, pattern, 2)
	}
	close(stop)
	clients.Wait()
	if doomed != nil {
		n.interrupt(doomed)
	}
	n.interrupt(append(models, stays)...)
}
