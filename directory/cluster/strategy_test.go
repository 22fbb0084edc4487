// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// Each strategy finds what one member has and denies what none has, with a group and without. Some
// members sleep while they wait, and some poll.
func TestStrategies(t *testing.T) {
	port := try.Get(freeaddr.Port())(t)
	group := fmt.Sprint("127.255.255.255:", port)
	for name, by := range map[string]strategy.Strategy{"auto": strategy.Auto, "broadcast": strategy.Broadcast, "unicast": strategy.Unicast, "tree": strategy.Tree} {
		for _, group := range []string{"", group} {
			t.Run(fmt.Sprintf("%s, group %q", name, group), func(t *testing.T) {
				var cs []*Cluster
				for i := range resource.NodeID(5) {
					var join []*Cluster
					if i > 0 && group == "" { // with a group, they find each other
						join = cs[:1]
					}
					cs = append(cs, member(t, i+1, func(c *Config) {
						c.Name, c.Strategy, c.Fan, c.Group, c.Keys = t.Name(), by, 2, group, [][]byte{[]byte("key")}
						c.Spread = time.Hour // no summaries
						if i%2 == 0 {
							c.Poll = 100 * time.Microsecond
						}
					}, join...))
				}
				together(t, cs...)
				for i, c := range cs {
					id := put(t, c, 1, resource.Attrs{"at": fmt.Sprint(i)})
					for j, from := range cs {
						if i != j {
							finds(t, from, resource.Match{"at": fmt.Sprint(i)}, id)
						}
					}
				}
				for _, c := range cs {
					denies(t, c, resource.Match{"at": "nowhere"})
				}
				// When all members know each other's floor, a cast is one packet.
				before := cs[0].count.sent.Load()
				denies(t, cs[0], resource.Match{"at": "nowhere"})
				cast := by == strategy.Broadcast || by == strategy.Auto
				if n := cs[0].count.sent.Load() - before; cast && group != "" && n > 2 {
					t.Logf("%d packets for a cast: something was lost", n)
				} else if by == strategy.Unicast && n < 4 {
					t.Errorf("%d packets for four members", n)
				}
			})
		}
	}
}
