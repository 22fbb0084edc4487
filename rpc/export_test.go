// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"time"

	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/codec"
)

// Moves returns the counts of the endpoint that moves the server's large values.
func (s *Server) Moves() bulk.Stats { return s.overflow.stats() }

// Moves returns the counts of the endpoint that moves the client's large values.
func (c *Client) Moves() bulk.Stats { return c.overflow.stats() }

func (o *overflow) stats() bulk.Stats {
	if ep := o.ep.Load(); ep != nil {
		return ep.Stats()
	}
	return bulk.Stats{}
}

// SetMost sets the size in bytes above which a value does not fit into a buffer.
func (s *Server) SetMost(n int) { s.overflow.most = n }

// SetMostItem sets the largest size of a result of a stream.
func SetMostItem(n uint64) (undo func()) {
	was := mostItem
	mostItem = n
	return func() { mostItem = was }
}

// CallID returns the identifier of a call's name.
func CallID(name string) uint64 { return callID(name) }

// BareRequest returns a request with the arguments struct{}{}, whose caller tells neither a number
// nor a clock.
func BareRequest(left time.Duration) []byte {
	h := requestHeader{left: left}
	p, err := codec.Append(make([]byte, h.size()), &struct{}{})
	if err != nil {
		panic(err)
	}
	h.put(p)
	return p
}

// Check returns an error if the policy is invalid.
func (p *Policy) Check() error { return p.check() }

// PolicyOf returns the policy of a call of a client with CallPolicies.
func PolicyOf(all Policies, name string) *Policy {
	c := &Client{}
	CallPolicies(all)(c)
	return c.policy(name, &config{})
}
