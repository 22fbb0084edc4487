// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGIDRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := NodeID(rapid.Uint64Max(1<<48-1).Draw(t, "node"))
		ctx := rapid.Uint64Max(1<<48-1).Draw(t, "ctx")
		serial := rapid.Uint32().Draw(t, "serial")
		g := MakeGID(node, ctx, serial)
		if g.Node() != node || g.Ctx() != ctx || g.Serial() != serial || g.Context() != MakeGID(node, ctx, 0) || g.Context().WithSerial(serial) != g {
			t.Fatalf("%v does not lead back to %x %x %x", g, node, ctx, serial)
		}
		back, err := ParseGID(g.String())
		if err != nil || back != g {
			t.Fatalf("%q parses as %v, %v", g, back, err)
		}
		var b [16]byte
		PutGID(b[:], g)
		try.Equal(t, GetGID(b[:]), g, "16 bytes do not round trip")
	})
}

func FuzzParseGID(f *testing.F) {
	f.Add("8f3a21b0c4d5-1000002-7")
	f.Add("-")
	f.Add("8f3a21b0c4d5-1000002-100000000")
	f.Fuzz(func(t *testing.T, s string) {
		if g, err := ParseGID(s); err == nil {
			if back, err := ParseGID(g.String()); err != nil || back != g {
				t.Fatalf("%q → %v → %v, %v", s, g, back, err)
			}
		} else if !errors.Is(err, ErrBadGID) {
			t.Fatal(err)
		}
	})
}

// Any names and values, repeated or not, are read back identically.
//
// Promise (Resources): Attribute values are any bytes. A malformed list is refused with the place
// of the error. See also TestBadInput.
func TestListAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type pair struct {
			name  string
			value []byte
			known bool
		}
		var l List
		var model []pair
		name := rapid.StringN(1, 8, 20)
		value := rapid.SliceOfN(rapid.Byte(), 0, 20)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				p := pair{name.Draw(t, "n"), value.Draw(t, "v"), true}
				try.OK(t, l.Add(p.name, p.value))
				model = append(model, p)
			},
			"want": func(t *rapid.T) {
				p := pair{name.Draw(t, "n"), nil, false}
				try.OK(t, l.Want(p.name))
				model = append(model, p)
			},
			"set": func(t *rapid.T) {
				n, v := name.Draw(t, "n"), value.Draw(t, "v")
				if len(model) > 0 && rapid.Bool().Draw(t, "there") {
					n = rapid.SampledFrom(model).Draw(t, "p").name
				}
				try.OK(t, l.Set(n, v))
				for i := range model {
					if model[i].name == n {
						model[i] = pair{n, v, true}
						return
					}
				}
				model = append(model, pair{n, v, true})
			},
			"remove": func(t *rapid.T) {
				if len(model) == 0 {
					return
				}
				n := rapid.SampledFrom(model).Draw(t, "p").name
				var left []pair
				for _, p := range model {
					if p.name != n {
						left = append(left, p)
					}
				}
				if got := l.Remove(n); got != len(model)-len(left) {
					t.Fatalf("removed %d", got)
				}
				model = left
			},
			"view": func(t *rapid.T) { // a parsed list behaves like the original
				v := try.Get(ParseList(bytes.Clone(l.Wire())))(t)
				l = v
			},
			"": func(t *rapid.T) {
				if l.Len() != len(model) {
					t.Fatalf("%d attributes, want %d", l.Len(), len(model))
				}
				var known, wanted int
				for _, p := range model {
					if p.known {
						known++
					} else {
						wanted++
					}
				}
				i := 0
				for n, v := range l.All() {
					for !model[i].known {
						i++
					}
					if n != model[i].name || !bytes.Equal(v, model[i].value) {
						t.Fatalf("attribute %d is %q=%q, want %q=%q", i, n, v, model[i].name, model[i].value)
					}
					i++
					known--
				}
				for range l.Wanted() {
					wanted--
				}
				if known != 0 || wanted != 0 || l.Complete() != !strings.Contains(fmt.Sprint(model), " false}") {
					t.Fatal("attributes are missing")
				}
			},
		})
	})
}

func TestFill(t *testing.T) {
	var p, r List
	_ = p.AddString("type", "server")
	_ = p.Want("port")
	_ = p.Want("missing")
	_ = p.Want("empty")
	_ = r.AddString("port", "80")
	_ = r.AddString("empty", "")
	if p.Fill(&r); p.String() != "{type=server, port=80, missing=?, empty=}" { // empty is not absent
		t.Error(&p)
	}
}

