// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Promise (Resources): Numbers compare without rounding. A value that is no number matches no
// comparison and comes last in an order. See also TestAt.
func TestCompareNumbers(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"0", "-0.000", 0}, {"0", "0e9", 0}, {"4", "04.0", 0}, {"+4", "4.", 0}, {".5", "0.50", 0}, {"1e3", "1000", 0}, {"2e+06", "2000000", 0}, {"1e-07", "0.0000001", 0},
		{"9", "10", -1}, {"-9", "-10", 1}, {"-1", "0", -1}, {"-1", "1", -1}, {"0.1", "0.09", 1}, {"0.25", "1e-1", 1}, {"-0.25", "-1e-1", -1},
		{"18446744073709551616", "18446744073709551615", 1}, {"0.30000000000000000001", "0.3", 1}, {"1e400", "1e399", 1}, {"-1e-400", "0", -1},
		{strings.Repeat("9", maxNumber), "1" + strings.Repeat("0", maxNumber-1), 1},
	} {
		if got, ok := compareNumbers([]byte(c.a), []byte(c.b)); !ok || got != c.want {
			t.Errorf("%s and %s compare as %d, %v, want %d", c.a, c.b, got, ok, c.want)
		}
		if got, ok := compareNumbers([]byte(c.b), []byte(c.a)); !ok || got != -c.want {
			t.Errorf("%s and %s compare as %d, %v, want %d", c.b, c.a, got, ok, -c.want)
		}
	}
	for _, s := range []string{"", "-", "+", ".", "e3", "1e", "1e+", "1e1.5", "1e99999999999999999999", "--1", "+-1", "1-", "1 ", " 1", "0x10", "1_000", "NaN", "Inf", "many", "1.2.3", "1e5e5", strings.Repeat("1", maxNumber+1)} {
		if _, ok := compareNumbers([]byte(s), []byte("1")); ok {
			t.Errorf("%q is a number", s)
		}
	}
}

// Numbers compare as those of package math/big do.
func TestCompareNumbersModel(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 9))
	number := func() string {
		s := []string{"", "-", "+"}[r.IntN(3)] + strings.Repeat("0", r.IntN(3)) + fmt.Sprint(r.IntN(1000))
		if r.IntN(2) == 0 {
			s += fmt.Sprintf(".%0*d", 1+r.IntN(4), r.IntN(100))
		}
		if r.IntN(3) == 0 {
			s += fmt.Sprintf("e%d", r.IntN(7)-3)
		}
		return s
	}
	for range 20000 {
		a, b := number(), number()
		x, _ := new(big.Rat).SetString(a)
		y, _ := new(big.Rat).SetString(b)
		if got, ok := compareNumbers([]byte(a), []byte(b)); !ok || got != x.Cmp(y) {
			t.Fatalf("%s and %s compare as %d, %v", a, b, got, ok)
		}
	}
}

func conditions(t testing.TB) *List {
	p, err := NewPattern(Match{"kind": "worker"}, "host")
	for _, e := range []error{err, p.Compare("cores", Ge, "4"), p.Compare("load", Lt, "0.5"), p.OrderBy("load", false), p.OwnedBy(MakeGID(1, 2, 0))} {
		if e != nil {
			t.Fatal(e)
		}
	}
	return p
}

