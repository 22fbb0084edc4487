// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// Protocol: Questions, streams and watches
//
// A question is kind u8 (1 find, 2 lookup, 3 next, 4 roll), an identifier in all but find (next:
// cursor u64, step u64, big-endian), and the pattern. The answer to find is that of an ask, of next
// a record, of roll the number u48 and the lowest 16 bits of the epoch of each known member. A
// member asks for the roll if the checksum with a "no" differs from its own (XXH64 of each number
// u64, combined by exclusive or; 1 in place of 0), exchanges all with members it has not heard of
// in that life, and asks those too.
//
// A message to the directory begins with 1 to 4: a packet; 8, cursor u64 big-endian: it is done
// with; 12, an entry of kind 2: a member that the sender of a 14 met lately; 13: a 14 or 15 was
// received; 14: another server takes my place, every 20 ms until 13; 15: I leave, likewise for 150
// ms; 16 to 18: [filters](#searches).
//
// A stream that begins with `W` has 32 bytes: `W`, 7 zeros, caller u64, its epoch u64, the callee's
// epoch u64. Messages follow as [at the socket](#the-directory), kind 5: `watch` and `stop` with an
// id of the caller, `event` or `error` of the callee with it, and `beat` of both, every second. An
// end closes after 4 s without one. With `Q`, a question follows, its length u32 before it, and the
// answer is 0, or 1, length u32 and the answer: for what has more than 64 KiB, for which a packet
// has the identifier alone. A question of kind 5 (sum) has nothing else, and its answer is that of
// `sum` at the socket.

// Kinds of questions.
const (
	kindFind = 1 + iota
	kindLookup
	kindNext // the next answer of several; the identifier's bytes hold cursor and step
	kindRoll // the members that are known; no identifier, no pattern: see roll.go
	kindSum  // the summary of the node; only by a stream: see sum.go
)

// question returns a new question: see appendQuestion.
func question(kind byte, id resource.GID, pattern *resource.List) []byte {
	return appendQuestion(nil, kind, id, pattern)
}

// appendQuestion appends a question to b: its kind, the identifier unless it is a find, and the
// pattern.
func appendQuestion(b []byte, kind byte, id resource.GID, pattern *resource.List) []byte {
	b = append(slices.Grow(b, 17+len(pattern.Wire())), kind)
	if kind != kindFind {
		var of [16]byte
		resource.PutGID(of[:], id)
		b = append(b, of[:]...)
	}
	return append(b, pattern.Wire()...)
}

// patternIn returns the pattern, the last part of the question q.
func patternIn(q []byte) []byte {
	switch {
	case len(q) > 0 && q[0] == kindFind:
		return q[1:]
	case len(q) > 17:
		return q[17:]
	}
	return nil
}

// parseQuestion returns the pattern of the question q, and reports whether q is a question that
// appendQuestion makes.
func parseQuestion(q []byte) (pattern resource.List, ok bool) {
	if len(q) == 0 || q[0] < kindFind || q[0] > kindRoll {
		return pattern, false
	}
	pattern, err := resource.ParsePattern(patternIn(q))
	return pattern, err == nil
}

// parseAnswer reads an answer. It returns errForgotten for an empty one, and the identifier alone
// for a stub.
func parseAnswer(b []byte) (database.Record, error) {
	if len(b) == 0 {
		return database.Record{}, errForgotten
	}
	if len(b) == stubLen { // enough for a trace; other callers ask again by a stream
		return database.Record{ID: resource.GetGID(b)}, nil
	}
	a, err := wire.ViewRecord(b)
	if err != nil {
		err = fmt.Errorf("%w: %w", search.ErrMalformed, err)
	}
	return a, err
}
