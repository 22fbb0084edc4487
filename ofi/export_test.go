// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/ofi/internal/fabric"
	"github.com/rocl-go/rocl/subsys"
)

// Refuse makes registrations of memory fail with the error of f, if that is not nil, until the test
// ends. n counts them from 0.
func Refuse(t *testing.T, f func(n int) error) {
	before := register
	var n atomic.Int64
	register = func(e *fabric.Endpoint, mem []byte, key uint64) (*fabric.Region, error) {
		if err := f(int(n.Add(1) - 1)); err != nil {
			return nil, err
		}
		return before(e, mem, key)
	}
	t.Cleanup(func() { register = before })
}

// Load is what a port has in use.
type Load struct{ Peers, Conns, Receives, Free int }

// LoadOf returns what a port has in use.
func LoadOf(s subsys.Port) Load {
	p := s.(*port)
	p.mu.Lock()
	defer p.mu.Unlock()
	return Load{len(p.peers), len(p.conns), p.receives, len(p.free)}
}
