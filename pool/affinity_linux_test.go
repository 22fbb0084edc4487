// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

func threadID() int { return unix.Gettid() }

// cores returns the cores that the calling thread may use.
func cores(t testing.TB) []int {
	var set unix.CPUSet
	try.Check(t, unix.SchedGetaffinity(0, &set))
	var all []int
	for c := range maxCores {
		if set.IsSet(c) {
			all = append(all, c)
		}
	}
	return all
}

// TestCores checks that a stream has its core, also after a unit has ended its goroutine, and that
// other goroutines have all cores afterwards.
func TestCores(t *testing.T) {
	all := cores(t)
	core := all[len(all)-1]
	s := newSet(t, Config{Pools: []PoolConfig{{Name: "a"}}, Streams: []StreamConfig{{Pools: []string{"a"}, Cores: []int{core}}}})
	got := make(chan []int)
	for range 5 {
		submit(t, s.Default(), func(context.Context) { got <- cores(t) })
		if has := <-got; len(has) != 1 || has[0] != core {
			t.Errorf("the stream has cores %v, want %d", has, core)
		}
		submit(t, s.Default(), func(context.Context) { runtime.Goexit() })
	}
	closeSet(t, s)
	for range 20 {
		go func() { got <- cores(t) }()
		if has := <-got; len(has) != len(all) {
			t.Errorf("another goroutine has cores %v, want %v", has, all)
		}
	}
	if c := s.Config().Streams[0]; !c.LockThread {
		t.Errorf("configuration %+v", c)
	}
}

// TestNoSuchCore checks the error for a core that the machine does not have, and that nothing of
// the set or the stream is left.
func TestNoSuchCore(t *testing.T) {
	before := goleak.IgnoreCurrent()
	bad := StreamConfig{Pools: []string{"a"}, Cores: []int{maxCores - 1}}
	pools := []PoolConfig{{Name: "a"}}
	_, err := NewSet(Config{Pools: pools, Streams: []StreamConfig{{Pools: []string{"a"}}, bad}})
	if !errors.Is(err, ErrConfig) || !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "streams[1].cores") {
		t.Errorf("error %v", err)
	}
	s := newSet(t, Config{Pools: pools})
	refused(s.AddStream(bad))(t, `pool: add stream: cores: invalid argument`, ErrConfig, unix.EINVAL)
	try.Equal(t, len(s.Streams()), 0, "streams")
	closeSet(t, s)
	eventually.True(t, "no goroutines", func() bool { return goleak.Find(before) == nil })
}
