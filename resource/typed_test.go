// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/sentinel"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

type place struct {
	Zone string `rocl:"zone"`
}

type word string

// every has a field of each kind.
type every struct {
	place
	Text   word          `rocl:"text"`
	Bytes  []byte        `rocl:"bytes"`
	Yes    bool          `rocl:"yes"`
	Small  int8          `rocl:"small"`
	Large  uint64        `rocl:"large"`
	Half   float32       `rocl:"half"`
	Double float64       `rocl:"double"`
	Wait   time.Duration `rocl:"wait"`
	At     time.Time     `rocl:"at"`
	ID     GID           `rocl:"id"`
	Big    *big.Int      `rocl:"big"`
	Cores  *uint16       `rocl:"cores"`
	None   *int          `rocl:"none"`
	Empty  string        `rocl:"empty,omitempty"`
	Many   []int         `rocl:"many"`
	Times  []*time.Time  `rocl:"times"`
	Parts  [][]byte      `rocl:"parts"`
	Not    map[string]int
	Never  func() `rocl:"-"`
}

// Promise (Resources): A struct becomes attributes, and attributes become a struct again. What does
// not fit is refused, and then the struct is unchanged.
func TestTyped(t *testing.T) {
	cores, now := uint16(8), time.Unix(1e9, 5).UTC()
	v := every{place: place{Zone: "a"}, Text: "hello, world", Bytes: []byte{0, 255}, Yes: true, Small: -128, Large: math.MaxUint64, Half: 0.1, Double: -1e300, Wait: time.Second,
		At: now, ID: MakeGID(1, 2, 3), Big: big.NewInt(7), Cores: &cores, Many: []int{3, 1, 2}, Times: []*time.Time{&now, nil}, Parts: [][]byte{{}, {1}}}
	l := try.Get(AttrsOf(&v))(t)
	if s := l.String(); !strings.HasPrefix(s, `{zone=a, text="hello, world", bytes=`) || !strings.Contains(s, "half=0.1, double=-1e+300, wait=1000000000, ") ||
		strings.Contains(s, "none") || strings.Contains(s, "empty") {
		t.Error(s)
	}
	var again every
	try.OK(t, l.Into(&again))
	v.Times = v.Times[:1]
	if !reflect.DeepEqual(v, again) {
		t.Errorf("%+v became %+v", v, again)
	}
	l.Wire()[len(l.Wire())-1] = 9
	try.Equal(t, again.Parts[1][0], 1, "it refers to the list")

	kept := every{Text: "kept", Many: []int{7}}
	some, _ := NewPattern(Attrs{"zone": "b"})
	try.OK(t, some.Into(&kept))
	if kept.Zone != "b" || kept.Text != "kept" || len(kept.Many) != 1 {
		t.Errorf("%+v", kept)
	}
	for name, value := range map[string]string{
		"small": "128", "large": "-1", "half": "1e39", "double": "NaN", "yes": "maybe", "at": "noon", "id": "x", "cores": "65536", "many": "", "wait": strings.Repeat("9", 1<<20),
	} {
		bad, _ := NewPattern(Attrs{"zone": "c", name: value})
		try.Fails(bad.Into(&kept))(t, sentinel.ErrValue, name)
		if err := bad.Into(&kept); !strings.Contains(err.Error(), name) || len(err.Error()) > 1000 || kept.Zone != "b" {
			t.Errorf("%s: zone is %s: %.2000v", name, kept.Zone, err)
		}
	}
}

// Types that are no attributes are refused.
func TestTypedRefuses(t *testing.T) {
	for _, v := range []any{
		nil, 1, "x", (*every)(nil), struct{}{}, struct{ A int }{}, struct {
			A chan int `rocl:"a"`
		}{}, struct {
			A map[string]string `rocl:"a"`
		}{}, struct {
			A [][]int `rocl:"a"`
		}{[][]int{{1}}}, struct {
			a int `rocl:"a"`
		}{}, struct {
			A int `rocl:"a,omit"`
		}{}, struct {
			A int `rocl:""`
		}{}, struct {
			A, B int `rocl:"a"`
		}{}, struct {
			A float64 `rocl:"a"`
		}{math.NaN()}, struct {
			A struct{ B int } `rocl:"a"`
		}{},
	} {
		try.Fails(AttrsOf(v))(t, sentinel.ErrValue, "%T", v)
	}
	l, _ := NewPattern(Attrs{"a": "1"})
	for _, v := range []any{nil, 1, every{}, (*every)(nil), new(int), &struct{ A int }{}, &struct {
		A chan int `rocl:"a"`
	}{}, &struct {
		A [][]int `rocl:"a"`
	}{}, &struct {
		A **int `rocl:"b"`
		B any   `rocl:"a"`
	}{}} {
		try.Fails(l.Into(v))(t, sentinel.ErrValue, "%T", v)
	}
	var long struct {
		A string `rocl:"a"`
	}
	long.A = strings.Repeat("x", MaxValue+1)
	try.Fails(AttrsOf(long))(t, ErrTooLarge)
}
