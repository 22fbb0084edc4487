// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

// Summary asks a member for the summary of its node: see directory.WithSummary. It fails with
// directory.ErrNoSummary if the member makes none, and with an error that matches
// directory.ErrPartial if it cannot be asked.
func (c *Cluster) Summary(ctx context.Context, node resource.NodeID) ([]byte, error) {
	if !slices.Contains(c.members.list(), node) {
		return nil, fmt.Errorf("%w: %012x is no member", directory.ErrPartial, uint64(node))
	}
	b, ok, err := c.asker.askByStream(ctx, node, []byte{kindSum}, directory.MaxSummary)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", directory.ErrPartial, err)
	case !ok:
		return nil, directory.ErrNoSummary
	}
	return b, nil
}

// appendSummary appends the summary of this node to b, and reports false if there is none.
func (a *answers) appendSummary(b []byte) ([]byte, bool) {
	if a.cfg.Summary == nil {
		return nil, false
	}
	sum, err := a.cfg.Summary(a.life)
	if err != nil {
		a.log.Debug("cluster: no summary of this node", "err", err)
	}
	return append(b, sum...), err == nil
}