func TestBadInput(t *testing.T) {
	var l List
	for name, want := range map[string]error{"": ErrEmptyName, strings.Repeat("n", MaxName+1): ErrTooLarge, "a\xff": ErrBadName} {
		try.Fails(l.AddString(name, "v"))(t, want, "name %.10q", name)
	}
	try.Fails(l.Add("v", make([]byte, MaxValue+1)))(t, ErrTooLarge)
	for i := range MaxAttrs {
		try.OK(t, l.AddString(fmt.Sprint(i), ""))
	}
	try.Fails(l.AddString("more", ""))(t, ErrTooLarge)
	var sys List
	_ = sys.AddString("rocl.kind", "context")
	try.Fails(CheckUser(&sys))(t, ErrReservedName)
}

func FuzzParseList(f *testing.F) {
	var l List
	f.Add(l.Wire())
	_ = l.AddString("type", "server")
	_ = l.Want("load")
	f.Add(l.Wire())
	f.Add([]byte{1, 0, 12, 0, 0, 0, 255, 255, 255, 255, 255, 127})
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseList(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		var again List
		for a := range each(l.Wire()) {
			try.OK(t, add(&again, string(a.name), a.value, !a.known))
		}
		if !again.Equal(&l) {
			t.Fatal("what was parsed is written differently")
		}
	})
}

func TestMatches(t *testing.T) {
	r, _ := NewPattern(Attrs{"type": "server", "model": "llama"})
	_ = r.AddString("model", "second")
	for _, c := range []struct {
		p    Match
		want bool
	}{{nil, true}, {Match{"type": "server"}, true}, {Match{"model": "second"}, true}, {Match{"type": "serve"}, false}, {Match{"typ": "server"}, false}} {
		p := try.Get(NewPattern(c.p, "any"))(t)
		try.Equal(t, Matches(r, p), c.want, "%v matches", p)
		if n := testing.AllocsPerRun(100, func() { Matches(r, p); r.Get("model") }); n > 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

func ExampleList() {
	var l List
	_ = l.AddString("type", "server")
	_ = l.AddString("tag", "fast")
	_ = l.AddString("tag", "cheap")
	_ = l.Want("load")
	fmt.Println(&l)
	// Output: {type=server, tag=fast, tag=cheap, load=?}
}

// A value that is a view of the list itself may be given to another of its attributes, whether the
// list gets longer or shorter.
func TestSetOfOwnValue(t *testing.T) {
	for _, old := range []string{"", "0", "a value longer than the other"} {
		var l List
		_ = l.AddString("a", old)
		_ = l.AddString("b", "0123456789")
		v, _ := l.Get("b")
		try.OK(t, l.Set("a", v))
		if a, b := l.GetString("a"), l.GetString("b"); a != "0123456789" || b != "0123456789" {
			t.Errorf("a is %q and b %q after %q", a, b, old)
		}
	}
}

// Parsing a list from the wire allocates nothing.
func TestParseAllocs(t *testing.T) {
	var l List
	for _, n := range []string{"type", "a name that is longer than thirty-two bytes", "site"} {
		_ = l.AddString(n, "value")
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = ParseList(l.Wire()) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// A node is written as twelve digits, and no other text is read as a node.
func TestNodeIDText(t *testing.T) {
	for _, n := range []NodeID{0, 1, 0xabc, 1<<48 - 1} {
		b, err := json.Marshal(n)
		var back NodeID
		if err != nil || len(b) != 14 || json.Unmarshal(b, &back) != nil || back != n {
			t.Errorf("%x: %s, %v, read as %x", n, b, err, back)
		}
	}
	for _, s := range []string{"", "1", "00000000000g", "0000000000001", "+00000000001", "0x0000000001"} {
		n := NodeID(7)
		if err := n.UnmarshalText([]byte(s)); !errors.Is(err, ErrBadGID) || n != 7 {
			t.Errorf("%q: %x, %v", s, n, err)
		}
	}
}

func TestIDs(t *testing.T) {
	a, b := MakeGID(1, 2, 3), MakeGID(4, 5, 6)
	for _, want := range [][]GID{nil, {a}, {b, a, b}} {
		l := try.Get(NewIDs(want...))(t)
		got, ok := IDs(l)
		if !ok || len(got) != min(len(want), 2) {
			t.Errorf("%v of %v, %v", got, want, ok)
		}
		for _, id := range want {
			if _, ok := got[id]; !ok {
				t.Errorf("%v is not among %v", id, got)
			}
		}
	}
	if _, ok := IDs(new(List)); ok {
		t.Error("an empty pattern has identifiers")
	}
	try.Get(NewIDs(make([]GID, 3)...))(t)
	many := make([]GID, MaxValue/16+1)
	for i := range many {
		many[i] = a.WithSerial(uint32(i))
	}
	try.Fails(NewIDs(many...))(t, ErrTooLarge)
	try.Get(NewIDs(many[1:]...))(t)
}
