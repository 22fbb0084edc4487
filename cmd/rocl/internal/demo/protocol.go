// SPDX-License-Identifier: Apache-2.0

package demo

// The attributes by which the processes of one run find each other.
const (
	attrRun  = "demo"
	attrRole = "role"
)

// The tags of the messages between the processes. Payloads are values, except that of a file.
const (
	tagUnit    = 1 + iota // coordinator to crawler: unit
	tagSent               // crawler to coordinator: sent
	tagFile               // crawler to indexer: a file; the tag is a fileTag
	tagEnd                // crawler to indexer: end
	tagIndexed            // indexer to coordinator: indexed
	tagGone               // a monitor to the coordinator: a process has ended
	tagAsk                // coordinator to front end, front end to indexers: a word, as a request; the reply is an answer
)

// unit is a share of the files. One crawler reads it and one indexer indexes it. Attempt
// distinguishes a repeated unit from the earlier attempts.
type unit struct {
	ID      uint32
	Attempt uint32
	Indexer string   // identifier
	Paths   [][]byte // not strings, which are UTF-8
}

// sent reports that a crawler has finished with a unit. Err is set if the indexer could not be
// reached.
type sent struct {
	ID, Attempt uint32
	Messages    uint64
	Err         string
}

// end tells the indexer that a unit is complete.
type end struct {
	ID, Attempt uint32
	Coordinator string
	Paths       [][]byte // paths of all files of the unit
	Skipped     []string // unreadable files, with the reason
}

// indexed reports that a unit is in the index.
type indexed struct {
	ID, Attempt uint32
	Files       int // text files
	Binary      int // other files
	Bytes       uint64
	Skipped     []string
}

// names limits how many of the files found are named.
const names = 3

// An answer says which files have the word.
type answer struct {
	Matches  int
	Names    [][]byte // of the first files
	Indexers int
	Words    int
	Err      string
}

// A fileTag is the tag of a message with a file: where the file belongs, above tagFile.
type fileTag struct {
	unit    uint32
	attempt uint8 // the lower bits of that of the unit
	file    uint16
}

func (f fileTag) tag() uint64 {
	return tagFile | uint64(f.file)<<8 | uint64(f.attempt)<<24 | uint64(f.unit)<<32
}

func parseTag(t uint64) fileTag { return fileTag{uint32(t >> 32), uint8(t >> 24), uint16(t >> 8)} }
