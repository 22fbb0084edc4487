// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package fabric

import "fmt"

// An Endpoint exists only on systems for which the package knows the ABI of libfabric.
type Endpoint struct{}

// Open returns ErrUnavailable.
func Open(provider, host string, ops int) (*Endpoint, error) {
	return nil, fmt.Errorf("%w: the package knows libfabric on 64-bit x86 and ARM Linux only", ErrUnavailable)
}

func (*Endpoint) Name() []byte                                             { return nil }
func (*Endpoint) WaitFD() int                                              { return -1 }
func (*Endpoint) CanWait() bool                                            { return false }
func (*Endpoint) IsSocketName() bool                                       { return false }
func (*Endpoint) NeedsLocal() bool                                         { return false }
func (*Endpoint) Insert([]byte) (Address, error)                           { return 0, ErrUnavailable }
func (*Endpoint) Remove(Address)                                           {}
func (*Endpoint) Register([]byte, uint64) (*Region, error)                 { return nil, ErrUnavailable }
func (*Endpoint) Unregister(*Region)                                       {}
func (*Endpoint) Recv(int, []byte, uintptr) error                          { return ErrUnavailable }
func (*Endpoint) Send(int, []byte, uintptr, Address) error                 { return ErrUnavailable }
func (*Endpoint) Read(int, []byte, uintptr, Address, uint64, uint64) error { return ErrUnavailable }
func (*Endpoint) Poll([]Completion) (int, error)                           { return 0, ErrUnavailable }
func (*Endpoint) Close()                                                   {}
