// SPDX-License-Identifier: Apache-2.0

// Package cgroup reads which memory and which processors the control groups of Linux leave to this
// process. It knows both versions of control groups. What lies above the group that a container
// shows as its root cannot be seen from inside the container.
package cgroup

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
)

// Limits are the smallest limits of the group of this process and of all groups above it.
type Limits struct {
	Memory uint64  // bytes; 0: no limit
	CPUs   float64 // processors; 0: no limit
}

// Read returns the limits of this process. What it cannot read is no limit, and a system other than
// Linux has none.
func Read() Limits {
	if runtime.GOOS != "linux" {
		return Limits{}
	}
	return read(os.DirFS("/"))
}

// noMemory is the least limit of version 1 that stands for none: the greatest multiple of a page.
const noMemory = 1 << 62

// read is Read of a file system. Names in it have no slash at the beginning.
func read(root fs.FS) (l Limits) {
	groups, _ := fs.ReadFile(root, "proc/self/cgroup")
	mounts, _ := fs.ReadFile(root, "proc/self/mountinfo")
	for line := range strings.Lines(string(groups)) {
		// number:controllers:path. Version 2 has no controllers.
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[1] == "" {
			for dir := range above(string(mounts), "cgroup2", "", f[2]) {
				l.limitMemory(number(root, dir+"/memory.max"))
				quota, period, _ := strings.Cut(content(root, dir+"/cpu.max"), " ")
				l.limitCPUs(quota, period)
			}
		}
		for c := range strings.SplitSeq(f[1], ",") {
			switch c {
			case "memory":
				for dir := range above(string(mounts), "cgroup", c, f[2]) {
					if n := number(root, dir+"/memory.limit_in_bytes"); n < noMemory {
						l.limitMemory(n)
					}
				}
			case "cpu":
				for dir := range above(string(mounts), "cgroup", c, f[2]) {
					l.limitCPUs(content(root, dir+"/cpu.cfs_quota_us"), content(root, dir+"/cpu.cfs_period_us"))
				}
			}
		}
	}
	return l
}

// above yields the folders of a group and of the groups above it, in the first mount of a type with
// a controller.
func above(mounts, kind, controller, group string) func(yield func(dir string) bool) {
	return func(yield func(string) bool) {
		for line := range strings.Lines(mounts) {
			// number parent device root point options [optional...] - type source options
			head, tail, _ := strings.Cut(line, " - ")
			h, t := strings.Fields(head), strings.Fields(tail)
			if len(h) < 5 || len(t) < 3 || t[0] != kind || controller != "" && !contains(t[2], controller) {
				continue
			}
			// A mount shows the groups below its root. If the group is not among them, the mount's
			// root is the nearest that can be seen.
			in, ok := strings.CutPrefix(group, strings.TrimSuffix(h[3], "/"))
			if !ok || in != "" && in[0] != '/' || strings.HasPrefix(group, "/..") {
				in = ""
			}
			point := strings.TrimPrefix(h[4], "/")
			for in = path.Clean("/" + in); ; in = path.Dir(in) {
				if !yield(path.Join(point, in)) || in == "/" {
					return
				}
			}
		}
	}
}

func contains(list, s string) bool {
	for e := range strings.SplitSeq(list, ",") {
		if e == s {
			return true
		}
	}
	return false
}

func content(root fs.FS, name string) string {
	b, _ := fs.ReadFile(root, name)
	return strings.TrimSpace(string(b))
}

// number returns the number in a file, or 0 if there is none. Version 2 writes "max" for no limit.
func number(root fs.FS, name string) uint64 {
	n, err := strconv.ParseUint(content(root, name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (l *Limits) limitMemory(n uint64) {
	if n > 0 && (l.Memory == 0 || n < l.Memory) {
		l.Memory = n
	}
}

// limitCPUs takes the processor time that a group has in each period. A quota that is no number
// above 0 is no limit.
func (l *Limits) limitCPUs(quota, period string) {
	q, err := strconv.ParseFloat(quota, 64)
	p, e := strconv.ParseFloat(period, 64)
	if err != nil || e != nil || !(q > 0) || !(p > 0) || math.IsInf(q, 0) {
		return
	}
	if n := q / p; l.CPUs == 0 || n < l.CPUs {
		l.CPUs = n
	}
}
