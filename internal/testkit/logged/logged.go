// SPDX-License-Identifier: Apache-2.0

// Package logged holds what is logged in a test, so that the test can read it meanwhile.
package logged

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// A Log holds what was written to it. All methods may be called by several goroutines at once.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns all that was written since the last Reset.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Reset forgets what was written.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

// Count returns how many lines have all the words.
func (l *Log) Count(words ...string) (n int) {
lines:
	for line := range strings.Lines(l.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		n++
	}
	return n
}

// Logger returns a logger that writes text of level info and above.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// A Story is a slog.Handler that keeps the lines of level info and above that begin with Prefix:
// the message, and those of Attrs that a line has. Attributes of slog.Logger.With are left out.
type Story struct {
	Prefix string
	Attrs  []string

	mu    sync.Mutex
	lines []string
}

// Enabled implements slog.Handler.
func (*Story) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

// Handle implements slog.Handler.
func (s *Story) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	if !strings.HasPrefix(line, s.Prefix) {
		return nil
	}
	r.Attrs(func(a slog.Attr) bool {
		if slices.Contains(s.Attrs, a.Key) {
			line += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		}
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
	return nil
}

// WithAttrs implements slog.Handler.
func (s *Story) WithAttrs([]slog.Attr) slog.Handler { return s }

// WithGroup implements slog.Handler.
func (s *Story) WithGroup(string) slog.Handler { return s }

// Lines returns the lines so far.
func (s *Story) Lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines)
}
