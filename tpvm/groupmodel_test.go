// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

// Joins and leaves in any order give the same numbers as a table of free numbers. Members and other
// threads see the same group.
func TestGroupModel(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 3)
	var hs []handle
	for i := range 8 {
		hs = append(hs, ts.start(i%3))
	}
	other := ts.tasks[2].Thread
	rounds := 0
	rapid.Check(t, func(rt *rapid.T) {
		rounds++
		name := fmt.Sprint("model", rounds)
		members := map[int]int{} // from number to thread
		in := map[int]*tpvm.Group{}
		pick := func(rt *rapid.T, is bool) (int, bool) {
			var can []int
			for i := range hs {
				if (in[i] != nil) == is {
					can = append(can, i)
				}
			}
			if len(can) == 0 {
				return 0, false
			}
			return rapid.SampledFrom(can).Draw(rt, "thread"), true
		}
		rt.Repeat(map[string]func(*rapid.T){
			"join": func(rt *rapid.T) {
				i, ok := pick(rt, false)
				if !ok {
					rt.Skip()
				}
				want := 0
				for _, taken := members[want]; taken; _, taken = members[want] {
					want++
				}
				g, err := hs[i].Join(ctx, name)
				if err != nil || g.Instance() != want {
					rt.Fatalf("join: %v, %v, want %d", g, err, want)
				}
				in[i], members[want] = g, i
			},
			"join twice": func(rt *rapid.T) {
				if i, ok := pick(rt, true); ok {
					if _, err := hs[i].Join(ctx, name); !errors.Is(err, tpvm.ErrInGroup) {
						rt.Fatal(err)
					}
				}
			},
			"leave": func(rt *rapid.T) {
				i, ok := pick(rt, true)
				if !ok {
					rt.Skip()
				}
				try.OK(rt, in[i].Leave(ctx))
				delete(members, in[i].Instance())
				delete(in, i)
			},
			"leave what is not joined": func(rt *rapid.T) {
				i, ok := pick(rt, false)
				want := tpvm.ErrNotInGroup
				if len(members) == 0 {
					want = tpvm.ErrNoGroup
				}
				if ok {
					if err := hs[i].LeaveGroup(ctx, name); !errors.Is(err, want) {
						rt.Fatal(err)
					}
				}
			},
			"": func(rt *rapid.T) {
				ms, err := other.GroupMembers(ctx, name)
				if err != nil || len(ms) != len(members) {
					rt.Fatal(ms, err, members)
				}
				for _, m := range ms {
					if i, ok := members[m.Instance]; !ok || hs[i].ID() != m.TID {
						rt.Fatal(ms, members)
					}
				}
				if i, ok := pick(rt, true); ok {
					same, err := in[i].Members(ctx)
					if err != nil || fmt.Sprint(same) != fmt.Sprint(ms) {
						rt.Fatal(same, ms, err)
					}
				}
			},
		})
		for _, g := range in {
			try.OK(rt, g.Leave(ctx))
		}
	})
}
