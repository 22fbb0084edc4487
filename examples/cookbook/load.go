// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/live"
	"github.com/rocl-go/rocl/rpc"
)

// ServeRenderer offers the call "render" until ctx ends, and then finishes what it has begun. The
// attribute "load" has the number of requests in progress.
func ServeRenderer(ctx context.Context, c *rocl.Context, do func([]byte) []byte) error {
	render := func(_ context.Context, scene []byte) ([]byte, error) { return do(scene), nil }
	return rpc.Serve(ctx, c, rocl.Attrs{"type": "renderer"},
		rpc.WithCall("render", render), rpc.PublishLoad("load"))
}

// Renderers follows the renderers of the cluster whose load is below 100. The attribute rpc of a
// renderer that drains has another value.
func Renderers(ctx context.Context, c *rocl.Context) (*live.Set, error) {
	pattern, err := rocl.Parse("type=renderer rpc=1 load<100")
	if err != nil {
		return nil, err
	}
	return live.Follow(ctx, c, pattern)
}

// Render calls the renderer with the least load. It waits until there is one. If the renderer ends,
// it calls another one, so do must do no harm if it is done twice.
func Render(ctx context.Context, client *rpc.Client, s *live.Set, scene []byte) ([]byte, error) {
	least := rpc.Among(s.Picker(live.Least("load")))
	retry := rpc.WithPolicy(rpc.Policy{Attempts: 5, Idempotent: true})
	a, err := rpc.CallAny[[]byte, []byte](ctx, client, nil, "render", scene, least, retry)
	return a.Value, err
}
