// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"errors"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/group"
)

// The tags of a pipeline with exact recovery.
const (
	tagLine = iota
	tagCustody
)

// Feed gives lines to workers, by next. When a worker has ended, Feed gives the lines that it held
// to others. It returns when ctx ends.
func Feed(ctx context.Context, me *rocl.Resource, sink rocl.GID, lines []string, next func() rocl.GID) error {
	source := group.NewSource[string](me, sink, tagCustody)
	for {
		for len(lines) > 0 {
			worker := next()
			err := source.Give(ctx, worker, lines[0])
			if errors.Is(err, group.ErrWorker) {
				continue // this worker has ended
			}
			if err != nil {
				return err
			}
			_ = me.SendBytes(ctx, worker, tagLine, []byte(lines[0])) // if it fails, the line comes back
			lines = lines[1:]
		}
		m, err := me.Recv(ctx)
		if err != nil {
			return err
		}
		_, lines, _ = source.Handle(m)
		m.Release()
	}
}

// Gather calls use for each result of the workers, until ctx ends. It tells Feed what it has got
// from a worker that has ended.
func Gather(ctx context.Context, me *rocl.Resource, use func(result []byte)) error {
	sink := group.NewSink(me, tagCustody)
	for m, err := range me.Messages(ctx) {
		if err != nil {
			return err
		}
		isMine, err := sink.Handle(ctx, m)
		if !isMine && sink.Take(m.From()) {
			use(m.Bytes())
		}
		m.Release()
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}
