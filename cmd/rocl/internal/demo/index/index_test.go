// SPDX-License-Identifier: Apache-2.0

package index

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
		for _, name := range []string{"first", "second"} {
			if words, ok := x.Words(file); ok {
				x.Commit(name, words)
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

// A word that no user can ask for is not indexed. The text behind it is.
func TestEndlessWord(t *testing.T) {
	var x Index
	word := bytes.Repeat([]byte("y"), longest)
	for name, file := range map[string][]byte{"endless": append(bytes.Clone(word), "y alpha"...), "longest": word} {
		words, _ := x.Words(file)
		x.Commit(name, words)
	}
	if a, b := x.Files("alpha"), x.Files(string(word)); !slices.Equal(a, []string{"endless"}) || !slices.Equal(b, []string{"longest"}) || x.Len() != 2 {
		t.Errorf("%q, %q, %d words", a, b, x.Len())
	}
}

func TestIsWord(t *testing.T) {
	for w, want := range map[string]bool{"": false, "a": true, "a-b": false, "Go_1": true, "é": false} {
		try.Equal(t, IsWord(w), want, "IsWord(%q)", w)
	}
}
