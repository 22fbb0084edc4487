// SPDX-License-Identifier: Apache-2.0

//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package shm

import (
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/subsys"
)

// New returns the shared memory transport. On this system its Listen fails with
// subsys.ErrUnavailable.
func New() subsys.Transport { return transport{} }

// ForGroup returns the same as New on this system.
func ForGroup(int) subsys.Transport { return transport{} }

type transport struct{}

func (transport) Name() string { return "shm" }

func (transport) Listen(string, subsys.Config) (subsys.Port, error) {
	return nil, fmt.Errorf("shm: %w: no memory is shared on this system: %w", subsys.ErrUnavailable, errors.ErrUnsupported)
}
