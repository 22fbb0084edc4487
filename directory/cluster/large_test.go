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
	"github.com/rocl-go/rocl/internal/eventually"
	"github.com/rocl-go/rocl/resource"
)

// Lists of the largest size are found, listed and looked up, by values of the largest size. What no
// member has is denied for certain.
func TestLarge(t *testing.T) {
	// A hop is far shorter than such a list takes.
	hop := func(c *Config) { c.Hop, c.Patience = 5*time.Millisecond, 30*time.Second }
	a := member(t, 1, hop)
	b, c := member(t, 2, hop, a), member(t, 3, hop, a)
	together(t, a, b, c)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	x, y := strings.Repeat("x", resource.MaxValue), strings.Repeat("y", 1<<20)
	id := put(t, b, 1, resource.Attrs{"name": "huge", "x": x, "y": y})
	for what, p := range map[string]*resource.List{
		"a large answer":              pattern(resource.Match{"name": "huge"}),
		"a large question":            pattern(resource.Match{"x": x}, "name"),
		"a large question and answer": pattern(resource.Match{"x": x}, "y"),
	} {
		check := func(how string, r *resource.Record, err error) {
			t.Helper()
			if err != nil || r.ID != id || r.Attrs.GetString("name") != "huge" && r.Attrs.GetString("y") != y {
				t.Fatalf("%s, by %s: %v: %v", what, how, r.ID, err)
			}
		}
		r, err := a.Find(ctx, p)
		check("find", &r, err)
		n := 0
		var cov directory.Coverage
		for r, err := range a.All(ctx, p, &cov) {
			check("all", &r, err)
			n++
		}
		if n != 1 || cov.Covered != 2 || len(cov.Failed) > 0 {
			t.Errorf("%s: %d answers, %+v", what, n, cov)
		}
	}
	if r, err := c.Lookup(ctx, id, pattern(nil)); err != nil || r.Attrs.GetString("x") != x {
		t.Errorf("by identifier: %v: %v", r.ID, err)
	}
	for _, absent := range []resource.Match{{"x": y}, {"x": x, "name": "none"}} {
		if err := second(a.Find(ctx, pattern(absent))); !errors.Is(err, directory.ErrNotFound) {
			t.Errorf("what nobody holds: %v", err)
		}
	}
	if n := a.answers.cursors.count(); n > 0 {
		t.Errorf("%d cursors", n)
	}
}

// A large question waits for a member that is away, and ends with its context.
func TestLargeAway(t *testing.T) {
	a := member(t, 1, func(c *Config) { c.Patience = 20 * time.Second })
	b := member(t, 2, nil, a)
	together(t, a, b)
	big := strings.Repeat("x", 1<<20)
	b.HandOver()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	if err := second(a.Find(ctx, pattern(resource.Match{"big": big}))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("found, though nobody is there: %v", err)
	}
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
	if err := <-found; err != nil {
		t.Error(err)
	}
}

// Invalid lengths and questions end their stream, and nothing else.
func TestLargeJunk(t *testing.T) {
	a := member(t, 1, nil)
	b := member(t, 2, nil, a)
	together(t, a, b)
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
	if _, err := readLarge(bytes.NewReader([]byte{255, 255, 0, 0, 1})); err == nil {
		t.Error("a length that lies is believed")
	}
}
