// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"fmt"
	"time"

	"github.com/rocl-go/rocl/dataflow/internal/plan"
	"github.com/rocl-go/rocl/internal/flowfile"
)

// ErrConfig is returned for a configuration file that is wrong. The error names the file, the key
// and the reason.
var ErrConfig = flowfile.ErrConfig

// A Config has the settings of one group of a run. A zero field is not set.
type Config struct {
	// Run identifies the run. The groups of a run have the same text. Two runs at once need
	// different ones. The default is the name of the graph.
	Run string
	// BatchItems, BatchBytes and BatchDelay say when the batches leave that this group sends to
	// others. They replace those of [Batch].
	BatchItems int
	BatchBytes int
	BatchDelay time.Duration
	// Window replaces that of [Window] for the channels that lead out of this group.
	Window int
	// Policy is Balanced, RoundRobin, PreferLocal or OnDemand. It replaces the [Policy] of the
	// nodes of this group that have another one of these. The other policies belong to what a
	// graph means.
	Policy Choice
	// Wait is how long Run waits for the groups with which this group has edges. The default is 30
	// s.
	Wait time.Duration
	// Grace is how long Run waits for nodes to return when the run has ended early. The default is
	// 5 s. Then Run returns without them, and its error matches ErrStuck.
	Grace time.Duration
}

// checkPolicy fails if the policy is not one that a configuration may choose.
func (c *Config) checkPolicy() error {
	if c.Policy == nil || isFree(newOptions([]Option{Policy(c.Policy)}).choice) {
		return nil
	}
	return fmt.Errorf("%w: a configuration cannot choose this policy", ErrGraph)
}

// isFree reports whether a configuration may replace a policy: the receivers of items do not depend
// on it.
func isFree(c plan.Choice) bool {
	switch c {
	case plan.Balanced, plan.RoundRobin, plan.PreferLocal, plan.OnDemand:
		return true
	}
	return false
}

// configOf returns the settings that a configuration file has for a group.
func configOf(g *flowfile.Group) Config {
	c := Config{BatchItems: g.BatchItems, BatchBytes: g.BatchBytes, BatchDelay: g.BatchDelay, Window: g.Window}
	switch g.Policy {
	case "Balanced":
		c.Policy = Balanced
	case "RoundRobin":
		c.Policy = RoundRobin
	case "PreferLocal":
		c.Policy = PreferLocal
	case "OnDemand":
		c.Policy = OnDemand(g.Demand)
	}
	return c
}
