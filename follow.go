// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/display"
)

// A Trace is the context of a distributed trace that travels with a message; see [WithTrace].
type Trace = dispatch.Trace

// A Followed is a message whose times were noted on its way; see [Context.Follow].
type Followed = dispatch.Followed

// Follow makes the context of the resource id, a context of this node, and the senders of messages
// to the resource note the times of one of every messages to it, until limit is over, which is 10
// minutes at most. Other messages cost what they did before. Following ends by itself: also if this
// process ends. Contexts that begin to send meanwhile are included. With a limit of 0 Follow
// changes nothing.
//
// Follow returns the messages that were followed last, at most 256, in the order in which they
// came. They are kept for ten seconds after the end. So a caller asks again, with a limit of 0, and
// tells messages apart by their Number. Durations are not negative, whatever the other context
// says. Follow fails with ErrGone if there is no such resource, and otherwise as
// [Context.SnapshotOf] does.
func (c *Context) Follow(ctx context.Context, id GID, every int, limit time.Duration) ([]Followed, error) {
	n := uint32(min(max(every, 1), 1<<30))
	if id.Context() == c.self {
		return c.disp.Follow(id.Serial(), n, limit)
	}
	serial, box, err := c.newMailbox(0, 0, false)
	var all []Followed
	if err == nil {
		defer box.Close()
		all, err = c.questions.Follow(ctx, id, n, limit, serial, box)
	}
	if err != nil {
		return nil, fmt.Errorf("rocl: follow messages to %v: %w", id, err)
	}
	display.Clean(&all)
	return all, nil
}
