// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// says returns how many of the latest lines of the node's log have all of the words.
func (n *node) says(words ...string) (lines int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.tail {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(l, w) }) {
			lines++
		}
	}
	return lines
}

// A node is cut off while the key of the cluster is changed. When the cut is over, the members
// refuse each other. No member denies what the other ones have. That is logged once. When the node
// has the new key, all are one cluster.
func TestKeyChangedWhileAway(t *testing.T) {
	l := newLab(t, 3)
	key := func(name, content string) string {
		file := filepath.Join(l.dir, name)
		try.OK(t, os.WriteFile(file, []byte(content), 0o600))
		return file
	}
	const before, after = "0123456789abcdef0123456789abcdef\n", "fedcba9876543210fedcba9876543210\n"
	away := l.nodes[2]
	common := l.key
	for _, n := range l.nodes {
		if l.key = common; n == away {
			l.key = key("away", before)
		}
		n.serve(l.nodes[0])
	}
	l.together(l.nodes...)
	as, own, same := l.populate()
	complete(as, own, same)
	l.cut(l.nodes[2:], l.nodes[:2])
	l.together(l.nodes[:2]...)
	l.together(away)
	key(filepath.Base(common), after)
	for _, n := range l.nodes[:2] {
		eventually.True(t, "the key is changed", func() bool { return n.says("the keys have changed") > 0 })
	}
	l.together(l.nodes[:2]...)
	l.heal()
	for i, a := range as {
		other := 2 // on the other side
		if a.node == away {
			other = 0
		}
		eventually.True(t, "no node denies what another one has that refuses it", func() bool { return a.find(at(other)).How == partial })
		if got := a.find(rocl.Match{"type": "none"}); got.How != partial {
			t.Errorf("node %d finds a resource that no node has: %+v", i, got)
		}
	}
	const warned = "members refuse this node"
	for _, n := range l.nodes {
		eventually.True(t, "it is logged", func() bool { return n.says(warned) > 0 })
	}
	key("away", after)
	l.together(l.nodes...)
	for _, n := range l.nodes {
		eventually.True(t, "it is over", func() bool { return n.says("no member refuses this node any more") > 0 })
		try.Equal(t, n.says(warned), 1, "lines of node %d that it is refused", n.i)
	}
	complete(as, own, same)
}
