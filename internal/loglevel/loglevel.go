// SPDX-License-Identifier: Apache-2.0

// Package loglevel gives each component of the library a log level of its own, which can be changed
// while the program runs. A component is what a line's text names before its first colon: the line
// "cluster: member" is of the component cluster.
package loglevel

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// Other is the component of lines that name none.
	Other = "other"

	mostName       = 32 // bytes of the name of a component
	mostComponents = 64 // that have a level of their own
)

// Levels has the levels of components. All methods may be called concurrently.
type Levels struct {
	mu  sync.Mutex // held while state is replaced
	now atomic.Pointer[state]
}

// state never changes.
type state struct {
	base  slog.Level            // of components that of does not have
	of    map[string]slog.Level // by component
	least slog.Level            // the smallest of all levels
}

// New returns Levels in which each component has the level base.
func New(base slog.Level) *Levels {
	l := new(Levels)
	l.now.Store(&state{base: base, least: base})
	return l
}

// Set sets levels. Each argument is COMPONENT=LEVEL, or LEVEL for all components. LEVEL is debug,
// info, warn or error. If an argument is invalid, no level changes.
func (l *Levels) Set(args ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.now.Load()
	s := &state{base: old.base, of: maps.Clone(old.of)}
	if s.of == nil {
		s.of = map[string]slog.Level{}
	}
	for _, a := range args {
		name, text, ok := strings.Cut(a, "=")
		if !ok {
			text = a
		}
		var level slog.Level
		if err := level.UnmarshalText([]byte(text)); err != nil || strings.ContainsAny(text, "+-") {
			return fmt.Errorf("log level %q is not debug, info, warn or error", text)
		}
		switch {
		case !ok:
			s.base = level
			clear(s.of)
		case !isName(name):
			return fmt.Errorf("%q is not the name of a component, such as cluster or dispatch", name)
		default:
			s.of[name] = level
		}
	}
	if len(s.of) > mostComponents {
		return fmt.Errorf("more than %d components have a level of their own", mostComponents)
	}
	s.least = s.base
	for _, level := range s.of {
		s.least = min(s.least, level)
	}
	l.now.Store(s)
	return nil
}

// All returns the levels by component. "*" stands for the components that have none of their own.
func (l *Levels) All() map[string]string {
	s := l.now.Load()
	all := map[string]string{"*": strings.ToLower(s.base.String())}
	for name, level := range s.of {
		all[name] = strings.ToLower(level.String())
	}
	return all
}

// Handler returns a handler that passes to h the lines that l lets through. h decides nothing about
// levels: it must be enabled for all.
func (l *Levels) Handler(h slog.Handler) slog.Handler { return handler{l, h} }

type handler struct {
	l *Levels
	slog.Handler
}

func (h handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.l.now.Load().least
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	s := h.l.now.Load()
	level, ok := s.of[component(r.Message)]
	if !ok {
		level = s.base
	}
	if r.Level < level {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(a []slog.Attr) slog.Handler { return handler{h.l, h.Handler.WithAttrs(a)} }
func (h handler) WithGroup(name string) slog.Handler   { return handler{h.l, h.Handler.WithGroup(name)} }

// component returns the component of a line.
func component(text string) string {
	name, _, ok := strings.Cut(text, ":")
	if !ok || !isName(name) {
		return Other
	}
	return name
}

// isName reports whether s has the form of the name of a component.
func isName(s string) bool {
	return s != "" && len(s) <= mostName && strings.IndexFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }) < 0
}
