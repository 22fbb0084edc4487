package index

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// naive says what the rules say, with a regular expression.
func naive(file []byte, word string) bool {
	if bytes.IndexByte(file, 0) >= 0 {
		return false
	}
	for _, w := range regexp.MustCompile(`[A-Za-z0-9_]+`).FindAllString(string(file), -1) {
		if strings.EqualFold(w, word) {
			return true
		}
	}
	return false
}

func TestAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		file := rapid.SliceOf(rapid.SampledFrom([]byte("aAbB_1 .\n\xc3\xa9\x00"))).Draw(t, "file")
		if rapid.Bool().Draw(t, "text") {
			file = bytes.ReplaceAll(file, []byte{0}, []byte("a"))
		}
		var x Index
		other := x.Begin()
		f := x.Begin()
		for rest := file; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			f.Write(rest[:n])
			other.Write(rest[:n]) // side by side
			rest = rest[n:]
		}
		for _, f := range []*File{f, other} {
			if words, ok := f.End(); ok {
				x.Commit(words)
			}
		}
		for _, w := range []string{"a", "AB", "b_", "1", "aa", "A1"} {
			want := 0
			if naive(file, w) {
				want = 2
			}
			if got := x.Files(w); got != want {
				t.Fatalf("%q in %q: %d, want %d", w, file, got, want)
			}
		}
	})
}

func TestIsWord(t *testing.T) {
	for w, want := range map[string]bool{"": false, "a": true, "a-b": false, "Go_1": true, "é": false} {
		if IsWord(w) != want {
			t.Errorf("IsWord(%q) = %v", w, !want)
		}
	}
}
