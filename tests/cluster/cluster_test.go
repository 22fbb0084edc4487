// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
)

// populate starts an agent on each node, with a resource of its own and one that all have.
func (l *lab) populate() (as []*agent, own, same []rocl.GID) {
	l.t.Helper()
	for i, n := range l.nodes {
		a := n.agent()
		as = append(as, a)
		same = append(same, a.register(rocl.Attrs{"type": "same"}))
		own = append(own, a.register(rocl.Attrs{"type": "own", "at": fmt.Sprint(i)}))
	}
	slices.SortFunc(same, rocl.GID.Compare)
	return as, own, same
}

func at(i int) rocl.Match { return rocl.Match{"type": "own", "at": fmt.Sprint(i)} }

// complete checks that each agent finds the resources of every other agent, by attributes, by
// identifier and among several, each once. It also checks that a missing resource is denied for
// certain. On a busy machine a living daemon may be taken for dead: then complete looks again when
// all see each other.
func complete(as []*agent, own, same []rocl.GID) {
	t := as[0].node.lab.t
	t.Helper()
	var nodes []*node
	for _, a := range as {
		nodes = append(nodes, a.node)
	}
	for attempt := 1; ; attempt++ {
		l := as[0].node.lab
		before := l.deaths()
		wrong := lacking(as, own, same)
		if len(wrong) == 0 {
			return
		}
		if attempt == 4 || l.deaths() == before && l.whole(nodes...) {
			t.Errorf("%s", strings.Join(wrong, "\n"))
			return
		}
		eventually.Within(20*time.Second, func() bool { return l.whole(nodes...) })
	}
}

// lacking returns the differences that complete finds.
func lacking(as []*agent, own, same []rocl.GID) (wrong []string) {
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for i, a := range as {
		for j := range as {
			if got := a.find(at(as[j].node.i)); got.How != "" || got.IDs[0] != own[j] {
				add("node %d does not find what node %d has: %+v", a.node.i, as[j].node.i, got)
			}
			if got := a.lookup(own[j]); got.How != "" || got.IDs[0] != own[j] {
				add("node %d does not look up what node %d has: %+v", a.node.i, as[j].node.i, got)
			}
		}
		if got := a.all(rocl.Match{"type": "same"}); got.How != "" || !slices.Equal(got.IDs, same) {
			add("all that node %d finds: %+v, want %v", i, got, same)
		}
		if got := a.find(rocl.Match{"type": "none"}); got.How != definite {
			add("node %d finds a resource that no node has: %+v", a.node.i, got)
		}
	}
	return wrong
}

// Nodes that join one after another, or all at once, soon have one view, and every agent finds the
// resources of all.
//
// Promise (Clusters): Members that join lists connect become one cluster, in whatever order they
// start, and whatever names and addresses changed. See also TestJoinListsConnect.
func TestJoin(t *testing.T) {
	for _, c := range []struct {
		nodes       int
		atOnce, six bool
	}{{3, false, false}, {8, true, false}, {3, false, true}} {
		t.Run(fmt.Sprintf("%d nodes, at once %v, IPv6 %v", c.nodes, c.atOnce, c.six), func(t *testing.T) {
			if c.six && !hasSix() {
				t.Skip("this machine has no IPv6")
			}
			l := newLab(t, c.nodes)
			l.six = c.six
			began := time.Now()
			done := make(chan struct{})
			for i, n := range l.nodes {
				switch {
				case c.atOnce:
					go func() { n.serve(l.nodes[(i+1)%c.nodes]); done <- struct{}{} }()
				case i == 0:
					n.serve()
				default:
					n.serve(l.nodes[i-1])
				}
			}
			if c.atOnce {
				for range l.nodes {
					<-done
				}
			}
			l.together(l.nodes...)
			t.Logf("one view %v after the first daemon was started", time.Since(began).Round(time.Millisecond))
			as, own, same := l.populate()
			complete(as, own, same)
			as[0].say(as[1], own[1], "hello")
			as[c.nodes-1].say(as[0], own[0], "hello")
		})
	}
}
