// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/live"
	"github.com/rocl-go/rocl/rpc"
)

// ServeUppercase answers the call "upper" until ctx ends. Then it answers the calls that it has.
func ServeUppercase(ctx context.Context, c *rocl.Context, upper func(context.Context, string) (string, error)) error {
	return rpc.Serve(ctx, c, rocl.Attrs{"type": "uppercase"}, rpc.WithCall("upper", upper), rpc.PublishLoad("load"))
}

// Uppercases follows the servers of ServeUppercase. A server that drains leaves the set.
func Uppercases(ctx context.Context, c *rocl.Context) (*live.Set, error) {
	return live.Follow(ctx, c, rocl.Match{"type": "uppercase", "rpc": "1"})
}

// Uppercase calls the server of the set with the least load, and others if it must.
func Uppercase(ctx context.Context, cl *rpc.Client, set *live.Set, text string) (string, error) {
	least := func(_ context.Context, not []rocl.GID) (rocl.GID, func(error), error) {
		m, err := set.Pick(live.Least("load"), not...)
		if err != nil {
			return rocl.GID{}, nil, err
		}
		return m.ID, m.Done, nil
	}
	policy := rpc.Policy{Attempts: 3, Attempt: time.Second, Idempotent: true, Circuit: rpc.Circuit{Failures: 5}}
	a, err := rpc.CallAny[string, string](ctx, cl, nil, "upper", text, rpc.Among(least), rpc.WithPolicy(policy))
	return a.Value, err
}
