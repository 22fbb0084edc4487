// SPDX-License-Identifier: Apache-2.0

package rocltest

import (
	"log/slog"
	"testing"
)

// Logger returns the logger of the nodes and contexts.
func (c *TestCluster) Logger() *slog.Logger { return c.log }

// Broken runs f with the world of a seed once, and returns what was wrong.
func Broken(t *testing.T, seed uint64, f func(w *World)) []string {
	return simulate(t, &World{seed: seed}, f).wrong
}

// Shrink is shrink.
var Shrink = shrink
