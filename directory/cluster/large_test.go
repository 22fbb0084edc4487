// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// Lists of the largest size are found, listed and looked up, by values of the largest size. What no
// member has is denied for certain.
//
// Promise (Cluster searches): Attribute lists of the largest size are found and listed from every
// node. See also TestLargestList.
func TestLarge(t *testing.T) {
	// A hop is far shorter than such a list takes. On a loaded machine, a member that works on one
	// may be late for gossip, and need more than one attempt.
	hop := func(c *Config) {
		unhurried(c)
		c.Hop, c.Patience = 5*time.Millisecond, eventually.Timeout
	}
	a := member(t, 1, hop)
	b, d := member(t, 2, hop, a), member(t, 3, hop, a)
	together(t, a, b, d)
	ctx := eventually.Context(t)
	longest := resource.MaxValue
	if short.Form(t) { // with the race detector, a value of the largest size takes minutes
		longest = 2 << 20
	}
	x, y := strings.Repeat("x", longest), strings.Repeat("y", 1<<20)
	whole := resource.Attrs{"name": "huge", "x": x, "y": y, "rest": ""}
	if !short.Form(t) {
		rest := resource.MaxList - len(pattern(whole).Wire())
		whole["rest"] = strings.Repeat("z", rest)
		for len(pattern(whole).Wire()) > resource.MaxList { // the length of a long value takes more bytes
			rest--
			whole["rest"] = strings.Repeat("z", rest)
		}
		if n := len(pattern(whole).Wire()); n < resource.MaxList-16 {
			t.Fatalf("the list has %d bytes, want about %d", n, resource.MaxList)
		}
	}
	id := put(t, b, 1, whole)
	for i := range uint32(5) {
		put(t, b, 10+i, resource.Attrs{"type": "several", "y": y})
	}
	for what, c := range map[string]struct {
		pattern *resource.List
		has     []string // attributes of the answer
	}{
		"a large answer":              {pattern(resource.Match{"name": "huge"}, "x"), []string{"name", "x"}},
		"a large question":            {pattern(resource.Match{"x": x}, "name"), []string{"name"}},
		"a large question and answer": {pattern(resource.Match{"x": x}, "y", "rest"), []string{"y", "rest"}},
	} {
		check := func(from *Cluster, how string, r *resource.Record, err error) {
			t.Helper()
			if err != nil || r.ID != id {
				t.Fatalf("%s, by %s of node %d: %v: %v", what, how, from.cfg.Node, r.ID, err)
			}
			for _, name := range c.has {
				if r.Attrs.GetString(name) != whole[name] {
					t.Errorf("%s, by %s of node %d: %s has %d bytes, or other ones", what, how, from.cfg.Node, name, len(r.Attrs.GetString(name)))
				}
			}
		}
		r, err := a.Find(ctx, c.pattern)
		check(a, "find", &r, err)
		n := 0
		var cov directory.Coverage
		for r, err := range d.All(ctx, c.pattern, &cov) {
			check(d, "all", &r, err)
			n++
		}
		if n != 1 || cov.Covered != 2 || len(cov.Failed) > 0 {
			t.Errorf("%s: %d answers, %+v", what, n, cov)
		}
	}
	for _, from := range []*Cluster{a, d} {
		if r, err := from.Lookup(ctx, id, pattern(nil)); err != nil || r.ID != id || !bytes.Equal(r.Attrs.Wire(), pattern(whole).Wire()) {
			t.Errorf("by identifier, from node %d: %v: %v", from.cfg.Node, r.ID, err)
		}
	}
	for _, absent := range []resource.Match{{"x": y}, {"x": x, "name": "none"}} {
		try.Fails(a.Find(ctx, pattern(absent)))(t, directory.ErrNotFound, "what nobody holds")
	}
	n := 0
	for r, err := range d.All(ctx, pattern(resource.Match{"type": "several"}, "y"), new(directory.Coverage)) {
		if n++; err != nil || r.Attrs.GetString("y") != y {
			t.Errorf("the %dth of several: %v", n, err)
		}
	}
	try.Equal(t, n, 5, "resources listed")
	for _, c := range []*Cluster{a, b, d} {
		eventually.True(t, "no cursor is left", func() bool { return c.answers.cursors.count() == 0 })
	}
}

// A large question waits for a member that is away, and ends with its context.
func TestLargeAway(t *testing.T) { inMemory(t, testLargeAway) }

func testLargeAway(t *testing.T) {
	a, b := two(t, func(c *Config) { c.Patience = 20 * time.Second })
	big := strings.Repeat("x", 1<<20)
	b.HandOver()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	try.Fails(a.Find(ctx, pattern(resource.Match{"big": big})))(t, context.DeadlineExceeded, "found, though nobody is there")
	cancel()
	found := make(chan error, 1)
	go func() { found <- second(a.Find(t.Context(), pattern(resource.Match{"big": big}))) }()
	var asked, offered atomic.Bool
	b = anew(t, b, func(c *Config) {
		c.Sure = func() bool {
			asked.Store(true)
			return offered.Load()
		}
	}, a)
	eventually.True(t, "the question has come", asked.Load)
	put(t, b, 1, resource.Attrs{"big": big})
	offered.Store(true)
	try.Check(t, <-found)
}

// Invalid lengths and questions end their stream, and nothing else.
func TestLargeJunk(t *testing.T) {
	a, _ := two(t)
	for what, junk := range map[string][]byte{
		"a huge length":  binary.LittleEndian.AppendUint32(nil, mostStream+1),
		"no question":    {3, 0, 0, 0, 1, 2, 3},
		"an empty one":   {0, 0, 0, 0},
		"a later kind's": append([]byte{23, 0, 0, 0}, question(kindRoll+1, resource.GID{}, pattern(nil))...),
	} {
		near, far := net.Pipe()
		go func() { _ = a.answers.serve(far) }()
		_ = near.SetDeadline(time.Now().Add(60 * time.Second))
		_, _ = near.Write(junk)
		if said, err := io.ReadAll(near); len(said) > 0 || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: answered %x: %v", what, said, err)
		}
		near.Close()
	}
	try.Rejects(readLarge(bytes.NewReader([]byte{255, 255, 0, 0, 1}), mostStream))(t, "a length that lies is believed")
}
