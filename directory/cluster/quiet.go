// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// quiet passes memberlist's lines on at level debug, except those that an operator looks for:
// gossip that does not open, or that is of another cluster. These are logged once per sayAgain,
// because any program can send such packets.
type quiet struct {
	slog.Handler
	mu   sync.Mutex
	last time.Time // when such a line was logged
}

func (q *quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelInfo)
}

func (q *quiet) Handle(ctx context.Context, r slog.Record) error {
	refused := ""
	switch {
	case strings.Contains(r.Message, "Decrypt packet failed"):
		// Cause (info): a process with the cluster's certificates has another key. Remedy: correct
		// or stop it.
		refused = "cluster: gossip refused: with another key, or with none"
	case strings.Contains(r.Message, "unacceptable label"):
		// Cause (info): a process with the cluster's certificates has another `--cluster`. Remedy:
		// correct or stop it.
		refused = "cluster: gossip refused: of another cluster"
	}
	if refused != "" {
		q.mu.Lock()
		again := r.Time.Sub(q.last) > sayAgain
		if again {
			q.last = r.Time
		}
		q.mu.Unlock()
		if again {
			says := slog.NewRecord(r.Time, slog.LevelInfo, refused, r.PC)
			says.AddAttrs(slog.String("memberlist", r.Message))
			return q.Handler.Handle(ctx, says)
		}
	}
	if !q.Handler.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}
