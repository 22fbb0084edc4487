// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"hash/maphash"
	"strconv"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/live"
)

// kitPickCases measure picks among pickMembers members of a live set, beside a loop over a slice of
// as many.
var kitPickCases = []comparison{
	pickCase("hash", "a loop over a slice for the highest weight", sliceHash, func(key string) live.By { return live.Hash(key) }),
	pickCase("turn", "the next one of a slice", sliceTurn, func(string) live.By { return live.Turn() }),
	pickCase("least", "a loop over a slice for the least load and requests", sliceLeast, func(string) live.By { return live.Least("load") }),
}

// What is picked from, and by.
const (
	pickMembers = 1000
	pickKeys    = 1 << 16
)

func pickCase(how, what string, bare func() func(key string), by func(key string) live.By) comparison {
	return comparison{bench: "kit", name: fmt.Sprintf("kit pick %s of %d", how, pickMembers), when: inKit("pick"), role: isAlone, set: picks, what: what, unit: "µs",
		limits: []Limit{atMost("p50", 1, 0.2), noAllocs},
		bare:   func(p *pair) loop { return pickLoop(p, bare()) },
		ours: func(p *pair) loop {
			for i := range pickMembers {
				must(p.c.Register(p.ctx, rocl.Attrs{"bench": "member", "load": strconv.Itoa(i % 10)}))
			}
			s := must(live.Follow(p.ctx, p.c, rocl.Match{"bench": "member"}))
			p.add(func() { s.Close() })
			return pickLoop(p, func(key string) { must(s.Pick(by(key))).Done(nil) })
		}, finish: anyTransport}
}

func picks(o *options) { o.count *= 10 }

// pickLoop returns a loop that calls pick with one key after another, and has done so for all keys.
func pickLoop(p *pair, pick func(key string)) loop {
	keys := make([]string, pickKeys)
	for i := range keys {
		keys[i] = fmt.Sprint("key:", i)
		pick(keys[i])
	}
	i := 0
	return func(n int, t *times) {
		t.batch(p.ctx, n, func() {
			pick(keys[i%pickKeys])
			i++
		})
	}
}

// picked keeps the picks of the bare loops.
var picked int

func sliceHash() func(key string) {
	seed := maphash.MakeSeed()
	var hashes [pickMembers]uint64
	for i := range hashes {
		hashes[i] = maphash.Comparable(seed, i)
	}
	return func(key string) {
		h, most := maphash.String(seed, key), uint64(0)
		for i, x := range hashes {
			if w := (x ^ h) * 0x9e3779b97f4a7c15; w >= most {
				picked, most = i, w
			}
		}
	}
}

func sliceTurn() func(key string) {
	var members [pickMembers]int
	n := 0
	return func(string) {
		picked = members[n%pickMembers]
		n++
	}
}

func sliceLeast() func(key string) {
	var loads, requests [pickMembers]int
	for i := range loads {
		loads[i] = i % 10
	}
	return func(string) {
		picked = 0
		for i, load := range loads {
			if load+requests[i] < loads[picked]+requests[picked] {
				picked = i
			}
		}
		requests[picked]++
		requests[picked]--
	}
}
