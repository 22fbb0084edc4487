// SPDX-License-Identifier: Apache-2.0

// Package planted has defects that are planted in the library to test its simulation
// (rocltest.Simulate): the simulation must find each of them. They exist only in a build with the
// tag roclbugs, where the environment variable ROCL_BUG is the number of the one that is active. In
// any other build [Is] is false, and the compiler leaves out what depends on it.
package planted

// A Bug is a defect.
type Bug int

// The defects.
const (
	None              Bug = iota
	LostCredit            // the credit of a message of more than 6 KiB never comes back
	DuplicateResumed      // the last message that came is delivered again when a link resumes inside a batch
	ForgottenView         // a watch that outlives its directory forgets what it has told
	SilentDenied          // a directory answers "no" for members that have not answered
	EarlyAck              // a large message is acknowledged when its header has come
	DeadContext           // a directory keeps the resources of a process that was killed
	UnreportedMessage     // the first unread message of a deleted mailbox is not reported
	ForgottenMonitor      // a monitor does not tell the end of a process
	NoRecovery            // a directory that follows another one does not wait for the contexts
	LeakedBuffer          // the buffer of a large message is not released if its connection breaks
	Bugs                  // their number, with None
)
