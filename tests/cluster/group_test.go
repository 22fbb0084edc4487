// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
)

// metrics is the address at which a daemon with metrics serves them, to its own node.
const metrics = "127.0.0.1:9464"

// casts counts the searches of an agent's node that went by cast.
func casts(a *agent) (n int) {
	page := do[string, string](a, "Get", "http://"+metrics+"/metrics")
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "rocl_cluster_search_messages_count{") && strings.Contains(line, `way="broadcast"`) && !strings.HasSuffix(line, " 0\n") {
			n++
		}
	}
	return n
}

// Members that are given no addresses find each other by a group address, and search by it. So do a
// member that joins late and members that have forgotten all other members.
//
// Promise (Clusters): Members with a multicast or broadcast group become one cluster without
// addresses, also after a cut that replaced all of them. See also TestJoin.
func TestGroup(t *testing.T) {
	parallel(t)
	for name, group := range map[string]string{"multicast": "239.91.0.1:7947", "broadcast": "10.91.0.255:7947", "IPv6": "[ff02::91]:7947"} {
		t.Run(name, func(t *testing.T) {
			parallel(t)
			if name == "IPv6" && !hasSix() {
				t.Skip("this machine has no IPv6")
			}
			l := newLab(t, 6)
			l.six = name == "IPv6"
			l.args = []string{"--group", group, "--search", "broadcast", "--http", metrics}
			began := time.Now()
			for _, n := range l.nodes[:5] {
				n.serve()
			}
			l.together(l.nodes[:5]...)
			l.reach("group: one view", time.Since(began), 5*time.Second)
			began = time.Now()
			l.nodes[5].serve()
			l.one("group: a late comer", began)

			l.lose(5)
			as, own, same := l.populate()
			complete(as, own, same)
			for _, a := range as {
				if casts(a) == 0 {
					t.Errorf("node %d does not search by cast", a.node.i)
				}
			}
			l.heal()

			// All members that knew the other part are replaced while they are out of reach.
			for _, parts := range [][2][]*node{{l.nodes[3:], nil}, {l.nodes[3:], l.nodes[:3]}} {
				l.cut(l.nodes[:3], l.nodes[3:])
				for _, part := range parts {
					for _, n := range part {
						n.kill()
					}
					for _, n := range part {
						n.serve()
					}
				}
				for _, part := range [][]*node{l.nodes[:3], l.nodes[3:]} {
					l.together(part...)
				}
				healed := time.Now()
				l.heal()
				l.one("group, replaced while cut off, healed", healed)
				// If all members were started anew, no member knows yet which members it has not
				// met.
				eventually.True(t, "all deny for certain", func() bool {
					return !slices.ContainsFunc(as, func(a *agent) bool { return a.find(rocl.Match{"type": "none"}).How != definite })
				})
				complete(as, own, same)
			}
		})
	}
}

// Contexts that are given no address listen where the other nodes reach them. They go on exchanging
// messages when a directory is dead.
func TestDefaultHost(t *testing.T) {
	parallel(t)
	l := up(t, 2)
	as, own, _ := l.populate()
	for i, a := range as {
		at := do[rocl.GID, []string](as[1-i], "Addresses", own[i])
		found := false
		for _, url := range at {
			found = found || strings.Contains(url, "://"+a.node.host+":")
		}
		if !found {
			t.Errorf("node %d is reached at %q", i, at)
		}
	}
	for i := range as {
		as[i].say(as[1-i], own[1-i], "hello")
	}
	l.nodes[1].kill()
	as[0].say(as[1], own[1], "your directory is dead")
	as[1].say(as[0], own[0], "mine is dead")
	l.nodes[0].kill()
	as[0].say(as[1], own[1], "both are dead")
	as[1].say(as[0], own[0], "so they are")
	l.start(l.nodes[0])
	l.start(l.nodes[1])
	l.together(l.nodes...)
}
