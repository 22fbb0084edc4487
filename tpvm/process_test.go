// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

// processOf returns the process of a task. A test waits for the processes that none of its tasks
// has started, since they need its directory until they have exited.
func processOf(t *testing.T, task *tpvm.Task, id tpvm.TID) process {
	t.Helper()
	for i, err := range task.Tasks(deadline(t)) {
		try.OK(t, err)
		if i.ID == id {
			return try.Get(pidfd(i.PID))(t)
		}
	}
	t.Fatalf("there is no task %v", id)
	return -1
}
