// SPDX-License-Identifier: Apache-2.0

package context_test

import (
	stdctx "context"
	"testing"
	"time"

	"github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/rocltest"
)

// A context that asks for routes without end, and receives no answer, does not keep other contexts
// from being answered.
func TestAskerThatNeverReceives(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	asked, greedy, polite := cl.Open(0), cl.Open(0), cl.Open(0)
	me, err := greedy.Register(bg, nil, context.MailboxLimit(1))
	if err != nil {
		t.Fatal(err)
	}
	for range 3000 { // more answers than there is credit for
		if err := greedy.AskRoutes(bg, asked.ID(), me); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := stdctx.WithTimeout(bg, time.Minute)
	defer cancel()
	for range 20 {
		if _, err := polite.RoutesOf(ctx, asked.ID()); err != nil {
			t.Fatal(err)
		}
	}
	for isDone := false; !isDone; { // messages left unread would be reported as undelivered
		isDone = asked.Answers() == 0
		for {
			m, err := me.TryRecv()
			if err != nil {
				break
			}
			m.Release()
		}
		if ctx.Err() != nil {
			t.Fatal("there are answers under way still")
		}
	}
}
