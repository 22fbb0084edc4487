// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// Trace searches for a resource that matches, by a search strategy, and returns how the search
// went. It is no error if nothing matches.
func (c *Client) Trace(ctx context.Context, by strategy.Strategy, pattern *resource.List) (Trace, error) {
	var t Trace
	code := slices.Index(traceCodes[:], by)
	if code < 0 {
		return t, fmt.Errorf("directory: trace: unknown search strategy %d", uint8(by))
	}
	err := c.withConn(ctx, func(a *askConn) error {
		b, err := a.exchange(ctx, wire.MsgTrace, wire.MsgTraced, func(b *wire.Builder) {
			b.Append([]byte{byte(code)})
			b.Append(pattern.Wire())
		})
		if err == nil {
			if err = json.Unmarshal(b, &t); err != nil {
				err = fmt.Errorf("%w: %w", ErrProtocol, err)
			}
		}
		return err
	})
	return t, err
}
