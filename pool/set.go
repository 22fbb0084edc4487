// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Set has the named pools and streams of a process, or of a part of it. All methods may be called
// by several goroutines at a time.
type Set struct {
	epoch   time.Time
	onPanic func(Panic)

	mu       sync.Mutex // taken before the lock of a pool
	pools    []*Pool
	names    map[string]*Pool // pools by name
	removed  []*Pool          // removed pools that had running units at their removal
	streams  []*Stream
	standard *Pool // the default pool
	closed   bool
	live     sync.WaitGroup // the goroutines of streams
	done     chan struct{}  // closed when the set is closed and all pools and streams have ended
}

// Option changes one default of [New], [NewSet] and [Load].
type Option func(*Set)

// OnPanic makes the set call f for each panic of a unit, from the goroutine that ran the unit.
// Without it panics are logged by package log/slog, at level error.
func OnPanic(f func(Panic)) Option { return func(s *Set) { s.onPanic = f } }

func logPanic(x Panic) {
	if x.Stream != "" {
		slog.Error("pool: a scheduler panicked, the stream goes on in order", "stream", x.Stream, "panic", x.Value, "stack", string(x.Stack))
		return
	}
	slog.Error("pool: a unit panicked", "pool", x.Pool, "panic", x.Value, "stack", string(x.Stack))
}

// tell calls a function of OnPanic. A panic of that function is dropped.
func tell(f func(Panic), x Panic) {
	defer func() { _ = recover() }()
	f(x)
}

// New returns a set with one pool, "default": first in, first out, unbounded, with as many workers
// as the process has processors (runtime.GOMAXPROCS).
func New(opts ...Option) *Set {
	s, err := NewSet(Config{}, opts...)
	if err != nil {
		panic(err) // the empty configuration has no error
	}
	return s
}

// Load is NewSet with a configuration in JSON, as in [ParseConfig].
func Load(data []byte, opts ...Option) (*Set, error) {
	c, err := ParseConfig(data)
	if err != nil {
		return nil, err
	}
	return NewSet(c, opts...)
}

// NewSet returns a set with the pools and streams of c. An empty c makes the set of [New].
func NewSet(c Config, opts ...Option) (*Set, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	for i, sc := range c.Streams {
		if err := sc.refuseOther(fmt.Sprintf("streams[%d]", i)); err != nil {
			return nil, err
		}
	}
	s := &Set{epoch: time.Now(), onPanic: logPanic, done: make(chan struct{}), names: make(map[string]*Pool)}
	for _, o := range opts {
		if o != nil {
			o(s)
		}
	}
	for _, pc := range c.Pools {
		s.addPoolLocked(pc)
	}
	s.standard = s.names[c.DefaultPool]
	for i, sc := range c.Streams {
		if err := s.openStreamLocked(sc); err != nil {
			s.closePoolsLocked()
			s.shut()
			return nil, configError(fmt.Sprintf("streams[%d].cores", i), err.Error(), err)
		}
	}
	return s, nil
}

// addPoolLocked adds a pool with a checked configuration. mu must be held once the set is in use.
func (s *Set) addPoolLocked(c PoolConfig) *Pool {
	p := newPool(c, s.epoch, s.onPanic)
	s.pools = append(s.pools, p)
	s.names[c.Name] = p
	return p
}

func (s *Set) findStream(name string) *Stream {
	if i := slices.IndexFunc(s.streams, func(t *Stream) bool { return t.name == name }); i >= 0 {
		return s.streams[i]
	}
	return nil
}

// openStreamLocked starts a stream with a checked configuration. mu must be held once the set is in
// use.
func (s *Set) openStreamLocked(c StreamConfig) error {
	var pools []*Pool
	for _, name := range c.Pools {
		pools = append(pools, s.names[name])
	}
	s.live.Add(1)
	t := newStream(c, pools, s.onPanic, s.live.Done)
	if err := t.open(); err != nil {
		return err
	}
	s.streams = append(s.streams, t)
	return nil
}

// Pool returns the pool of this name, or ErrNotFound.
func (s *Set) Pool(name string) (*Pool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.poolLocked("find pool", name)
}

func (s *Set) poolLocked(op, name string) (*Pool, error) {
	if p := s.names[name]; p != nil {
		return p, nil
	}
	return nil, fail(op, name, "no such pool", ErrNotFound)
}

