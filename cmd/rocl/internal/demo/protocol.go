// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/binary"
	"errors"
)

// Attributes by which the processes of one run know each other.
const (
	attrRun  = "demo"
	attrRole = "role"
)

// Tags of the messages between them. Bodies are JSON but for tagContent.
const (
	tagUnit    = 1 + iota // coordinator to crawler: unit
	tagSent               // crawler to coordinator: sent
	tagContent            // crawler to indexer: part of a file
	tagEnd                // crawler to indexer: end
	tagIndexed            // indexer to coordinator: indexed
	tagAsk                // coordinator to front end, front end to indexers: ask, a request; the reply is told
)

// unit is a share of the files, crawled by one and indexed by one. Attempt
// tells a repeated unit from its predecessor.
type unit struct {
	ID      uint32
	Attempt uint32
	Indexer string   // identifier
	Paths   [][]byte // not strings: JSON would mend what is not UTF-8
}

// sent says that a crawler is through with a unit. Err is set if the indexer
// could not be reached.
type sent struct {
	ID, Attempt uint32
	Messages    uint64
	Err         string
}

// end closes a unit towards its indexer.
type end struct {
	ID, Attempt uint32
	Coordinator string
	Paths       [][]byte // of all its files
	Skipped     []string // unreadable, with the reason
}

// indexed says that a unit is in the index.
type indexed struct {
	ID, Attempt uint32
	Files       int // text files
	Binary      int // others
	Bytes       uint64
	Skipped     []string
}

// ask is the question for a word; told the answer.
type ask struct {
	Word string
}

// names is how many of the files found are named.
const names = 3

type told struct {
	Matches  int
	Names    [][]byte // of some
	Indexers int
	Words    int
	Err      string
}

// A content message is a header and the bytes of part of a file:
//
//	unit u32, attempt u32, file u32 (within the unit), flags u8
const (
	contentHead = 13
	flagFirst   = 1
	flagLast    = 2
	flagFailed  = 4 // the file could not be read to its end: forget it
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
		return nil, errors.New("demo: truncated content")
	}
	c.unit = binary.LittleEndian.Uint32(b)
	c.attempt = binary.LittleEndian.Uint32(b[4:])
	c.file = binary.LittleEndian.Uint32(b[8:])
	c.flags = b[12]
	return b[contentHead:], nil
}
