// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Promise (Resources): A pattern as a text has comparisons and alternatives, and quotes for any
// characters. A text that is no pattern is refused. See also FuzzParseText.
func TestParse(t *testing.T) {
	r := new(List)
	for _, a := range [][2]string{{"type", "model"}, {"load", "2.5"}, {"zone", "a"}, {"zone", "b c"}, {"empty", ""}, {`o"d|d`, "|"}, {"url", "x?y=z"}} {
		try.OK(t, r.AddString(a[0], a[1]))
	}
	for text, want := range map[string]bool{
		"": true, " \t": true, "type=model": true, "type=other": false, "type=model load<3": true, "load<2.5": false, "load<=2.5": true, "load>2": true,
		"load>=3": false, "load==2.50": true, "load=2.50": false, "load!=2.5": false, "load!=3": true, "zone!=3": false, "\n type=model \n load>1 ": true,
		"zone=x|a": true, `zone=x|"b c"`: true, "zone=x|y": false, "zone=a zone=b": false, `zone=a zone="b c"`: true, "empty=": true, `empty=x|""`: true,
		`"o\"d|d"="|"`: true, "url=x?y=z": true, "url=x?y=z|w": true, `type="mo\x64el"`: true, "none=": false, "none<3": false, "none=a|b": false,
	} {
		p := try.Get(Parse(text))(t, "%q", text)
		try.Equal(t, Matches(r, p), want, "%q", text)
		again, err := ParsePattern(p.Wire())
		if err != nil || !again.Equal(p) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{
		"type", "=x", "type =x", "load <3", "load<", "load<x", "load<1|2", "load!=a", "load==a", "zone=a|", "zone=|a", "zone=a||b", `zone="a`, `zone=a"b"`, `zone="a"b`,
		`zone="\q"`, `"zone`, "a|b=c", "!a=b", "load=>3x y", "rocl.context=a|b", strings.Repeat("x", MaxName+1) + "=", "\xff=a",
		strings.Repeat("n<1 ", maxConditions+1), "n=" + strings.Repeat("x|", maxValues) + "x", "n=a|" + strings.Repeat("x", maxOneOf),
	} {
		_, err := Parse(text)
		if !errors.Is(err, ErrCondition) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrEmptyName) && !errors.Is(err, ErrBadName) || len(err.Error()) > 2000 {
			t.Errorf("%.100q: %v", text, err)
		}
	}
}

// Alternatives are looked for without an allocation, and belong to patterns alone.
func TestOneOf(t *testing.T) {
	p, r := new(List), new(List)
	try.OK(t, p.OneOf("zone", "a", "", "b, c"))
	try.OK(t, p.Want("load"))
	try.Equal(t, p.String(), `{zone=a||"b, c", load=?}`)
	try.Fails(CheckUser(p))(t, ErrCondition)
	_ = r.AddString("zone", "x")
	_ = r.AddString("zone", "b, c")
	if n := testing.AllocsPerRun(100, func() { Matches(r, p) }); n > 0 || !Matches(r, p) || !Meets(GID{}, r, p) {
		t.Error(n, "allocations, or no match")
	}
	for _, operand := range []string{"", "\x05\x00\x00\x00a", "\x01\x00\x00\x00ax", strings.Repeat("\x00", 4*(maxValues+1))} {
		var bad List
		_ = appendAttr(&bad, "zone", operand, condition|uint32(opOneOf)<<24|uint32(len(operand)))
		try.Fails(ParsePattern(bad.Wire()))(t, ErrMalformed, "%q", operand)
	}
}

// text returns a text of which Parse makes the pattern l.
func text(l *List) string {
	var b strings.Builder
	for a := range each(l.Wire()) {
		b.WriteString(strconv.Quote(string(a.name)))
		switch {
		case a.op.compares():
			sign := a.op.String()
			if a.op == Eq {
				sign = "=="
			}
			fmt.Fprintf(&b, "%s%q ", sign, a.value)
		case a.op == opOneOf:
			sep := "="
			for v, rest, ok := cutValue(a.value); ok; v, rest, ok = cutValue(rest) {
				fmt.Fprintf(&b, "%s%q", sep, v)
				sep = "|"
			}
			b.WriteByte(' ')
		default:
			fmt.Fprintf(&b, "=%q ", a.value)
		}
	}
	return b.String()
}

// A text is refused, or gives a pattern that another text with quotes gives too.
func FuzzParseText(f *testing.F) {
	for _, s := range []string{"type=model load<3 zone=a|b", `name="two words" n!=-1.5e3`, `"o\"d"=|`, "a=b=c d>=1 e==2", "x=\x00 \xff=y"} {
		f.Add(s)
	}
	r, _ := NewPattern(Attrs{"n": "17", "type": "model", "load": "0.25", "zone": "b"})
	f.Fuzz(func(t *testing.T, s string) {
		l, err := Parse(s)
		if err != nil {
			if !errors.Is(err, ErrCondition) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrEmptyName) && !errors.Is(err, ErrBadName) {
				t.Fatal(err)
			}
			return
		}
		if again, err := ParsePattern(l.Wire()); err != nil || !again.Equal(l) {
			t.Fatal("the pattern is malformed:", err)
		}
		if again, err := Parse(text(l)); err != nil || !again.Equal(l) {
			t.Fatalf("%q gives %v, and %q gives %v: %v", s, l, text(l), again, err)
		}
		Matches(r, l)
	})
}
