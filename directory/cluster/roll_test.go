// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// As soon as any member knows a newcomer, the members that have not heard of it yet find what it
// has: a no of the member that knows it says that it knows other members.
//
// Promise (Cluster searches): What a newcomer has is found as soon as one asked member knows the
// newcomer, in clusters of up to 64 members, and of up to 128 by broadcast. See also TestRoll.
func TestKnownToOne(t *testing.T) { inMemory(t, testKnownToOne) }

func testKnownToOne(t *testing.T) {
	a, b, c := three(t, unhurried, unhurried, unhurried)
	for n := resource.NodeID(4); n < 12; n++ {
		at := pattern(resource.Attrs{"at": name(n)})
		d := member(t, n, func(cfg *Config) {
			unhurried(cfg)
			id := resource.MakeGID(n, 1, 1)
			try.Get(cfg.DB.Put(id, id.Context(), at))(t)
		}, b)
		eventually.True(t, "one member knows the newcomer", func() bool { return knows(b, n) })
		try.Works(a.Find(t.Context(), at))(t, "what member %d has", n)
		for _, m := range []*Cluster{a, c} {
			try.Fails(m.Find(t.Context(), pattern(resource.Match{"no": "such"})))(t, directory.ErrNotFound, "what nobody has")
		}
		if n%2 == 0 {
			d.Close()
		}
	}
}

// A member on another one's roll is heard of, unless it is known to be dead in that life.
func TestRoll(t *testing.T) { inMemory(t, testRoll) }

func testRoll(t *testing.T) {
	a, b := two(t)
	a.members.mu.Lock()
	a.members.nodes[5] = &node{addr: "127.0.0.1:1", epoch: 0x77 << 32, lost: time.Now()}
	a.members.publishLocked()
	a.members.mu.Unlock()
	r := a.members.roll.Load()
	try.Equal(t, r.sum, search.Checksum([]resource.NodeID{2, 1}), "%+v", r)
	if a.members.unheard(r.brief) {
		t.Error("its own members are unheard of")
	}
	for epoch, want := range map[uint64]bool{0x77 << 32: false, 0x77<<32 + 1: true} {
		try.Equal(t, a.members.unheard(binary.LittleEndian.AppendUint64(nil, 5|epoch<<48)), want, "a member that is dead in another life")
	}
	if !a.members.unheard(binary.LittleEndian.AppendUint64(nil, 6)) || a.members.unheard(nil) || a.members.unheard(make([]byte, 17)) {
		t.Error("a member that was never met, or nonsense")
	}
	// When checksums differ for good, the roll is asked for once.
	differ := []differs{{2, 77}}
	for i := range 2 {
		before := b.count.sent.Load()
		if apart, err := a.asker.learnRolls(t.Context(), differ); len(apart) > 0 || err != nil {
			t.Errorf("%v, %v", apart, err)
		}
		if asked := b.count.sent.Load() > before; asked != (i == 0) {
			t.Errorf("the %dth time the roll was asked for: %v", i+1, asked)
		}
	}
	kill(b)
	if apart, err := a.asker.learnRolls(t.Context(), []differs{{2, 78}, {2, 79}}); len(apart) != 1 || err != nil {
		t.Errorf("a member that gives no roll: %v, %v", apart, err)
	}
}
