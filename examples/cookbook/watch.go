// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"maps"

	"github.com/rocl-go/rocl"
)

// Follow calls changed with all resources that match the pattern, first when the existing ones are
// known, then after each change. It returns when ctx ends.
func Follow(ctx context.Context, c *rocl.Context, pattern rocl.Match,
	changed func(map[rocl.GID]rocl.Found)) error {
	live, synced := map[rocl.GID]rocl.Found{}, false
	for event, err := range c.Watch(ctx, pattern) {
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		switch event.Kind {
		case rocl.Appeared, rocl.Changed:
			live[event.ID] = event.Found
		case rocl.Gone:
			delete(live, event.ID)
		case rocl.Synced:
			synced = true
		}
		if synced {
			changed(maps.Clone(live))
		}
	}
	return nil
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
