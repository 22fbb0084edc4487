// SPDX-License-Identifier: Apache-2.0

package subsystest

import "github.com/rocl-go/rocl/subsys"

// Split appends the frames of a batch to fs. Their payloads stay in the batch's memory. A
// connection of a test that keeps frames as structs gets them from the batches that Send gives it.
func Split(batch *subsys.Frame, fs []subsys.Frame) []subsys.Frame {
	for b := batch.Data; len(b) >= subsys.HeaderLen; {
		f := subsys.Frame{Buf: batch.Buf}
		if f.Parse(b) != nil {
			break // does not happen: Put wrote the header
		}
		end := subsys.HeaderLen + int(f.Len)
		f.Data = b[subsys.HeaderLen:end:end]
		fs, b = append(fs, f), b[end:]
	}
	return fs
}
