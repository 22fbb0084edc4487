// SPDX-License-Identifier: Apache-2.0

package numbers

import (
	"context"

	"github.com/rocl-go/rocl"
)

// KeepHost keeps a number of this node, which was found in claim.
func (n *Numbers) KeepHost(ctx context.Context, i int, claim rocl.GID) (bool, error) {
	return n.keepHost(ctx, uint64(n.c.ID().Node()), i, claim)
}
