// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"testing"
	"testing/fstest"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mountOf2 = "31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"

// Promise (Memory): The default of `WithMemory` is a half of the smallest memory limit above the
// process, so a context fails with `ErrLimit` before the kernel ends it. See also
// TestDefaultMemory.
func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		groups, mounts string
		files          map[string]string
		want           Limits
	}{
		"no control groups": {},
		"no limit": {"0::/a\n", mountOf2, map[string]string{
			"a/memory.max": "max\n", "a/cpu.max": "max 100000\n",
		}, Limits{}},
		"the smallest above": {"0::/a/b/c\n", mountOf2, map[string]string{
			"a/memory.max": "134217728\n", "a/b/memory.max": "max\n", "a/b/c/memory.max": "268435456\n",
			"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "150000 100000\n", "a/b/c/cpu.max": "max 100000\n",
		}, Limits{128 << 20, 1.5}},
		"a limit of the root of a container": {"0::/\n", mountOf2, map[string]string{"memory.max": "1024\n"}, Limits{1024, 0}},
		"a container that sees the path outside": {"0::/docker/abc\n", "31 24 0:27 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
			map[string]string{"memory.max": "1024\n"}, Limits{1024, 0}},
		"a process outside of the root": {"0::/../other\n", mountOf2, map[string]string{"memory.max": "2048\n", "other/memory.max": "1\n"}, Limits{2048, 0}},
		"a group with a similar name": {"0::/docker/abcd\n", "31 24 0:27 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
			map[string]string{"memory.max": "4096\n", "d/memory.max": "1\n"}, Limits{4096, 0}},
		"version 1": {"4:memory:/a/b\n1:cpu,cpuacct:/a\n0::/\n",
			"40 39 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n41 39 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
			map[string]string{
				"memory/a/b/memory.limit_in_bytes": "9223372036854771712\n", "memory/a/memory.limit_in_bytes": "134217728\n", "memory/memory.limit_in_bytes": "9223372036854771712\n",
				"cpu/a/cpu.cfs_quota_us": "50000\n", "cpu/a/cpu.cfs_period_us": "100000\n", "cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n",
			}, Limits{128 << 20, 0.5}},
		"nonsense": {"x\n::\n0::a\n0::/a\n", "x - cgroup2\n" + mountOf2, map[string]string{
			"a/memory.max": "-7", "memory.max": "many", "a/cpu.max": "0 0", "cpu.max": "",
		}, Limits{}},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{
				"proc/self/cgroup":    {Data: []byte(c.groups)},
				"proc/self/mountinfo": {Data: []byte(c.mounts)},
			}
			for f, text := range c.files {
				root["sys/fs/cgroup/"+f] = &fstest.MapFile{Data: []byte(text)}
			}
			try.Equal(t, read(root), c.want)
		})
	}
}

// Read finds the limits of this process, whatever they are.
func TestReadHere(t *testing.T) { t.Logf("%+v", Read()) }
