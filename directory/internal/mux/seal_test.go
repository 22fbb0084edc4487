// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"crypto/cipher"
	"math"
	"net"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"pgregory.net/rapid"
)

// The window agrees with a model that remembers every counter.
func TestReplayModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r replay
		seen, top := map[uint64]bool{}, uint64(0)
		if rapid.Bool().Draw(t, "later") {
			top = rapid.Uint64Range(1, math.MaxUint64).Draw(t, "begins after")
			r.markUpTo(top)
		}
		begun := top
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			near := rapid.SampledFrom([]uint64{0, 1, 63, 64, 65, window - 1, window, window + 1, 2 * window}).Draw(t, "distance")
			n := top
			switch rapid.IntRange(0, 3).Draw(t, "where") {
			case 0:
				n -= near // may wrap
			case 1:
				n += near
			case 2:
				n = top - rapid.Uint64Range(0, window+3).Draw(t, "back")
			case 3:
				n = rapid.Uint64().Draw(t, "anywhere")
			}
			want := n != 0 && n > begun && !seen[n] && (n > top || top-n < window)
			if got := r.first(n); got != want {
				t.Fatalf("%d after %d: first %v, want %v", n, top, got, want)
			}
			if want {
				seen[n], top = true, max(top, n)
			}
		}
	})
}

// A datagram opens as it was sealed. It does not open with any bit flipped, any bytes missing or
// one added.
func TestSealed(t *testing.T) {
	for _, k := range []*keys{newKeys("", nil), newKeys("", [][]byte{[]byte("key")})} {
		testSealed(t, k.cipher(derive(k.bytes[0], "one", 1, 2, 3, 4)))
	}
}

func testSealed(t *testing.T, a cipher.AEAD) {
	for _, plain := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte("y"), MaxPayload+1)} {
		whole := seal([]byte("before"), a, kindOne, 9, 5, 77, plain)[6:]
		if len(whole) != overhead+len(plain) || senderOf(whole) != 5 || counterOf(whole) != 77 {
			t.Fatalf("%x", whole)
		}
		if got, ok := open(bytes.Clone(whole), a); !ok || !bytes.Equal(got, plain) {
			t.Fatalf("%x opens as %x, %v", whole, got, ok)
		}
		for bit := range len(whole) * 8 {
			b := bytes.Clone(whole)
			b[bit/8] ^= 1 << (bit % 8)
			if _, ok := open(b, a); ok {
				t.Fatalf("opens with bit %d another", bit)
			}
		}
		for n := headLen; n < len(whole); n++ {
			if _, ok := open(bytes.Clone(whole[:n]), a); ok {
				t.Fatalf("opens with %d of %d bytes", n, len(whole))
			}
		}
		if _, ok := open(append(bytes.Clone(whole), 0), a); ok {
			t.Fatal("opens with a byte more")
		}
	}
}

// Each of cluster, key, kind and incarnation makes a different key.
func TestKeysDiffer(t *testing.T) {
	seen := map[string]string{}
	add := func(what string, key []byte) {
		if of, was := seen[string(key)]; was {
			t.Errorf("%s has the key of %s", what, of)
		}
		seen[string(key)] = what
	}
	for _, name := range []string{"", "a", "b"} {
		for _, key := range []string{"", "k", "l"} {
			b := newKeys(name, [][]byte{[]byte(key)}).bytes[0]
			for _, what := range []string{"one", "cast", "beacon", "tag"} {
				add(name+"/"+key+"/"+what, derive(b, what))
			}
			add(name+"/"+key+" 1 to 2", derive(b, "one", 1, 10, 2, 20))
			add(name+"/"+key+" 2 to 1", derive(b, "one", 2, 20, 1, 10))
			add(name+"/"+key+" 1 anew", derive(b, "one", 1, 11, 2, 20))
			add(name+"/"+key+" 2 anew", derive(b, "one", 1, 10, 2, 21))
		}
	}
}

