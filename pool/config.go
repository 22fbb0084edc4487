// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"unicode"
)

// Config describes the pools and streams of a [Set]. Its zero value is one pool, "default".
type Config struct {
	Pools   []PoolConfig   `json:"pools,omitempty"`
	Streams []StreamConfig `json:"streams,omitempty"`
	// DefaultPool is the name of the pool that [Set.Default] returns. Without it, the first pool is
	// the default.
	DefaultPool string `json:"default_pool,omitempty"`
}

// PoolConfig is the configuration of a [Pool].
type PoolConfig struct {
	// Name is made of letters, digits and the characters _ - . : /. A pool without a name gets one
	// from its position, such as "pool-2".
	Name string `json:"name,omitempty"`
	// Policy is the order in which units run, by default FIFO.
	Policy Policy `json:"policy,omitempty"`
	// Workers is how many units the pool's own workers run at a time, by default [Auto].
	Workers Workers `json:"workers,omitzero"`
	// Queue is how many units may wait for a worker; by default there is no limit. In a pool of
	// policy Keyed the limit includes units that wait for others of their key. If such units fill
	// the queue, a unit that need not wait is accepted nevertheless.
	Queue int `json:"queue,omitempty"`
	// WhenFull is what Submit does when the queue is full, by default RejectWhenFull.
	WhenFull WhenFull `json:"when_full,omitempty"`
}

// StreamConfig is the configuration of a [Stream].
type StreamConfig struct {
	// Name is made of the same characters as the name of a pool. A stream without a name gets one
	// from its position, such as "stream-2".
	Name string `json:"name,omitempty"`
	// Pools has the names of the pools that the stream serves, at least one, in order.
	Pools []string `json:"pools"`
	// Scheduler is ScheduleInOrder (the default), ScheduleRoundRobin or ScheduleWeighted.
	Scheduler string `json:"scheduler,omitempty"`
	// Weights has the weights of ScheduleWeighted, one for each pool, by default 1.
	Weights []int `json:"weights,omitempty"`
	// LockThread gives the stream a thread of its own (runtime.LockOSThread). That makes each unit
	// slower that has to be waited for. It is for units that call C libraries with thread-local
	// state, and for Cores.
	LockThread bool `json:"lock_thread,omitempty"`
	// Cores has the processors on which the stream's thread may run, on Linux. Cores imply
	// LockThread.
	Cores []int `json:"cores,omitempty"`
}

// Policy is the order in which the units of a pool run.
type Policy string

const (
	// FIFO runs units in the order of submission.
	FIFO Policy = "fifo"
	// Priority runs the unit with the highest [Unit].Priority first, and equal ones in the order of
	// submission. Units of low priority wait as long as there are units of a higher one.
	Priority Policy = "priority"
	// EarliestFirst runs the unit with the earliest [Unit].Deadline first, and equal ones in the
	// order of submission.
	EarliestFirst Policy = "earliest_first"
	// Keyed runs units with the same [Unit].Key one after another, in the order of submission.
	// Units with different keys run at the same time, and the keys take turns.
	Keyed Policy = "keyed"
	// Inline makes Submit run the unit itself before it returns. It is for units that are short and
	// do not block, because the submitting goroutine has other work, such as to read from
	// connections. The pool has neither queue nor workers.
	Inline Policy = "inline"
)

// WhenFull is what Submit does when the queue of a pool is full.
type WhenFull string

const (
	// RejectWhenFull makes Submit fail with ErrFull.
	RejectWhenFull WhenFull = "reject"
	// WaitWhenFull makes Submit wait until there is room or its context ends.
	WaitWhenFull WhenFull = "wait"
)

// The schedulers of a [StreamConfig].
const (
	ScheduleInOrder    = "in_order"        // see [InOrder]
	ScheduleRoundRobin = "round_robin"     // see [RoundRobin]
	ScheduleWeighted   = "weighted_random" // see [WeightedRandom]
	ScheduleOther      = "other"           // in [Set.Config]: a scheduler of the program, see [Stream.SetScheduler]
)

// Workers is how many workers of its own a pool may have. In JSON it is a number of at least 1 or
// "auto", "none" or "unbounded".
type Workers int

const (
	// Auto means no worker if a stream of the set serves the pool, and otherwise
	// runtime.GOMAXPROCS(0) workers.
	Auto Workers = 0
	// NoWorkers leaves the pool to streams.
	NoWorkers Workers = -1
	// Unbounded starts a goroutine for each unit. It is for units that mostly wait.
	Unbounded Workers = math.MaxInt
)

var workerWords = map[Workers]string{Auto: "auto", NoWorkers: "none", Unbounded: "unbounded"}

// MarshalJSON returns a number or a word.
func (w Workers) MarshalJSON() ([]byte, error) {
	if word, ok := workerWords[w]; ok {
		return json.Marshal(word)
	}
	return json.Marshal(int(w))
}

