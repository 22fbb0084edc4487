// SPDX-License-Identifier: Apache-2.0

//go:build !linux || portable

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
	return nil, fmt.Errorf("shm: %w: memory is shared on Linux alone: %w", subsys.ErrUnavailable, errors.ErrUnsupported)
}
