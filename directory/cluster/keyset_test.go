// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// The key of a cluster is replaced while questions are asked, and none of them fails. A node with
// only the old key stays outside.
func TestSetKeys(t *testing.T) { inMemory(t, testSetKeys) }

func testSetKeys(t *testing.T) {
	key := func(ks ...string) (of [][]byte) {
		for _, k := range ks {
			of = append(of, []byte(k))
		}
		return of
	}
	with := func(c *Config) { c.Keys = key("old") }
	a := member(t, 1, with)
	b, c := member(t, 2, with, a), member(t, 3, with, a)
	cs := []*Cluster{a, b, c}
	together(t, cs...)
	for i, m := range cs {
		put(t, m, 1, resource.Attrs{"at": fmt.Sprint(i)})
	}
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	var asked [3]atomic.Int64 // questions of each member
	for i, m := range cs {
		busy.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				at := fmt.Sprint((i + 1 + n%2) % 3)
				try.Works(m.Find(t.Context(), pattern(resource.Match{"at": at})))(t, "node %d: %s", i+1, at)
				asked[i].Add(1)
			}
		})
	}
	for _, step := range [][][]byte{key("old", "new"), key("new", "old"), key("new")} {
		for _, m := range cs {
			try.OK(t, m.SetKeys(step...))
			for i := range asked { // the second question from now on has begun after the change
				n := asked[i].Load()
				eventually.True(t, "questions are asked in between", func() bool { return asked[i].Load() > n+1 })
			}
		}
	}
	stop()
	busy.Wait()
	stranger := member(t, 9, with, a, b, c)
	fresh := member(t, 4, func(c *Config) { c.Keys = key("new") }, a)
	together(t, a, b, c, fresh)
	try.Equal(t, len(stranger.Members()), 1, "members that the stranger sees")
	try.Fails(stranger.Find(t.Context(), pattern(resource.Match{"at": "0"})))(t, directory.ErrPartial, "the stranger")
	try.Works(fresh.Find(t.Context(), pattern(resource.Match{"at": "0"})))(t)
	try.Rejects(a.SetKeys())(t, "took the key away")
	try.Rejects(member(t, 5, nil).SetKeys([]byte("key")))(t, "gave a key to a cluster without")
}

// When the keys of the streams cannot be changed, all keys stay as they were.
func TestSetKeysFails(t *testing.T) { inMemory(t, testSetKeysFails) }

func testSetKeysFails(t *testing.T) {
	with := func(c *Config) { c.Keys = [][]byte{[]byte("old")} }
	a := member(t, 1, with)
	ring, fails := a.gossip.ring.GetKeys(), errors.New("no certificate")
	set := a.keyset.setCerts
	a.keyset.setCerts = func(...[]byte) error { return fails }
	try.Fails(a.SetKeys([]byte("new"), []byte("old")))(t, fails, "SetKeys")
	if got := a.gossip.ring.GetKeys(); !slices.EqualFunc(got, ring, bytes.Equal) {
		t.Errorf("the keyring has %d keys, or other ones, after SetKeys failed", len(got))
	}
	a.keyset.setCerts = set
	b := member(t, 2, with, a)
	together(t, a, b)
	id := put(t, b, 1, resource.Attrs{"at": "b"})
	finds(t, a, resource.Match{"at": "b"}, id)
}