// Default returns the default pool: the pool that the configuration names, or its first one.
func (s *Set) Default() *Pool { return s.standard }

// Stream returns the stream of this name, or ErrNotFound.
func (s *Set) Stream(name string) (*Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.findStream(name); t != nil {
		return t, nil
	}
	return nil, fail("find stream", name, "no such stream", ErrNotFound)
}

// Pools returns the pools, in the order in which they were added.
func (s *Set) Pools() []*Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pools)
}

// Streams returns the streams, in the order in which they were added.
func (s *Set) Streams() []*Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.streams)
}

// Stats returns the figures of all pools, in the order in which they were added.
func (s *Set) Stats() []PoolStats {
	var figures []PoolStats
	for _, p := range s.Pools() {
		figures = append(figures, p.Stats())
	}
	return figures
}

// Config returns the current configuration. NewSet makes an equal set of it, except that a
// program's own schedulers have to be set again.
func (s *Set) Config() Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.configLocked()
}

func (s *Set) configLocked() Config {
	c := Config{DefaultPool: s.standard.Name()}
	for _, p := range s.pools {
		c.Pools = append(c.Pools, p.Config())
	}
	for _, t := range s.streams {
		c.Streams = append(c.Streams, t.current())
	}
	return c
}

// Dump returns Config in JSON, for [Load].
func (s *Set) Dump() []byte {
	data, err := json.MarshalIndent(s.Config(), "", "  ")
	if err != nil {
		panic(err) // the configuration has strings and numbers only
	}
	return append(data, '\n')
}

// change calls f with the current configuration and mu held. After Close it returns an error
// instead.
func (s *Set) change(op, name string, f func(Config) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fail(op, name, "the set is closed", ErrClosed)
	}
	return f(s.configLocked())
}

// AddPool adds a pool. A pool without a name gets one. The error matches ErrExists if a pool has
// the name, and ErrConfig for other errors of the configuration.
func (s *Set) AddPool(c PoolConfig) (p *Pool, err error) {
	err = s.change("add pool", c.Name, func(with Config) error {
		with.Pools = append(with.Pools, c)
		with, err := with.complete()
		if err != nil {
			return during("add pool", c.Name, err)
		}
		p = s.addPoolLocked(with.Pools[len(with.Pools)-1])
		return nil
	})
	return p, err
}

// AddStream adds a stream. A stream without a name gets one. The error matches ErrExists if a
// stream has the name, and ErrNotFound if a pool of the stream does not exist. It matches ErrConfig
// for other errors of the configuration, and if the stream cannot have its cores.
func (s *Set) AddStream(c StreamConfig) (t *Stream, err error) {
	err = s.change("add stream", c.Name, func(with Config) error {
		with.Streams = append(with.Streams, c)
		with, err := with.complete()
		if err == nil {
			err = c.refuseOther("streams")
		}
		if err != nil {
			return during("add stream", c.Name, err)
		}
		if err := s.openStreamLocked(with.Streams[len(with.Streams)-1]); err != nil {
			return fail("add stream", c.Name, "cores: "+err.Error(), ErrConfig, err)
		}
		t = s.streams[len(s.streams)-1]
		return nil
	})
	return t, err
}

// RemovePool removes a pool. The error matches ErrInUse and names what uses the pool, if a stream
// serves it, a user holds it ([Pool.Use]), it has units, or it is the default pool.
func (s *Set) RemovePool(name string) error {
	return s.change("remove pool", name, func(Config) error {
		p, err := s.poolLocked("remove pool", name)
		if err != nil {
			return err
		}
		if p == s.standard {
			return inUse("remove pool", name, []string{"it is the default pool"})
		}
		if err := p.remove(); err != nil {
			return err
		}
		s.dropPool(p)
		return nil
	})
}

// ReplacePool removes a pool and moves its waiting units to another one, as [Pool.MoveAll] does.
// Running units continue, and Close waits for them. Calls of Submit that wait for room in the
// removed pool fail with ErrClosed.
//
// The error matches ErrInUse and names what uses the pool, if a stream serves it, a user holds it,
// or it is the default pool. It matches ErrFull if the other pool has no room for all units. After
// an error nothing has changed.
func (s *Set) ReplacePool(name, by string) error {
	return s.change("replace pool", name, func(Config) error {
		p, err := s.poolLocked("replace pool", name)
		if err != nil {
			return err
		}
		other, err := s.poolLocked("replace pool by", by)
		switch {
		case err != nil:
			return err
		case p == other:
			return fail("replace pool", name, "the other pool is the same", ErrInUse)
		case p == s.standard:
			return inUse("replace pool", name, []string{"it is the default pool"})
		}
		if err := p.replace(other); err != nil {
			return err
		}
		s.dropPool(p)
		s.removed = append(slices.DeleteFunc(s.removed, (*Pool).isDrained), p)
		return nil
	})
}

