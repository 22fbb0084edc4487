// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package fabric

import "fmt"

// An Endpoint exists only on systems for which the package knows the ABI of libfabric.
type Endpoint struct{}

// Open returns ErrUnavailable.
func Open(provider, host string, ops int) (*Endpoint, error) { return OpenIn("", provider, host, ops) }

// OpenIn returns ErrUnavailable.
func OpenIn(domain, provider, host string, ops int) (*Endpoint, error) {
	return nil, fmt.Errorf("%w: the package knows libfabric on 64-bit x86 and ARM Linux only", ErrUnavailable)
}

// Name returns nothing: there is no endpoint.
func (*Endpoint) Name() []byte { return nil }

// WaitFD returns -1.
func (*Endpoint) WaitFD() int { return -1 }

// CanWait reports false.
func (*Endpoint) CanWait() bool { return false }

// IsSocketName reports false.
func (*Endpoint) IsSocketName() bool { return false }

// NeedsLocal reports false.
func (*Endpoint) NeedsLocal() bool { return false }

// Insert fails with ErrUnavailable.
func (*Endpoint) Insert([]byte) (Address, error) { return 0, ErrUnavailable }

// Remove does nothing.
func (*Endpoint) Remove(Address) {}

// Register fails with ErrUnavailable.
func (*Endpoint) Register([]byte, uint64) (*Region, error) { return nil, ErrUnavailable }

// Unregister does nothing.
func (*Endpoint) Unregister(*Region) {}

// Recv fails with ErrUnavailable.
func (*Endpoint) Recv(int, []byte, uintptr) error { return ErrUnavailable }

// Send fails with ErrUnavailable.
func (*Endpoint) Send(int, []byte, uintptr, Address) error { return ErrUnavailable }

// Read fails with ErrUnavailable.
func (*Endpoint) Read(int, []byte, uintptr, Address, uint64, uint64) error { return ErrUnavailable }

// Expose fails with ErrUnavailable.
func (*Endpoint) Expose([]byte, uint64, bool, bool) (*Region, error) { return nil, ErrUnavailable }

// Write fails with ErrUnavailable.
func (*Endpoint) Write(int, []byte, uintptr, Address, uint64, uint64) error { return ErrUnavailable }

// Poll fails with ErrUnavailable.
func (*Endpoint) Poll([]Completion) (int, error) { return 0, ErrUnavailable }

// Map fails with ErrUnavailable.
func Map(int) ([]byte, error) { return nil, ErrUnavailable }

// Unmap does nothing.
func Unmap([]byte) {}

// Close does nothing.
func (*Endpoint) Close() {}
