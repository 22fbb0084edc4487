// SPDX-License-Identifier: Apache-2.0

// Package ratelog limits how often a log line is repeated. It is for lines that a peer, a client
// without access or a retry can cause any number of times, such as a refused connection or a failed
// call of accept.
//
// A [Logger] writes the first [Burst] lines with the same message and source, and then one line
// every [Interval]. Each line has the number of lines suppressed before it. A line beyond the limit
// is written at level debug instead. Memory is bounded too: sources beyond a fixed number share one
// limit for each message. So a client with many addresses causes no more lines than one with a few.
package ratelog

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"
)

// The limits of each pair of message and source.
const (
	Burst    = 4                // lines that are written without a pause
	Interval = 10 * time.Second // time after which one more line is written
)

// maxSources is how many sources of one message have a limit of their own.
const maxSources = 16

// suppressed is the attribute with the number of lines that were not written.
const suppressed = "suppressed"

// A Logger writes to a slog.Logger. Its methods may be called concurrently.
type Logger struct {
	log *slog.Logger

	mu     sync.Mutex // guards all below
	limits map[string]*message
}

// message has the limits of one message.
type message struct {
	sources map[string]*limit
	shared  limit // shared by the sources beyond maxSources
}

// limit is a token bucket, stored as the time at which it is full again.
type limit struct {
	full       time.Time
	suppressed int
}

// New returns a Logger that writes to log. A nil log discards all lines.
func New(log *slog.Logger) *Logger {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Logger{log: log, limits: map[string]*message{}}
}

// Info writes a line at level Info unless it is suppressed. msg must be a constant. source
// identifies the cause of the line, see package netsource. It is empty if this process is the
// cause.
func (l *Logger) Info(source, msg string, args ...any) {
	l.write(slog.LevelInfo, source, msg, args)
}

// Warn is Info at level Warn.
func (l *Logger) Warn(source, msg string, args ...any) {
	l.write(slog.LevelWarn, source, msg, args)
}

func (l *Logger) write(level slog.Level, source, msg string, args []any) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) {
		return
	}
	now := time.Now()
	n, ok := l.allow(now, source, msg)
	if !ok {
		if level = slog.LevelDebug; !l.log.Enabled(ctx, level) {
			return
		}
	}
	var pc [1]uintptr
	runtime.Callers(3, pc[:]) // the caller of Info or Warn
	r := slog.NewRecord(now, level, msg, pc[0])
	r.Add(args...)
	if n > 0 {
		r.AddAttrs(slog.Int(suppressed, n))
	}
	_ = l.log.Handler().Handle(ctx, r) // as slog does
}

// allow reports whether a line may be written, and how many were suppressed since the last.
func (l *Logger) allow(now time.Time, source, msg string) (before int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.limits[msg]
	if m == nil {
		m = &message{sources: map[string]*limit{}}
		l.limits[msg] = m
	}
	return m.of(now, source).take(now)
}

// of returns the limit of a source.
func (m *message) of(now time.Time, source string) *limit {
	if b := m.sources[source]; b != nil {
		return b
	}
	if len(m.sources) >= maxSources {
		for s, b := range m.sources {
			if now.Before(b.full) {
				continue
			}
			m.shared.suppressed += b.suppressed // reported by the next line that uses shared
			delete(m.sources, s)
		}
	}
	if len(m.sources) >= maxSources {
		return &m.shared
	}
	b := &limit{}
	m.sources[source] = b
	return b
}

func (b *limit) take(now time.Time) (before int, ok bool) {
	if b.full.Sub(now) > (Burst-1)*Interval {
		b.suppressed++
		return 0, false
	}
	if b.full.Before(now) {
		b.full = now
	}
	b.full = b.full.Add(Interval)
	before, b.suppressed = b.suppressed, 0
	return before, true
}
