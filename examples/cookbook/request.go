// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"bytes"
	"context"
	"log/slog"

	"github.com/rocl-go/rocl"
)

// ServeUpper replies to each request with its text in capitals, until ctx ends. It handles up to
// eight requests at the same time.
func ServeUpper(ctx context.Context, c *rocl.Context) error {
	me, err := c.Register(ctx, rocl.Attrs{"service": "upper"})
	if err != nil {
		return err
	}
	defer me.Close()
	return me.Handle(ctx, func(m *rocl.Message) { // Handle releases m
		if err := me.ReplyBytes(ctx, m, bytes.ToUpper(m.Bytes())); err != nil {
			slog.Warn("cannot reply", "to", m.From(), "error", err)
		}
	}, rocl.Workers(8))
}

// AskUpper has a server turn text into capitals. If that server ends before it replies, AskUpper
// asks another one.
func AskUpper(ctx context.Context, c *rocl.Context, text string) (string, error) {
	me, err := c.Register(ctx, nil) // calls need an origin; it needs no attributes
	if err != nil {
		return "", err
	}
	defer me.Close()
	for {
		server, err := c.Find(ctx, rocl.Match{"service": "upper"})
		if err != nil {
			return "", err // rocl.ErrNotFound: no server is registered
		}
		reply, err := me.CallBytes(ctx, server.ID, 0, []byte(text))
		if rocl.IsEnd(err) {
			continue // this server has ended, perhaps after it did the work
		}
		if err != nil {
			return "", err
		}
		defer reply.Release()
		return string(reply.Bytes()), nil
	}
}
