// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"slices"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/live"
)

// Report calls changed with all resources that match the pattern, then after each change again. It
// returns when ctx ends.
func Report(ctx context.Context, c *rocl.Context, pattern rocl.Attributes,
	changed func([]rocl.Found)) error {
	s, err := live.Follow(ctx, c, pattern)
	if err != nil {
		return err
	}
	defer s.Close()
	for s.Err() == nil {
		next := s.Changed() // before the look at the set, so that no change is missed
		changed(slices.Collect(s.All()))
		<-next
	}
	if ctx.Err() != nil {
		return nil
	}
	return s.Err()
}

const tagEnded = 1 // of the messages of monitors

// Collect returns all messages of one sender, when the sender has ended. The message of the monitor
// comes behind the sender's last message, also if the sender's process is killed.
func Collect(ctx context.Context, me *rocl.Resource, sender rocl.GID) ([]string, error) {
	stop, err := me.Monitor(ctx, sender, tagEnded)
	if err != nil {
		return nil, err
	}
	defer stop()
	var texts []string
	for m, err := range me.Messages(ctx, rocl.From(sender)) {
		if err != nil {
			return texts, err
		}
		if m.IsGone() {
			m.Release()
			return texts, nil
		}
		texts = append(texts, string(m.Bytes()))
		m.Release()
	}
	return texts, context.Cause(ctx)
}
