// SPDX-License-Identifier: Apache-2.0

// Package index is the inverted index of the demonstration: it maps a word to the files that
// contain it.
//
// A word is a maximal run of ASCII letters, digits and underscores; case does not matter. A file
// with a NUL byte is not text and has no words. These are the rules of grep -Iiw in the C locale.
package index

import "bytes"

// class maps a byte to its lower-case form if it belongs to a word, else to 0.
var class = func() (c [256]byte) {
	for b := range 256 {
		switch ch := byte(b); {
		case ch >= 'a' && ch <= 'z', ch >= '0' && ch <= '9', ch == '_':
			c[b] = ch
		case ch >= 'A' && ch <= 'Z':
			c[b] = ch + 'a' - 'A'
		}
	}
	return c
}()

// IsWord reports whether w is one word.
func IsWord(w string) bool {
	for i := range len(w) {
		if class[w[i]] == 0 {
			return false
		}
	}
	return w != ""
}

// fold returns w in the form in which it is indexed.
func fold(w string) string {
	b := make([]byte, len(w))
	for i := range len(w) {
		b[i] = class[w[i]]
	}
	return string(b)
}

// An Index holds the words of committed files. The zero Index is empty. One goroutine at a time may
// use it.
type Index struct {
	ids   map[string]uint32 // numbers of words
	posts [][]uint32        // by word: the numbers of the committed files that contain it
	names []string          // of the committed files
	seen  []uint64          // by word: the number of the last call of Words that met it
	calls uint64
}

// longest limits the length of a word that is indexed. No argument of a command can be longer
// (execve(2)).
const longest = 128 << 10

// Words returns the words of a file, each once, and whether the file is text.
func (x *Index) Words(file []byte) (words []uint32, isText bool) {
	if bytes.IndexByte(file, 0) >= 0 {
		return nil, false
	}
	x.calls++
	var word []byte
	for _, b := range file {
		if c := class[b]; c != 0 {
			word = append(word, c)
		} else if len(word) > 0 {
			words, word = x.meet(words, word), word[:0]
		}
	}
	if len(word) > 0 {
		words = x.meet(words, word)
	}
	return words, true
}

// meet adds the number of a word to words, unless the file has had the word before.
func (x *Index) meet(words []uint32, word []byte) []uint32 {
	if len(word) > longest {
		return words
	}
	id, ok := x.ids[string(word)]
	if !ok {
		if x.ids == nil {
			x.ids = map[string]uint32{}
		}
		id = uint32(len(x.posts))
		x.ids[string(word)] = id
		x.posts, x.seen = append(x.posts, nil), append(x.seen, 0)
	}
	if x.seen[id] == x.calls {
		return words
	}
	x.seen[id] = x.calls
	return append(words, id)
}

// Commit adds a file, of which Words has returned the words.
func (x *Index) Commit(name string, words []uint32) {
	file := uint32(len(x.names))
	x.names = append(x.names, name)
	for _, w := range words {
		x.posts[w] = append(x.posts[w], file)
	}
}

// Files returns the names of the committed files that contain the word, in the order of their
// commits.
func (x *Index) Files(word string) []string {
	id, ok := x.ids[fold(word)]
	if !ok {
		return nil
	}
	names := make([]string, 0, len(x.posts[id]))
	for _, file := range x.posts[id] {
		names = append(names, x.names[file])
	}
	return names
}

// Len returns the number of different words that were met.
func (x *Index) Len() int { return len(x.posts) }
