// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"slices"
)

// Warning is a result of [Config.Validate]: the configuration is valid, but units may wait without
// end.
type Warning struct {
	Path  string // such as "pools[1]"
	Kind  WarningKind
	Cause string // the possible effect, with the pool or stream concerned
}

func (w Warning) String() string { return w.Path + ": " + w.Cause }

// WarningKind is the subject of a [Warning].
type WarningKind string

const (
	// Unserved means that units of the pool never run, because it has neither workers nor a stream.
	Unserved WarningKind = "unserved"
	// NeverFirst means that all streams that serve the pool serve others before it. While those
	// have units, the pool's own never run.
	NeverFirst WarningKind = "never_first"
	// SharedStream means that a single stream serves the pool and other pools. A unit of those that
	// blocks delays the pool's units.
	SharedStream WarningKind = "shared_stream"
	// SharedCore means that two streams may use only one core, and both the same.
	SharedCore WarningKind = "shared_core"
)

// Validate returns an error if NewSet would refuse the configuration for other reasons than
// ScheduleOther. The error matches ErrConfig and names the path of the invalid value. Otherwise
// Validate returns warnings if units may wait without end. [Set.Config] is the configuration of a
// running set.
func (c Config) Validate() ([]Warning, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	var all []Warning
	servers := c.servers()
	for i, p := range c.Pools {
		if p.Policy == Inline || p.Workers != NoWorkers {
			continue
		}
		if kind, cause := c.starving(p.Name, servers[p.Name]); kind != "" {
			all = append(all, Warning{fmt.Sprintf("pools[%d]", i), kind, fmt.Sprintf("pool %q %s", p.Name, cause)})
		}
	}
	return append(all, c.sharedCores()...), nil
}

// starving describes how units of a pool without workers can wait without end. servers has the
// indexes of its streams.
func (c *Config) starving(pool string, servers []int) (WarningKind, string) {
	first := func(i int) bool {
		s := &c.Streams[i]
		return s.Scheduler != ScheduleInOrder || s.Pools[0] == pool
	}
	switch {
	case len(servers) == 0:
		return Unserved, "has no workers and no stream: its units never run"
	case !slices.ContainsFunc(servers, first):
		return NeverFirst, "is never the first of a stream: its units wait while the pools before it have units"
	case len(servers) == 1 && len(c.Streams[servers[0]].Pools) > 1:
		return SharedStream, fmt.Sprintf("is served by stream %q only, which serves other pools too: "+
			"a unit of theirs that blocks holds it up", c.Streams[servers[0]].Name)
	}
	return "", ""
}

func (c *Config) sharedCores() []Warning {
	var all []Warning
	taken := make(map[int]string)
	for i, s := range c.Streams {
		if len(s.Cores) != 1 {
			continue
		}
		core := s.Cores[0]
		if other, ok := taken[core]; ok {
			all = append(all, Warning{fmt.Sprintf("streams[%d].cores", i), SharedCore,
				fmt.Sprintf("streams %q and %q have core %d only: one waits while the other computes", other, s.Name, core)})
		}
		taken[core] = s.Name
	}
	return all
}
