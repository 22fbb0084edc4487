// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// An example is a program of the folder examples, built once.
type example string

// path returns the path of the program's executable.
func (e example) path(t *testing.T) string {
	t.Helper()
	exe := filepath.Join(filepath.Dir(dirserver), string(e))
	out, err := exec.Command("go", "build", "-o", exe, "../../examples/"+string(e)).CombinedOutput()
	try.OK(t, err, "build: %s", out)
	return exe
}

// run starts a command of the node. It ends with the test, if not before.
func (n *node) run(cmd *exec.Cmd) *subprocess.Process {
	n.lab.t.Helper()
	cmd.Env = append(os.Environ(), "ROCL_SOCKET="+n.socket())
	p := try.Get(in(n.ns, cmd))(n.lab.t)
	n.lab.t.Cleanup(p.Kill)
	return p
}

// fault makes one node fail, by a loss of power or a cut, and returns the function that heals it.
var fault = map[string]func(l *lab, n *node, others []*node) (heal func()){
	"killed": func(_ *lab, n *node, _ []*node) func() { n.killAll(); return func() {} },
	"cut":    func(l *lab, n *node, others []*node) func() { l.cut([]*node{n}, others); return l.heal },
}

// The roles of examples/search are on three nodes, and its site on a fourth machine. The node of
// the frontier is killed, or that of a crawler is cut off. The answer on the others is whole again,
// and so it is on all nodes when the cut has healed.
//
// Promise (Clusters): `examples/search` and `examples/serving` work with their roles on three
// nodes, also when one node is killed or cut off. See also TestServingOnThreeNodes.
func TestSearchOnThreeNodes(t *testing.T) {
	parallel(t)
	need(t)
	exe := example("search").path(t)
	for how, fail := range fault {
		t.Run(how, func(t *testing.T) {
			parallel(t)
			l := newLab(t, 4)
			nodes, web := l.nodes[:3], l.nodes[3]
			for i, n := range nodes {
				n.serve(nodes[:i]...)
			}
			l.together(nodes...)
			const pages = 400
			var served atomic.Int64
			ln := try.Get(inside(web, func() (net.Listener, error) { return net.Listen("tcp", web.host+":80") }))(t)
			go http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				served.Add(1)
				i, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
				fmt.Fprintf(w, "<html> page of%d <a href=%d> <a href=%d>", i%5, (2*i+1)%pages, (2*i+2)%pages)
			}))
			t.Cleanup(func() { ln.Close() })
			url := "http://" + web.host + "/0"
			for i, roles := range [][]string{{"frontier " + url, "shard"}, {"shard", "crawler", "frontier " + url}, {"crawler", "shard"}} {
				for _, role := range roles {
					nodes[i].run(nodes[i].command(exe, strings.Fields(role)...))
				}
			}
			eventually.True(t, "pages are visited", func() bool { return served.Load() > pages/4 })
			i := map[string]int{"killed": 0, "cut": 2}[how]
			others := slices.Concat(nodes[:i], nodes[i+1:])
			heal := fail(l, nodes[i], others)
			whole := func(n *node) {
				eventually.True(t, "the answer is whole", func() bool {
					cmd := n.command(exe, "find", "page", "of3")
					cmd.Stderr = io.Discard // why it is not whole yet
					p, found := n.run(cmd), 0
					for range p.Lines {
						found++
					}
					if p.Wait() != nil {
						return false
					}
					try.Equal(t, found, pages/5)
					return true
				})
			}
			for _, n := range others {
				whole(n)
			}
			if heal(); how == "cut" {
				l.together(nodes...)
				whole(nodes[i])
				whole(others[0])
			}
		})
	}
}

// A gateway on one node gets texts of models on two others, one of which is killed, or cut off. No
// request fails.
func TestServingOnThreeNodes(t *testing.T) {
	parallel(t)
	need(t)
	exe := example("serving").path(t)
	text := try.Get(filepath.Abs("../../docs/RPC.md"))(t)
	for how, fail := range fault {
		t.Run(how, func(t *testing.T) {
			parallel(t)
			l := newLab(t, 3)
			for i, n := range l.nodes {
				n.serve(l.nodes[:i]...)
			}
			l.together(l.nodes...)
			gateway := l.nodes[0].run(l.nodes[0].command(exe, "gateway", "127.0.0.1:8080"))
			try.OK(t, gateway.Expect(t.Context(), "serves at 127.0.0.1:8080"))
			for _, n := range l.nodes[1:] {
				n.run(n.command(exe, "model", "docs", text))
			}
			client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return inside(l.nodes[0], func() (net.Conn, error) { return new(net.Dialer).DialContext(ctx, network, address) })
			}}}
			defer client.CloseIdleConnections()
			post := func(body string) (answer []byte, err error) {
				r, err := client.Post("http://127.0.0.1:8080/complete", "application/json", strings.NewReader(body))
				if err != nil {
					return nil, err
				}
				defer r.Body.Close()
				if answer, err = io.ReadAll(r.Body); r.StatusCode != http.StatusOK {
					err = fmt.Errorf("%s: %s", r.Status, answer)
				}
				return answer, err
			}
			eventually.True(t, "the gateway knows a model", func() bool { _, err := post(`{"model": "docs"}`); return err == nil })
			var answered atomic.Int64
			stop := make(chan struct{})
			var clients sync.WaitGroup
			for i := range 4 {
				clients.Go(func() {
					body := fmt.Sprintf(`{"model": "docs", "max_tokens": 200, "seed": %d, "stream": %v}`, i+1, i%2 > 0)
					want := try.Get(post(body))(t)
					for {
						select {
						case <-stop:
							return
						default:
						}
						if got, err := post(body); err != nil || !bytes.Equal(got, want) {
							t.Errorf("%s: %q, %v", body, got, err)
						}
						answered.Add(1)
					}
				})
			}
			more := func() {
				until := answered.Load() + 12
				eventually.True(t, "requests are answered", func() bool { return answered.Load() >= until })
			}
			more()
			heal := fail(l, l.nodes[1], []*node{l.nodes[0], l.nodes[2]})
			more()
			heal()
			more()
			close(stop)
			clients.Wait()
		})
	}
}
