// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
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

// Render calls the renderer with the least load in the cluster, if that load is below 100.
func Render(ctx context.Context, me *rocl.Resource, scene []byte) ([]byte, error) {
	f, err := me.Context().Find(ctx, rocl.Match{"type": "renderer"},
		rocl.At("load", rocl.Lt, 100), rocl.Least("load"))
	if err != nil {
		return nil, err // rocl.ErrNotFound: no renderer is there, or all are too busy
	}
	reply, err := me.CallBytes(ctx, f.ID, 0, scene)
	if err != nil {
		return nil, err
	}
	defer reply.Release()
	return append([]byte(nil), reply.Bytes()...), nil
}
