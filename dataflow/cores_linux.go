// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// setCores lets all threads of the process run on the given processors only, if there are any.
// Threads that start later inherit that.
func setCores(cores []int) error {
	if len(cores) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, c := range cores {
		set.Set(c)
	}
	for range 2 { // a thread may start another one before it is set itself
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range threads {
			id, _ := strconv.Atoi(t.Name())
			if err := unix.SchedSetaffinity(id, &set); err != nil && err != unix.ESRCH { // ESRCH: the thread has ended
				return fmt.Errorf("processors %v: %w", cores, err)
			}
		}
	}
	return nil
}
