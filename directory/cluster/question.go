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

// Kinds of questions.
const (
	kindFind = 1 + iota
	kindLookup
	kindNext // the next answer of several; the identifier's bytes hold cursor and step
	kindRoll // the members that are known; no identifier, no pattern: see roll.go
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

// patternIn returns the pattern of the question q, which is its end.
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
