// SPDX-License-Identifier: Apache-2.0

package subsystest

import "github.com/rocl-go/rocl/subsys"

// Split appends the frames of a run to fs. Their payloads stay in the run's memory. A connection of
// a test that keeps frames as structs gets them from the runs that Send gives it.
func Split(run *subsys.Frame, fs []subsys.Frame) []subsys.Frame {
	for b := run.Data; len(b) >= subsys.HeaderLen; {
		f := subsys.Frame{Buf: run.Buf}
		if f.Parse(b) != nil {
			break // does not happen: Put wrote the header
		}
		end := subsys.HeaderLen + int(f.Len)
		f.Data = b[subsys.HeaderLen:end:end]
		fs, b = append(fs, f), b[end:]
	}
	return fs
}
