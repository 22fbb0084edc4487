// SPDX-License-Identifier: Apache-2.0

package display

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"":                   "",
		"plain, é 日本 ❤ = \\": "plain, é 日本 ❤ = \\",
		"\x1b[2J":            `"\x1b[2J"`,
		"\u009b31m":          `"\u009b31m"`, // CSI as one character of C1
		"\x9b31m":            `"\x9b31m"`,
		"a\x7f":              `"a\x7f"`,
		"a\tb\r\n":           `"a\tb\r\n"`,
		"nul\x00":            `"nul\x00"`,
		"a\u202eb":           `"a\u202eb"`,
		"a\u2066b\u2069":     `"a\u2066b\u2069"`,
		"a\u200bb\ufeff":     `"a\u200bb\ufeff"`,
		"\u3164":             `"\u3164"`, // Hangul filler: an invisible letter
		"tag\U000e0041":      `"tag\U000e0041"`,
		"\u00a0":             `"\u00a0"`,
		"\u2028":             `"\u2028"`,
		"\ufffd":             "\ufffd",
		"\xff":               `"\xff"`,
		"say \"x\"\\\a":      `"say \"x\"\\\a"`,
	} {
		try.Equal(t, Quote(in), want, "%q shown", in)
	}
	try.Equal(t, QuoteIf(true, "a"), `"a"`)
}

func TestLine(t *testing.T) {
	for in, want := range map[string]string{"a\tb": "a\tb", "a\tb\n": `"a\tb\n"`, "\x1b]0;x\a": `"\x1b]0;x\a"`, `"a"`: `"a"`, "\xff": `"\xff"`} {
		try.Equal(t, Line([]byte(in)), want, "%q shown", in)
	}
}

func TestEscape(t *testing.T) {
	try.Equal(t, Escape("no \x1b[2Jsuch \"thing\"\n\u200b\u3164\xff"), `no \x1b[2Jsuch "thing"\n\u200b\u3164\xff`)
	try.Equal(t, Error(errors.New("one\ntwo\x1b\n")), "one\n  two\\x1b\n  ")
}

func TestJSON(t *testing.T) {
	const text = "a\x1b\u009b\x7f\u202e\u3164\U000e0041é\n"
	b := try.Get(json.Marshal(text))(t)
	safe := JSON(append(b, '\n'))
	for _, r := range string(safe) {
		if !IsSafe(r) && r != '\n' {
			t.Errorf("%q has %q", safe, r)
		}
	}
	var back string
	if err := json.Unmarshal(safe, &back); err != nil || back != text {
		t.Errorf("%s means %q, want %q (%v)", safe, back, text, err)
	}
	if plain := []byte("{\"a\":\"é\"}\n"); !bytes.Equal(JSON(plain), plain) {
		t.Errorf("%s is not as it was", plain)
	}
}

func TestWriters(t *testing.T) {
	var b bytes.Buffer
	for _, in := range []string{"a\n", "b\x1b\u200b\n", "\"\\n\"\n"} {
		try.Gives(Text(&b).Write([]byte(in)))(t, len(in), "%q", in)
	}
	if want := "a\nb\\x1b\\u200b\n\"\\n\"\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	b.Reset()
	if n, err := JSONLines(&b).Write([]byte("\"\u202e\"\n")); n != 6 || err != nil || b.String() != "\"\\u202e\"\n" {
		t.Errorf("%d, %v, %q", n, err, b.String())
	}
}

// The results have only safe characters, whatever the text is.
func FuzzSafe(f *testing.F) {
	f.Add("\x1b[2J\u009b\u202e\xff\U000e0041")
	f.Fuzz(func(t *testing.T, s string) {
		for _, out := range []string{Quote(s), Escape(s), strings.ReplaceAll(Line([]byte(s)), "\t", "")} {
			if !isSafe(out) {
				t.Errorf("%q became %q", s, out)
			}
		}
	})
}

// Clean limits numbers, texts and times wherever they stand, and keeps what tells things apart.
func TestClean(t *testing.T) {
	type part struct {
		Count  int
		Age    time.Duration
		Number uint64
		At     time.Time
		hidden int
	}
	type all struct {
		Name  string
		Bytes uint64
		Tag   uint64
		Parts []part
		Cut   map[string]int
		Of    *int
	}
	at, huge := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), uint64(math.MaxUint64)
	got := all{"\x1b" + strings.Repeat("é", MaxText), huge, huge,
		[]part{{-1, -1, huge, time.Unix(1<<50, 0), -1}, {math.MaxInt, math.MaxInt64, 0, at, 0}}, map[string]int{"\a": -5}, nil}
	Clean(&got)
	want := all{`\x1b` + strings.Repeat("é", MaxText/2-1) + "…", MaxNumber, huge,
		[]part{{0, 0, huge, time.Time{}, -1}, {min(math.MaxInt, MaxNumber), MaxNumber, 0, at, 0}}, map[string]int{`\a`: 0}, nil}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n%+v, want\n%+v", got, want)
	}
	long := make([]int, MaxEntries+1)
	if Clean(&long); len(long) != MaxEntries {
		t.Errorf("%d entries", len(long))
	}
}

// A duration has three digits, and no part of a second if it is long.
func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", 1234: "1.23µs", 12345678: "12.3ms", 12345 * time.Millisecond: "12.3s", 3755*time.Second + 1: "1h2m35s"} {
		try.Equal(t, Duration(d), want)
	}
}