// UnmarshalJSON reads a number or a word.
func (w *Workers) UnmarshalJSON(data []byte) error {
	var n int
	if json.Unmarshal(data, &n) == nil && n > 0 {
		*w = Workers(n)
		return nil
	}
	var word string
	if json.Unmarshal(data, &word) == nil {
		for value, its := range workerWords {
			if its == word {
				*w = value
				return nil
			}
		}
	}
	return errors.New(`must be a number of at least 1, "auto", "none" or "unbounded"`)
}

// configError returns an error of a configuration at a path such as "pools[1].name". The text stays
// short even if the configuration has a long value.
func configError(path, cause string, kinds ...error) error {
	if len(cause) > 200 {
		cause = strings.ToValidUTF8(cause[:200], "") + " …"
	}
	if path != "" {
		cause = path + ": " + cause
	}
	return fail("configuration", "", cause, append(kinds, ErrConfig)...)
}

// during returns an error of a configuration with the operation that refused it.
func during(op, name string, err error) error {
	var e *opError
	if errors.As(err, &e) {
		return fail(op, name, e.cause, e.kinds...)
	}
	return err
}

// complete returns the configuration with all defaults filled in, or an error that names the path
// of an invalid value.
func (c Config) complete() (Config, error) {
	c.Pools, c.Streams = slices.Clone(c.Pools), slices.Clone(c.Streams)
	if len(c.Pools) == 0 {
		c.Pools = []PoolConfig{{Name: "default"}}
	}
	pools, err := complete("pool", c.Pools,
		func(p *PoolConfig) *string { return &p.Name },
		func(i int, path string) error { return c.Pools[i].complete(path) })
	if err != nil {
		return c, err
	}
	_, err = complete("stream", c.Streams,
		func(s *StreamConfig) *string { return &s.Name },
		func(i int, path string) error { return c.completeStream(i, path, pools) })
	if err != nil {
		return c, err
	}
	if err := c.checkThreads(); err != nil {
		return c, err
	}
	c.completeWorkers()
	if c.DefaultPool == "" {
		c.DefaultPool = c.Pools[0].Name
	}
	if !contains(pools, c.DefaultPool) {
		return c, configError("default_pool", fmt.Sprintf("no pool is named %q", c.DefaultPool), ErrNotFound)
	}
	return c, nil
}

// complete gives names to the entries of a list that have none, refuses invalid and duplicate
// names, and completes each entry. It returns the index of each name.
func complete[T any](kind string, list []T, name func(*T) *string, entry func(i int, path string) error) (map[string]int, error) {
	places := make(map[string]int)
	for i := range list {
		path := fmt.Sprintf("%ss[%d]", kind, i)
		n := *name(&list[i])
		if n == "" {
			continue
		}
		if bad := badName(n); bad != "" {
			return nil, configError(path+".name", bad)
		}
		if j, ok := places[n]; ok {
			return nil, configError(path+".name", fmt.Sprintf("%q is the name of %ss[%d]", n, kind, j), ErrExists)
		}
		places[n] = i
	}
	for i := range list {
		for k, n := i, name(&list[i]); *n == ""; k++ {
			if free := fmt.Sprintf("%s-%d", kind, k); !contains(places, free) {
				*n, places[free] = free, i
			}
		}
		if err := entry(i, fmt.Sprintf("%ss[%d]", kind, i)); err != nil {
			return nil, err
		}
	}
	return places, nil
}

func contains[V any](m map[string]V, key string) bool { _, ok := m[key]; return ok }

func badName(name string) string {
	if len(name) > 64 {
		return fmt.Sprintf("has %d bytes, more than 64", len(name))
	}
	for _, r := range name {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-.:/", r) {
			return fmt.Sprintf("%q has the character %q, and may have letters, digits and _ - . : /", name, r)
		}
	}
	return ""
}

func (p *PoolConfig) complete(path string) error {
	if p.Policy == "" {
		p.Policy = FIFO
	}
	switch p.Policy {
	case FIFO, Priority, EarliestFirst, Keyed:
	case Inline:
		if p.Workers != Auto && p.Workers != NoWorkers || p.Queue != 0 || p.WhenFull != "" {
			return configError(path, `policy "inline" has no workers, queue or when_full`)
		}
		p.Workers = NoWorkers
		return nil
	default:
		return configError(path+".policy", fmt.Sprintf("%q is none of fifo, priority, earliest_first, keyed, inline", p.Policy))
	}
	if p.Workers < NoWorkers {
		return configError(path+".workers", "must not be negative")
	}
	if p.Queue < 0 {
		return configError(path+".queue", "must not be negative")
	}
	switch {
	case p.WhenFull != "" && p.WhenFull != RejectWhenFull && p.WhenFull != WaitWhenFull:
		return configError(path+".when_full", fmt.Sprintf("%q is neither reject nor wait", p.WhenFull))
	case p.WhenFull != "" && p.Queue == 0:
		return configError(path+".when_full", "has no effect without queue")
	case p.WhenFull == "" && p.Queue > 0:
		p.WhenFull = RejectWhenFull
	}
	return nil
}

