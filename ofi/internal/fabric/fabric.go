// SPDX-License-Identifier: Apache-2.0

package fabric

import "errors"

// Errors of this package.
var (
	// ErrUnavailable is returned by Open if libfabric is missing, is too old, or has no such
	// provider.
	ErrUnavailable = errors.New("fabric: not available")
	// ErrAgain is returned, not wrapped, by a call that the provider cannot take now. It may
	// succeed after completions have been read.
	ErrAgain = errors.New("fabric: try again")
)

// An Address is the number of a peer in the address vector of an endpoint.
type Address uint64

// A Region is registered memory. Base, Key and Desc do not change.
type Region struct {
	Base uint64 // what a peer adds to an offset in the region; 0 if the provider counts from the region's start
	Key  uint64 // what a peer must know to read the region
	Desc uintptr
	fid  uintptr
}

// A Completion is the end of an operation.
type Completion struct {
	Op  int // number of the operation, as given to Send, Recv or Read; -1 if the completion queue itself failed
	Len int // bytes received
	Err error
}
