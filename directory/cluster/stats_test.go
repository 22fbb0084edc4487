// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

func searchesOf(c *Cluster, method string) SearchStats {
	for _, s := range c.Stats().Searches {
		if s.Strategy == method {
			return s
		}
	}
	return SearchStats{}
}

// Each search is counted once, by the widest method that it used and by its result. For summaries,
// it is counted what they saved and where they were wrong.
func TestSearchStats(t *testing.T) {
	for _, c := range []struct {
		strategy strategy.Strategy
		fan      int
		others   int
		want     string
	}{{strategy.Unicast, 0, 2, "unicast"}, {strategy.Tree, 2, 6, "tree"}} {
		inMemory(t, func(t *testing.T) {
			// A late answer leads to no other packet, and to no other method.
			a := member(t, 1, func(cfg *Config) { cfg.Strategy, cfg.Fan, cfg.Hop = c.strategy, c.fan, 5*time.Second })
			all := []*Cluster{a}
			for i := range c.others {
				all = append(all, member(t, resource.NodeID(2+i), nil, a))
			}
			together(t, all...)
			b := all[1]
			id, gone := put(t, b, 1, resource.Attrs{"type": "gpu"}), put(t, b, 2, resource.Attrs{"type": "old"})
			summarized(t, a, b, pattern(resource.Match{"type": "gpu"}), pattern(resource.Match{"type": "old"}))
			try.OK(t, b.cfg.DB.Delete(gone))
			want := func(got, want error) {
				t.Helper()
				try.Fails(got)(t, want)
			}
			want(second(a.Find(t.Context(), pattern(resource.Match{"type": "gpu"}))), nil)
			want(second(a.Find(t.Context(), pattern(resource.Match{"type": "none"}))), directory.ErrNotFound)
			want(second(a.Find(t.Context(), pattern(resource.Match{"type": "old"}))), directory.ErrNotFound)
			want(second(a.Lookup(t.Context(), id, pattern(nil))), nil)
			want(second(a.Lookup(t.Context(), resource.MakeGID(99, 1, 1), pattern(nil))), directory.ErrPartial)
			if s := searchesOf(a, "summary"); s.Found != 1 || s.None != 0 || s.Messages.Count != 1 || s.Messages.Sum < 1 || s.Took.Count != 1 {
				t.Errorf("by summaries: %+v", s)
			}
			if s := searchesOf(a, c.want); s.Found != 0 || s.None != 2 || s.Took.Count != 2 {
				t.Errorf("of everybody: %+v", s)
			}
			if s := searchesOf(a, "direct"); s.Found != 1 || s.Partial != 1 || s.Took.Count != 2 {
				t.Errorf("by identifier: %+v", s)
			}
			eventually.True(t, "gossip has come", func() bool { return a.Stats().Port.GossipReceivedBytes > 0 })
			// A summary may claim wrongly that a member has a match, though rarely.
			st := a.Stats()
			if f := st.Filters; f.Known == 0 || f.Held == 0 || f.ReceivedBytes == 0 || f.SentBytes == 0 || f.Asked < 2 || f.Wrong < 1 || f.Wrong >= f.Asked || f.Spared < 1 || f.Spared > uint64(c.others-1) {
				t.Errorf("%+v", f)
			}
			if st.Alive != len(all) || st.Joins != uint64(c.others) || st.Keys != 0 || st.Sent == 0 || st.Port.Sent == 0 || st.Port.GossipReceivedBytes == 0 || st.Port.Members != c.others {
				t.Errorf("%+v", st)
			}
			if st := b.Stats(); st.Answered < 2 || st.Denied < 2 {
				t.Errorf("%d questions of others answered, %d denied", st.Answered, st.Denied)
			}
			a.searches.mu.Lock()
			defer a.searches.mu.Unlock()
			if _, n := a.searches.node.Pending(); n != 0 {
				t.Errorf("%d searches have not ended", n)
			}
		})
	}
}

