// SPDX-License-Identifier: Apache-2.0

package rpc

import "github.com/rocl-go/rocl/bulk"

// Moves returns the counts of what the server moves large values with.
func (s *Server) Moves() bulk.Stats { return s.over.stats() }

// Moves returns the counts of what the client moves large values with.
func (c *Client) Moves() bulk.Stats { return c.over.stats() }

func (o *overflow) stats() bulk.Stats {
	if ep := o.ep.Load(); ep != nil {
		return ep.Stats()
	}
	return bulk.Stats{}
}

// SetMost sets what counts as more than a buffer can have.
func (s *Server) SetMost(n int) { s.over.most = n }
