// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/binary"
	"errors"
)

// The attributes by which the processes of one run find each other.
const (
	attrRun  = "demo"
	attrRole = "role"
)

// The tags of the messages between the processes. Payloads are JSON, except that of tagContent.
const (
	tagUnit    = 1 + iota // coordinator to crawler: unit
	tagSent               // crawler to coordinator: sent
	tagContent            // crawler to indexer: part of a file
	tagEnd                // crawler to indexer: end
	tagIndexed            // indexer to coordinator: indexed
	tagGone               // a monitor to the coordinator: a process has ended
	tagAsk                // coordinator to front end, front end to indexers: ask, as a request; the reply is an answer
)

// unit is a share of the files. One crawler reads it and one indexer indexes it. Attempt
// distinguishes a repeated unit from the earlier attempts.
type unit struct {
	ID      uint32
	Attempt uint32
	Indexer string   // identifier
	Paths   [][]byte // not strings, because JSON would change text that is not UTF-8
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

// ask is the question for a word. The reply is an answer.
type ask struct {
	Word string
}

// names limits how many of the files found are named.
const names = 3

type answer struct {
	Matches  int
	Names    [][]byte // of the first files
	Indexers int
	Words    int
	Err      string
}

// A content message is a header and the bytes of a part of a file:
//
//	unit u32, attempt u32, file u32 (within the unit), flags u8
const (
	contentHead = 13
	flagFirst   = 1
	flagLast    = 2
	flagFailed  = 4 // the file could not be read to its end: drop it
)

type content struct {
	unit, attempt, file uint32
	flags               byte
}

func (c *content) put(b []byte) {
	binary.LittleEndian.PutUint32(b, c.unit)
	binary.LittleEndian.PutUint32(b[4:], c.attempt)
	binary.LittleEndian.PutUint32(b[8:], c.file)
	b[12] = c.flags
}

func (c *content) parse(b []byte) ([]byte, error) {
	if len(b) < contentHead {
		return nil, errors.New("demo: the content is truncated")
	}
	c.unit = binary.LittleEndian.Uint32(b)
	c.attempt = binary.LittleEndian.Uint32(b[4:])
	c.file = binary.LittleEndian.Uint32(b[8:])
	c.flags = b[12]
	return b[contentHead:], nil
}
