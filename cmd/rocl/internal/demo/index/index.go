// SPDX-License-Identifier: Apache-2.0

// Package index is the inverted index of the demonstration: it maps a word to the files that
// contain it.
//
// A word is a maximal run of ASCII letters, digits and underscores; case does not matter. A file
// with a NUL byte is not text and has no words. These are the rules of grep -Iiw in the C locale.
package index

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
// use it and its Files.
type Index struct {
	ids   map[string]uint32 // numbers of words
	posts [][]uint32        // by word: the numbers of the committed files that contain it
	names []string          // of the committed files
	seen  []uint64          // by word: the stamp of the last file in which it was met
	next  uint64
}

// A File is one file that is being read into an index, in pieces of any size. [Index.Begin] makes
// it.
type File struct {
	x      *Index
	stamp  uint64
	words  []uint32
	part   []byte // the beginning of a word that may go on in the next piece
	long   bool   // that word is longer than longest
	binary bool
}

// longest limits the length of a word that is indexed. No argument of a command can be longer
// (execve(2)), and the memory for a file that is one endless word must be limited.
const longest = 128 << 10

// Begin starts a file. Several files may be read alternately.
func (x *Index) Begin() *File {
	if x.ids == nil {
		x.ids = map[string]uint32{}
	}
	x.next++
	return &File{x: x, stamp: x.next}
}

// Write adds the next piece of the file. It never fails.
func (f *File) Write(p []byte) (int, error) {
	if f.binary {
		return len(p), nil
	}
	for _, b := range p {
		if c := class[b]; c != 0 {
			if len(f.part) < longest {
				f.part = append(f.part, c)
			} else {
				f.long = true
			}
			continue
		}
		if b == 0 {
			f.binary, f.words, f.part = true, nil, nil
			return len(p), nil
		}
		if len(f.part) > 0 {
			f.word()
		}
	}
	return len(p), nil
}

func (f *File) word() {
	if f.long {
		f.part, f.long = f.part[:0], false
		return
	}
	x := f.x
	id, ok := x.ids[string(f.part)]
	if !ok {
		id = uint32(len(x.posts))
		x.ids[string(f.part)] = id
		x.posts = append(x.posts, nil)
		x.seen = append(x.seen, 0)
	}
	f.part = f.part[:0]
	if x.seen[id] != f.stamp {
		// Two files that are read alternately may both change the stamp. Then the word is noted
		// more than once, and End removes the duplicates.
		x.seen[id] = f.stamp
		f.words = append(f.words, id)
	}
}

// End ends the file. It returns the words of the file, each once, and whether the file is text.
func (f *File) End() (words []uint32, text bool) {
	if len(f.part) > 0 {
		f.word()
	}
	if f.binary {
		return nil, false
	}
	f.x.next++
	words = f.words[:0]
	for _, w := range f.words {
		if f.x.seen[w] != f.x.next {
			f.x.seen[w] = f.x.next
			words = append(words, w)
		}
	}
	return words, true
}

// Commit adds a file whose End has returned words.
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

// Words returns the number of different words that were met.
func (x *Index) Words() int { return len(x.posts) }