// Two keys may have the same tag: a datagram that the first does not open is tried with the second.
func TestTwinTags(t *testing.T) {
	k := newKeys("", [][]byte{[]byte("old"), []byte("new")})
	if k.alike {
		t.Fatal("these have different tags")
	}
	k.tags[1], k.alike = k.tags[0], true
	b := seal(nil, aead(derive(k.bytes[1], "one")), kindOne, k.tags[0], 1, 1, []byte("hello"))
	var got []byte
	if !k.each(b, func(b []byte, i int) (ok bool) {
		got, ok = open(b, aead(derive(k.bytes[i], "one")))
		return ok
	}) || string(got) != "hello" {
		t.Errorf("opened %q", got)
	}
	k = newKeys("", [][]byte{[]byte("same"), []byte("same")})
	if !k.alike {
		t.Error("one key twice has one tag")
	}
}

// However often two members part and meet in the same incarnations, no counter is used or accepted
// twice. Another incarnation begins anew.
func TestPartAndMeet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &Mux{peers: map[resource.NodeID]*peer{}, past: pastIncarnations{}}
		used, heard := map[[2]uint64]bool{}, map[[2]uint64]bool{}
		at := func(port int) *net.UDPAddr { return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port} }
		p.cfg.Self = 9
		p.Meet(9, 1, at(1))
		if p.peer(9) != nil {
			t.Fatal("met itself")
		}
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "does") {
			case 0:
				p.Meet(1, rapid.Uint64Range(1, 3).Draw(t, "epoch"), at(rapid.IntRange(1, 2).Draw(t, "port")))
			case 1:
				p.Part(1)
			case 2:
				if to := p.peer(1); to != nil {
					n := [2]uint64{to.epoch, to.sent.Add(1)}
					if used[n] {
						t.Fatalf("counter %d of incarnation %d is used twice", n[1], n[0])
					}
					used[n] = true
				}
			case 3:
				if from := p.peer(1); from != nil {
					n := [2]uint64{from.epoch, rapid.Uint64Range(1, 40).Draw(t, "counter")}
					if first := from.first(n[1]); first && heard[n] {
						t.Fatalf("counter %d of incarnation %d is believed twice", n[1], n[0])
					}
					heard[n] = true
					if from.first(n[1]) {
						t.Fatal("twice at once")
					}
				}
			}
		}
	})
}

// A datagram that was under way on a peer when it was parted from is not new.
func TestPartedMeanwhile(t *testing.T) {
	p := &Mux{peers: map[resource.NodeID]*peer{}, past: pastIncarnations{}}
	at := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	p.Meet(1, 1, at)
	old := p.peer(1)
	if !old.first(5) {
		t.Fatal("5 is new")
	}
	p.Part(1)
	if old.first(6) {
		t.Error("believed after the parting")
	}
	p.Meet(1, 1, at)
	if m := p.peer(1); m.first(5) || !m.first(6) {
		t.Error("5 was, 6 was not")
	}
}

// An incarnation that is met again accepts only counters above those that were heard of it before.
func TestPastIncarnations(t *testing.T) {
	past := pastIncarnations{}
	var heard replay
	heard.first(3)
	heard.first(7)
	past.keep(incarnation{1, 1}, &heard)
	past.keep(incarnation{2, 1}, new(replay)) // nothing was heard of it
	try.Equal(t, len(past), 1, "incarnations are remembered")
	var other, again, later replay
	past.restore(incarnation{1, 2}, &other)
	if !other.first(1) {
		t.Error("another incarnation of the member may not begin")
	}
	past.restore(incarnation{1, 1}, &again)
	for n, want := range map[uint64]bool{1: false, 3: false, 5: false, 7: false, 8: true} {
		try.Equal(t, again.first(n), want, "counter %d of the same incarnation: accepted", n)
	}
	if past.restore(incarnation{1, 1}, &later); len(past) != 0 || !later.first(1) {
		t.Errorf("the incarnation is still remembered after it was met again: %v", past)
	}

	// The number of incarnations is limited, and the newest is never the one that is dropped.
	for n := range resource.NodeID(mostPast + 10) {
		past.keep(incarnation{n, 1}, &heard)
		if _, kept := past[incarnation{n, 1}]; !kept {
			t.Fatalf("incarnation %d is dropped at once", n)
		}
	}
	try.Equal(t, len(past), mostPast, "incarnations are remembered")
}