// Members that come, go and fall silent are counted. The dead are remembered.
func TestMemberStats(t *testing.T) { inMemory(t, testMemberStats) }

func testMemberStats(t *testing.T) {
	key := []byte("0123456789abcdef")
	keyed := func(c *Config) { c.Keys = [][]byte{key, []byte("fedcba9876543210")} }
	a, b, c := three(t, keyed, keyed, keyed)
	if st := a.Stats(); st.Joins != 2 || st.Alive != 3 || st.Keys != 2 {
		t.Errorf("%+v", st)
	}
	eventually.True(t, "it is well", func() bool { return a.Stats().Health == 0 }) // also after a late answer
	if err := a.SetKeys(key); err != nil || a.Stats().Keys != 1 {
		t.Errorf("%d keys, %v", a.Stats().Keys, err)
	}
	eventually.True(t, "probes are answered", func() bool { return a.Stats().Ping.Count > 0 })
	b.Close()
	eventually.True(t, "it has left", func() bool { st := a.Stats(); return st.Leaves == 1 && st.Deaths == 0 && st.Alive == 2 && st.Dead == 0 })
	try.OK(t, c.HandOver())
	eventually.True(t, "it is away", func() bool { st := a.Stats(); return st.Leaves+st.Deaths == 2 && st.Alive == 1 && st.Away+st.Dead > 0 })
	try.Equal(t, a.Stats().Silence, 0, "silence where nobody lives")
}

func TestSilence(t *testing.T) {
	var n counts
	n.init()
	n.member(2, false, true, false)
	n.member(3, false, true, false)
	now := time.Now()
	n.pulse[2], n.pulse[3] = pulse{at: now.Add(-3 * time.Second)}, pulse{at: now.Add(-time.Second)}
	try.Equal(t, n.silence(now), 3*time.Second)
	n.member(2, true, false, false)
	if d := n.silence(now); d != time.Second || n.deaths.Load() != 1 {
		t.Error(d)
	}
}

// Each answer is counted once, when it is sent, also while this member must look before it may
// answer. A no that is withheld does not count.
func TestAnswersAreCountedOnce(t *testing.T) { inMemory(t, testAnswersAreCountedOnce) }

func testAnswersAreCountedOnce(t *testing.T) {
	sure := false
	a := member(t, 1, func(c *Config) { c.Sure = func() bool { return sure } })
	put(t, a, 1, resource.Attrs{"type": "gpu"})
	held := question(kindFind, resource.GID{}, pattern(resource.Match{"type": "gpu"}))
	absent := question(kindFind, resource.GID{}, pattern(resource.Match{"type": "none"}))
	packet := func(q []byte) {
		if a.answers.mayAnswer(q) {
			a.searches.mu.Lock()
			defer a.searches.mu.Unlock()
			a.answers.packetLocked(q)
		}
	}
	stream := func(q []byte) {
		near, far := net.Pipe()
		go func() { _ = a.answers.serve(far) }()
		_ = near.SetDeadline(time.Now().Add(60 * time.Second))
		_, _ = near.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(q))), q...))
		_, _ = io.ReadAll(near)
		near.Close()
	}
	for what, ask := range map[string]func([]byte){"by packet": packet, "by stream": stream} {
		for _, c := range []struct {
			q                []byte
			sure             bool
			answered, denied uint64
		}{{held, false, 1, 0}, {absent, false, 0, 0}, {held, true, 1, 0}, {absent, true, 0, 1}} {
			sure = c.sure
			before := a.Stats()
			ask(c.q)
			after := a.Stats()
			if got := after.Answered - before.Answered; got != c.answered {
				t.Errorf("%s, sure %v: %d answers, want %d", what, c.sure, got, c.answered)
			}
			if got := after.Denied - before.Denied; got != c.denied {
				t.Errorf("%s, sure %v: %d denials, want %d", what, c.sure, got, c.denied)
			}
		}
	}
}
