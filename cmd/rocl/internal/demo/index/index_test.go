// SPDX-License-Identifier: Apache-2.0

package index

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// naive reports whether a file contains a word, by a regular expression.
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
			other.Write(rest[:n]) // alternately
			rest = rest[n:]
		}
		for i, f := range []*File{f, other} {
			if words, ok := f.End(); ok {
				x.Commit([]string{"first", "second"}[i], words)
			}
		}
		for _, w := range []string{"a", "AB", "b_", "1", "aa", "A1"} {
			var want []string
			if naive(file, w) {
				want = []string{"first", "second"}
			}
			if got := x.Files(w); !slices.Equal(got, want) {
				t.Fatalf("%q in %q: %q, want %q", w, file, got, want)
			}
		}
	})
}

// A file that is one endless word is not kept in memory, and is not indexed by the beginning of the
// word. The text behind the word counts.
func TestEndlessWord(t *testing.T) {
	var x Index
	f := x.Begin()
	piece := bytes.Repeat([]byte("y"), 1<<20)
	for range 100 {
		f.Write(piece)
	}
	f.Write([]byte(" alpha"))
	if cap(f.part) > 4*longest {
		t.Errorf("%d bytes are kept of a word", cap(f.part))
	}
	words, ok := f.End()
	if !ok {
		t.Error("not text")
	}
	x.Commit("endless", words)
	g := x.Begin()
	g.Write(piece[:longest])
	words, _ = g.End()
	x.Commit("longest", words)
	if got := x.Files("alpha"); !slices.Equal(got, []string{"endless"}) {
		t.Errorf("the word behind: %q", got)
	}
	if got := x.Files(string(piece[:longest])); !slices.Equal(got, []string{"longest"}) {
		t.Errorf("the longest word: %q", got)
	}
}

func TestIsWord(t *testing.T) {
	for w, want := range map[string]bool{"": false, "a": true, "a-b": false, "Go_1": true, "é": false} {
		if IsWord(w) != want {
			t.Errorf("IsWord(%q) = %v", w, !want)
		}
	}
}
