// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"log/slog"
	"strings"

	"github.com/rocl-go/rocl/internal/ratelog"
)

// quiet passes memberlist's lines on at level debug, except those that an operator looks for:
// gossip that does not open, or that is of another cluster. Any program can send such packets, so
// their lines are limited.
type quiet struct {
	slog.Handler
	often *ratelog.Logger
}

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelInfo)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	switch {
	case strings.Contains(r.Message, "Decrypt packet failed"):
		// Cause: a process with the cluster's certificates has another key. Remedy: correct or stop
		// it.
		q.often.Info("", "cluster: gossip refused: with another key, or with none", "memberlist", r.Message)
	case strings.Contains(r.Message, "unacceptable label"):
		// Cause: a process with the cluster's certificates has another `--cluster`. Remedy: correct
		// or stop it.
		q.often.Info("", "cluster: gossip refused: of another cluster", "memberlist", r.Message)
	case q.Handler.Enabled(ctx, slog.LevelDebug):
		return q.Handler.Handle(ctx, r)
	}
	return nil
}