// completeStream completes the stream at an index. pools has the indexes of the pools by name.
func (c *Config) completeStream(position int, path string, pools map[string]int) error {
	s := &c.Streams[position]
	if len(s.Pools) == 0 {
		return configError(path+".pools", "must name at least one pool")
	}
	named := make(map[string]bool)
	for i, name := range s.Pools {
		k, ok := pools[name]
		cause, kinds := "", []error(nil)
		switch {
		case !ok:
			cause, kinds = fmt.Sprintf("no pool is named %q", name), []error{ErrNotFound}
		case c.Pools[k].Policy == Inline:
			cause = fmt.Sprintf(`pool %q has policy "inline", which no stream serves`, name)
		case named[name]:
			cause = fmt.Sprintf("%q is named twice", name)
		}
		if cause != "" {
			return configError(fmt.Sprintf("%s.pools[%d]", path, i), cause, kinds...)
		}
		named[name] = true
	}
	return s.complete(path)
}

// maxThreads is how many streams may have threads of their own. The runtime ends a process that has
// more than 10,000 threads.
const maxThreads = 1024

func (c *Config) checkThreads() error {
	n := 0
	for i, s := range c.Streams {
		if s.LockThread {
			n++
		}
		if n > maxThreads {
			return configError(fmt.Sprintf("streams[%d]", i), fmt.Sprintf("more than %d streams have a thread of their own", maxThreads))
		}
	}
	return nil
}

// complete completes the fields that do not depend on pools.
func (s *StreamConfig) complete(path string) error {
	for i, core := range s.Cores {
		if core < 0 || core >= maxCores || slices.Contains(s.Cores[:i], core) {
			return configError(fmt.Sprintf("%s.cores[%d]", path, i), fmt.Sprintf("%d is no number of a core, or is named twice", core))
		}
	}
	if len(s.Cores) == 0 {
		s.Cores = nil
	}
	s.LockThread = s.LockThread || s.Cores != nil
	return s.completeScheduler(path)
}

// maxCores is how many cores a CPU set of Linux can name.
const maxCores = 1024

func (s *StreamConfig) completeScheduler(path string) error {
	switch s.Scheduler {
	case "":
		s.Scheduler = ScheduleInOrder
	case ScheduleInOrder, ScheduleRoundRobin, ScheduleWeighted, ScheduleOther:
	default:
		return configError(path+".scheduler", fmt.Sprintf("%q is none of in_order, round_robin, weighted_random", s.Scheduler))
	}
	if len(s.Weights) > 0 && s.Scheduler != ScheduleWeighted {
		return configError(path+".weights", `are for scheduler "weighted_random" only`)
	}
	if n := len(s.Weights); n > 0 && n != len(s.Pools) {
		return configError(path+".weights", fmt.Sprintf("has %d numbers for %d pools", n, len(s.Pools)))
	}
	for i, w := range s.Weights {
		if w < 1 || w > maxWeight {
			return configError(fmt.Sprintf("%s.weights[%d]", path, i), fmt.Sprintf("must be from 1 to %d", maxWeight))
		}
	}
	if len(s.Weights) == 0 {
		s.Weights = nil
	}
	if s.Scheduler == ScheduleWeighted {
		_, s.Weights = describe(s.scheduler(), len(s.Pools))
	}
	return nil
}

// refuseOther returns an error for a stream that cannot be made from its configuration alone.
func (s *StreamConfig) refuseOther(path string) error {
	if s.Scheduler != ScheduleOther {
		return nil
	}
	return configError(path+".scheduler",
		`"other" stands for a scheduler that only the program has: leave it out, and call SetScheduler`)
}

// maxWeight bounds the sum of weights.
const maxWeight = 1_000_000

// scheduler returns the scheduler that the configuration names.
func (s *StreamConfig) scheduler() Scheduler {
	switch s.Scheduler {
	case ScheduleRoundRobin:
		return RoundRobin()
	case ScheduleWeighted:
		return WeightedRandom(s.Weights...)
	}
	return InOrder()
}

func (c *Config) completeWorkers() {
	servers := c.servers()
	for i := range c.Pools {
		p := &c.Pools[i]
		if p.Workers != Auto {
			continue
		}
		p.Workers = NoWorkers
		if len(servers[p.Name]) == 0 {
			p.Workers = Workers(runtime.GOMAXPROCS(0))
		}
	}
}

// servers returns the indexes of the streams that serve each pool.
func (c *Config) servers() map[string][]int {
	at := make(map[string][]int)
	for i, s := range c.Streams {
		for _, pool := range s.Pools {
			at[pool] = append(at[pool], i)
		}
	}
	return at
}
