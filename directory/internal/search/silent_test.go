// SPDX-License-Identifier: Apache-2.0

package search_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/resource"
)

// A node that is asked again and again is called silent once: when it has not answered for the
// second time. That holds for the only other node, for nodes that are asked because of their
// summaries, and for nodes that are asked among all. A node that answers is not called silent.
func TestSilent(t *testing.T) {
	const hop = time.Millisecond
	for name, c := range map[string]struct {
		members, likely, silent []resource.NodeID
		want                    []resource.NodeID
	}{
		"only one other":     {members: []resource.NodeID{1, 2}, silent: []resource.NodeID{2}, want: []resource.NodeID{2}},
		"by summary":         {members: []resource.NodeID{1, 2, 3}, likely: []resource.NodeID{3}, silent: []resource.NodeID{3}, want: []resource.NodeID{3, 3}},
		"one of all":         {members: []resource.NodeID{1, 2, 3, 4}, silent: []resource.NodeID{3}, want: []resource.NodeID{3}},
		"all of all":         {members: []resource.NodeID{1, 2, 3}, silent: []resource.NodeID{2, 3}, want: []resource.NodeID{2, 3}},
		"every node answers": {members: []resource.NodeID{1, 2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []resource.NodeID
			var answers []search.Packet
			asked := map[resource.NodeID]int{}
			n := search.NewNode(search.Config{
				Self: 1, Hop: hop,
				Members: func() []resource.NodeID { return c.members },
				May:     func(uint64, []byte) []resource.NodeID { return c.likely },
				Send: func(to resource.NodeID, p *search.Packet) {
					asked[to]++
					if !slices.Contains(c.silent, to) {
						a := *p
						a.Type, a.Covered, a.Sum, a.Body = 3, 1, search.Checksum([]resource.NodeID{to}), nil
						answers = append(answers, a)
					}
				},
				Silent: func(m resource.NodeID) {
					if asked[m]%search.DefaultTries < 2 && len(c.likely) == 0 {
						t.Errorf("node %d is called silent when it was asked %d times", m, asked[m])
					}
					got = append(got, m)
				},
			})
			ended, now := false, time.Unix(1, 0)
			n.Search(now, []byte("gold"), search.Func(func(search.Result) { ended = true }))
			for !ended {
				all := answers
				answers = nil
				for i := range all {
					n.Receive(now, all[i].Lo, &all[i])
				}
				now = now.Add(hop)
				n.Tick(now)
			}
			if slices.Sort(got); !slices.Equal(got, c.want) {
				t.Errorf("silent are %v, want %v", got, c.want)
			}
		})
	}
}
