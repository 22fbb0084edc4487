// SPDX-License-Identifier: Apache-2.0

package logqueue

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slow is a handler that blocks before it calls another one.
type slow struct {
	slog.Handler
	begun, goOn chan struct{}
}

func (s slow) Handle(ctx context.Context, r slog.Record) error {
	select {
	case s.begun <- struct{}{}:
	default:
	}
	<-s.goOn
	return s.Handler.Handle(ctx, r)
}

// While the handler blocks, lines wait. Lines beyond the limit are dropped, counted and reported.
// The handler gets the same lines as without a queue.
func TestBlockedHandler(t *testing.T) {
	var b bytes.Buffer
	s := slow{slog.NewTextHandler(&b, &slog.HandlerOptions{AddSource: true}), make(chan struct{}, 1), make(chan struct{})}
	q := New(slog.New(s))
	log := q.Logger()
	log.Info("first")
	<-s.begun
	log.With("with", 1).WithGroup("group").Info("line", "n", 0)
	for i := range most + 9 {
		log.Info("line", "n", 1+i)
	}
	log.Debug("not wanted")
	try.Equal(t, q.Dropped(), 10, "lines were dropped")
	close(s.goOn)
	q.Drain(t.Context())
	out := b.String()
	for _, want := range []string{"logqueue_test.go", "with=1 group.n=0", "n=1023", "dropped=10"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if n := strings.Count(out, "\n"); n != most+2 || strings.Contains(out, "not wanted") {
		t.Errorf("%d lines", n)
	}
}

// Discarding costs no goroutine.
func TestDiscard(t *testing.T) {
	for _, log := range []*slog.Logger{nil, slog.New(slog.DiscardHandler)} {
		if New(log).Logger().Enabled(t.Context(), slog.LevelError) {
			t.Error("lines are wanted")
		}
	}
}
