// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"testing"

	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"golang.org/x/sys/unix"
)

// threadMapping sets the processors of all threads.
func TestThreadMapping(t *testing.T) {
	var old, now unix.CPUSet
	try.OK(t, unix.SchedGetaffinity(0, &old))
	one := 0
	for ; !old.IsSet(one); one++ {
	}
	defer func() { try.Check(t, SetCores(cpus(old))) }()
	try.OK(t, SetCores([]int{one}))
	try.OK(t, unix.SchedGetaffinity(0, &now))
	try.Equal(t, now.Count(), 1)
}

// cpus returns the processors of a set.
func cpus(s unix.CPUSet) (all []int) {
	for i := range 1024 {
		if s.IsSet(i) {
			all = append(all, i)
		}
	}
	return all
}
