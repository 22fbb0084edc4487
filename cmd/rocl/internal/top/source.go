// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"slices"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/recording"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/observe"
)

// live is the source of a node, or a cluster. Its user closes c.
type live struct {
	ctx context.Context
	c   *rocl.Context
	watching
	limit time.Duration // a context that has not answered within it is silent
	due   time.Time
}

func (l *live) title() string {
	if l.isCluster {
		return "top --cluster"
	}
	return "top"
}

// next asks all contexts.
func (l *live) next(speed float64) (*observe.View, error) {
	if speed > 0 {
		if err := wait(l.ctx, time.Until(l.due)); err != nil {
			return nil, err
		}
	}
	l.due = time.Now().Add(l.interval)
	v, err := observe.Gather(l.ctx, l.c, l.isCluster, l.limit)
	if err == nil {
		for i := range v.Contexts { // without the links over which they were asked
			links := &v.Contexts[i].Links
			*links = slices.DeleteFunc(*links, func(k dispatch.LinkSnapshot) bool { return k.Peer == l.c.ID() })
		}
	}
	return v, err
}

// match asks the directory, which knows all attributes.
func (l *live) match(_ *observe.View, pattern *rocl.List) (map[rocl.GID]bool, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.limit)
	defer cancel()
	matches := map[rocl.GID]bool{}
	var covered rocl.Coverage // a node that is silent hides only its own resources
	for f, err := range l.c.FindAll(ctx, pattern, rocl.Covered(&covered)) {
		if err != nil {
			return nil, err
		}
		matches[f.ID], matches[f.ID.Context()] = true, true
	}
	return matches, nil
}

// replay is the source of a recording.
type replay struct {
	ctx context.Context
	*recording.Reader
	last time.Time
}

// maxPause is the longest time from one view of a recording to the next, such as while the recorder
// was stopped.
const maxPause = 5 * time.Second

func (r *replay) title() string { return "replay" }

func (r *replay) next(speed float64) (*observe.View, error) {
	v, err := r.Read()
	if err != nil {
		return nil, err
	}
	if speed > 0 && !r.last.IsZero() {
		if err := wait(r.ctx, min(time.Duration(float64(v.Taken.Sub(r.last))/speed), maxPause)); err != nil {
			return nil, err
		}
	}
	r.last = v.Taken
	return v, nil
}

// match compares a pattern to the names that the view has.
func (r *replay) match(v *observe.View, pattern *rocl.List) (map[rocl.GID]bool, error) {
	return recording.Match(v, pattern), nil
}

// wait waits for d, or until ctx ends, whose cause it returns.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
