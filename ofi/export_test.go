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
type Load struct {
	Peers, Conns, Receives, Free int
	Exposed, Reads, Remotes      int // payloads for peers; of peers; one-sided transfers
	Unended                      int // of Peers, those that operations hold and no connection
}

// LoadOf returns what a port has in use.
func LoadOf(s subsys.Port) Load {
	p := s.(*port)
	p.mu.Lock()
	defer p.mu.Unlock()
	l := Load{Peers: len(p.peers), Conns: len(p.conns), Receives: p.receives, Free: len(p.free), Exposed: p.exposed, Remotes: p.remotes}
	unended := map[*peer]bool{}
	for _, o := range p.ops {
		if o.kind == opRead {
			l.Reads++
		}
		if o.peer != nil {
			unended[o.peer] = true
		}
	}
	for _, c := range p.conns {
		delete(unended, c.peer)
	}
	l.Unended = len(unended)
	return l
}
