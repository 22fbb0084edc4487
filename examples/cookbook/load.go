// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/live"
)

// ServeRenderer answers each request with the result of do. Ten times a second it writes the number
// of requests in hand into the attribute "load".
func ServeRenderer(ctx context.Context, c *rocl.Context, do func([]byte) []byte) error {
	me, err := c.Register(ctx, rocl.Attrs{"type": "renderer", "load": "0"})
	if err != nil {
		return err
	}
	defer me.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop() // ends the goroutine below

	var load atomic.Int64
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		published := int64(0)
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if now := load.Load(); now != published {
				if err := me.Set(ctx, "load", strconv.FormatInt(now, 10)); err != nil {
					slog.Warn("cannot change the load", "error", err)
					continue
				}
				published = now
			}
		}
	}()
	return me.Handle(ctx, func(m *rocl.Message) {
		load.Add(1)
		defer load.Add(-1)
		if err := me.ReplyBytes(ctx, m, do(m.Bytes())); err != nil {
			slog.Warn("cannot reply", "to", m.From(), "error", err)
		}
	}, rocl.EachInOwn())
}

// Renderers follows the renderers of the cluster whose load is below 100.
func Renderers(ctx context.Context, c *rocl.Context) (*live.Set, error) {
	pattern, err := rocl.Parse("type=renderer load<100")
	if err != nil {
		return nil, err
	}
	return live.Follow(ctx, c, pattern)
}

// Render calls the renderer with the least load. It waits until there is one. If the renderer ends,
// it calls another one, so do must do no harm if it is done twice.
func Render(ctx context.Context, me *rocl.Resource, s *live.Set, scene []byte) ([]byte, error) {
	for {
		renderer, err := s.Await(ctx, live.Least("load"))
		if err != nil {
			return nil, err
		}
		reply, err := me.CallBytes(ctx, renderer.ID, 0, scene)
		renderer.Done(err) // if it has ended, it is not picked again
		if rocl.IsEnd(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer reply.Release()
		return append([]byte(nil), reply.Bytes()...), nil
	}
}