// inUse returns the error for a pool that op cannot remove.
func inUse(op, name string, by []string) error {
	return fail(op, name, strings.Join(by, ", "), ErrInUse)
}

func (s *Set) dropPool(p *Pool) {
	s.pools = slices.DeleteFunc(s.pools, func(other *Pool) bool { return other == p })
	delete(s.names, p.Name())
}

// RemoveStream removes a stream, which ends after the unit that it runs. RemoveStream does not wait
// for that. Units that no other worker takes stay in their pools: [Config.Validate] of [Set.Config]
// reports pools that nothing serves.
func (s *Set) RemoveStream(name string) error {
	return s.change("remove stream", name, func(Config) error {
		t := s.findStream(name)
		if t == nil {
			return fail("remove stream", name, "no such stream", ErrNotFound)
		}
		t.stop()
		s.streams = slices.DeleteFunc(s.streams, func(other *Stream) bool { return other == t })
		return nil
	})
}

// Resize changes how many own workers a pool may have. If it has more, the workers beyond n end
// after the units that they run.
func (s *Set) Resize(name string, n Workers) error {
	return s.resize(name, func(c *PoolConfig) { c.Workers = n }, func(p *Pool, c PoolConfig) { p.resize(c.Workers) })
}

// ResizeQueue changes how many units may wait in a pool; 0 removes the limit. If more wait, they
// stay, and the queue is full until fewer wait. Waiting calls of Submit get new room.
func (s *Set) ResizeQueue(name string, n int) error {
	change := func(c *PoolConfig) {
		if c.Queue = n; n == 0 {
			c.WhenFull = "" // WhenFull has no effect without a bound
		}
	}
	return s.resize(name, change, func(p *Pool, c PoolConfig) { p.resizeQueue(c.Queue) })
}

// resize changes a pool if its new configuration is valid.
func (s *Set) resize(name string, change func(*PoolConfig), do func(*Pool, PoolConfig)) error {
	return s.change("resize pool", name, func(with Config) error {
		p, err := s.poolLocked("resize pool", name)
		if err != nil {
			return err
		}
		i := slices.Index(s.pools, p)
		change(&with.Pools[i])
		if with, err = with.complete(); err != nil {
			return during("resize pool", name, err)
		}
		do(p, with.Pools[i])
		return nil
	})
}

// Close refuses units from now on, waits until all units have run, and ends the workers. If ctx
// ends first, the error names the pools that have units left and matches ctx.Err(). These units run
// nevertheless, and Close may be called again to wait for them. A unit must not call Close.
func (s *Set) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closePoolsLocked()
		go s.shut()
	}
	s.mu.Unlock()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	return fail("close", "", s.left()+": "+ctx.Err().Error(), ctx.Err())
}

// closePoolsLocked closes all pools. mu must be held once the set is in use.
func (s *Set) closePoolsLocked() {
	s.closed = true
	for _, p := range s.pools {
		p.close()
	}
}

// shut waits until the pools, which are closed, have no units left. Then it ends the streams.
func (s *Set) shut() {
	for _, p := range slices.Concat(s.pools, s.removed) {
		<-p.drained
	}
	for _, t := range s.streams {
		t.stop()
	}
	s.live.Wait()
	close(s.done)
}

// left describes the pools that have units.
func (s *Set) left() string {
	var left []string
	s.mu.Lock()
	pools := slices.Concat(s.pools, s.removed)
	s.mu.Unlock()
	for _, p := range pools {
		p.mu.Lock()
		if !p.emptyLocked() {
			left = append(left, fmt.Sprintf("pool %q has %s", p.Name(), p.unitsLocked()))
		}
		p.mu.Unlock()
	}
	if len(left) == 0 {
		return "streams are ending"
	}
	return strings.Join(left, "; ")
}
