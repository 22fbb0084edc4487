// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A context that asks for routes without end, and receives no answer, does not keep other contexts
// from being answered.
func TestAskerThatNeverReceives(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	asked, greedy, polite := cl.Open(0), cl.Open(0), cl.Open(0)
	me := try.Get(greedy.Register(bg, nil, rocl.MailboxLimit(1)))(t)
	for range 3000 { // more answers than there is credit for
		try.OK(t, rocl.AskRoutes(greedy, bg, asked.ID(), me))
	}
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	for range 20 {
		try.OK(t, errOf(polite.RoutesOf(ctx, asked.ID())))
	}
	for isDone := false; !isDone; { // messages left unread would be reported as undelivered
		isDone = rocl.Answers(asked) == 0
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

// A context that has used all its identifiers neither registers nor asks for routes.
func TestSerialsUsedUp(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	c, other := cl.Open(0), cl.Open(0)
	rocl.UseUpSerials(c)
	for range 2 {
		try.Fails(c.Register(bg, nil))(t, rocl.ErrIdentifiers, "Register")
		try.Fails(c.RoutesOf(bg, other.ID()))(t, rocl.ErrIdentifiers, "RoutesOf")
	}
}
