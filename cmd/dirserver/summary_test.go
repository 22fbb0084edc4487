// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A daemon sums up its node with a context of its own, which it has only while somebody asks.
func TestSummary(t *testing.T) {
	sock := filepath.Join(short(t), "sock")
	_, stop := started(t, "--socket", sock)
	defer stop()
	c := try.Get(rocl.Open(eventually.Context(t), rocl.WithSocket(sock), rocl.JoinOnly()))(t)
	defer c.Close()
	for range 2 {
		got := 0
		for s, err := range c.Summaries(eventually.Context(t)) {
			try.OK(t, err)
			if got++; s.Node != c.ID().Node() || len(s.Contexts) != 1 || s.Contexts[0].Context != c.ID() {
				t.Errorf("the summary is %+v", s)
			}
		}
		try.Equal(t, got, 1, "summaries")
	}
}