func TestConditions(t *testing.T) {
	p := conditions(t)
	try.Fails(ParseList(p.Wire()))(t, ErrMalformed, "conditions in a list")
	r, _ := NewPattern(Attrs{"kind": "worker", "cores": "8", "load": "0.25", "host": "a"})
	match := func(want bool) {
		t.Helper()
		try.Equal(t, Matches(r, p), want, "%v matches %v", r, p)
	}
	match(true)
	if n := testing.AllocsPerRun(100, func() { Matches(r, p) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if !Meets(MakeGID(1, 2, 0), r, p) || Meets(MakeGID(1, 3, 0), r, p) {
		t.Error("the owner is not told apart")
	}
	_ = r.Add("load", []byte("9")) // the first one counts
	match(true)
	_ = r.Set("load", []byte("0.5"))
	match(false)
	_ = r.Set("load", []byte("-3"))
	match(true)
	_ = r.Set("load", []byte("little"))
	match(false)
	r.Remove("load")
	match(false)

	if a := p.Answer(r); a.String() != "{kind=worker, host=a}" {
		t.Error("the answer is", a.String())
	}
	if l := p.WithoutOrder(); l.String() != "{kind=worker, host=?, cores>=4, load<0.5, rocl.context=000000000001-2-0}" {
		t.Error("without order it is", l.String())
	}
	if name, most, ok := p.Order(); name != "load" || most || !ok {
		t.Error("the order is", name, most, ok)
	}
	if id, ok := p.Owner(); id != MakeGID(1, 2, 0) || !ok || !p.Conditional() {
		t.Error("the owner is", id, ok)
	}
	if p.Complete() {
		t.Error("host is not wanted any more")
	}
	var many, all List
	for i := range few + 4 {
		_ = many.AddString(fmt.Sprint("n", i), "1")
	}
	_ = many.AppendAttrs(&all)
	_ = all.Compare("n3", Gt, "1")
	if Matches(&many, &all) {
		t.Error("a comparison in a long pattern is not looked at")
	}
	try.Fails(CheckUser(p))(t, ErrCondition, "conditions as attributes")
	for what, err := range map[string]error{
		"two orders": p.OrderBy("cores", true), "two owners": p.OwnedBy(GID{}), "no comparison": p.Compare("x", opMost, "1"),
		"no number": p.Compare("x", Eq, "one"), "no name": p.Compare("", Eq, "1"),
	} {
		if err == nil {
			t.Error(what, "are taken")
		}
	}
	var l List
	for range maxConditions {
		try.OK(t, l.Compare("x", Eq, "1"))
	}
	try.Fails(l.Compare("x", Eq, "1"))(t, ErrTooLarge)
	_ = appendAttr(&l, "x", "1", condition|uint32(Eq)<<24|1)
	try.Fails(ParsePattern(l.Wire()))(t, ErrMalformed, "too many conditions")
}

// Attributes in a pattern are changed without touching its conditions.
func TestChangeBesideConditions(t *testing.T) {
	var p List
	_ = p.Compare("n", Ge, "4")
	_ = p.AddString("n", "5")
	_ = p.Want("m")
	_ = p.Set("n", []byte("66"))
	from, _ := NewPattern(Attrs{"m": "x", "n": "7"})
	p.Fill(from)
	try.Equal(t, p.String(), "{n>=4, n=66, m=x}")
	if again, err := ParsePattern(p.Wire()); err != nil || !again.Equal(&p) {
		t.Error(err)
	}
	for i := range few + 1 {
		_ = p.Want(fmt.Sprint(i))
		_ = from.AddString(fmt.Sprint(i), "y")
	}
	if p.Fill(from); !p.Complete() {
		t.Error("not filled:", p.String())
	}
	if again, err := ParsePattern(p.Wire()); err != nil || !again.Equal(&p) || p.GetString("3") != "y" {
		t.Error(err)
	}
}

func TestRank(t *testing.T) {
	rank := func(load string, most bool) *Rank {
		l, _ := NewPattern(Attrs{"load": load})
		r := RankOf(l, "load", most)
		return &r
	}
	for _, c := range []struct {
		a, b string
		most bool
		want int
	}{{"1", "2", false, -1}, {"1", "2", true, 1}, {"1", "x", false, -1}, {"1", "x", true, -1}, {"x", "-5", true, 1}, {"x", "", false, 0}, {"3", "3.0", true, 0}} {
		try.Equal(t, rank(c.a, c.most).Compare(rank(c.b, c.most)), c.want, "%s and %s, most %v", c.a, c.b, c.most)
	}
	var none Rank
	if none.Compare(rank("x", false)) != 0 || none.Compare(rank("1", false)) != 1 {
		t.Error("the zero rank is not the last one")
	}
}

func TestReplace(t *testing.T) {
	l, _ := NewPattern(Attrs{"a": "1", "b": "2"})
	for range 3 {
		_ = l.AddString("b", "more")
	}
	_ = l.AddString("c", "3")
	before := l.Clone()
	c, _ := l.Get("c")
	if err := l.Replace("b", c); err != nil || l.String() != "{a=1, b=3, c=3}" {
		t.Error(l, err)
	}
	if err := before.Replace("b", make([]byte, MaxValue+1)); !errors.Is(err, ErrTooLarge) || before.Len() != 6 {
		t.Error("a value that is too large:", err, before.Len())
	}
	if err := l.Replace("d", []byte("4")); err != nil || l.GetString("d") != "4" {
		t.Error(l, err)
	}
}

func FuzzParsePattern(f *testing.F) {
	f.Add(conditions(f).Wire())
	var l List
	_ = l.Compare("n", Ne, "-1.5e3")
	_ = l.OrderBy("n", true)
	f.Add(l.Wire())
	r, _ := NewPattern(Attrs{"n": "17", "kind": "worker", "load": "0.25", "cores": "8"})
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParsePattern(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		var again List
		if err := l.AppendAttrs(&again); err != nil || !again.Equal(&l) {
			t.Fatal("what was parsed is written differently", err)
		}
		plain := l.WithoutConditions()
		if p, err := ParseList(plain.Wire()); err != nil || p.Conditional() || plain.Conditional() {
			t.Fatal("conditions are left", err)
		}
		if Matches(r, &l) && !Matches(r, &plain) {
			t.Fatal("it matches with conditions and not without")
		}
		a := l.Answer(r)
		try.Get(ParseList(a.Wire()))(t)
		if name, most, ok := l.Order(); ok {
			RankOf(r, name, most)
		}
		_ = l.String()
	})
}
