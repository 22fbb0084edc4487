// SPDX-License-Identifier: Apache-2.0

package context_test

import (
	stdctx "context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
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
	must(t, err)
	for range 3000 { // more answers than there is credit for
		must(t, greedy.AskRoutes(bg, asked.ID(), me))
	}
	ctx, cancel := stdctx.WithTimeout(bg, time.Minute)
	defer cancel()
	for range 20 {
		must(t, errOf(context.RoutesOf(ctx, polite, asked.ID())))
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

// A question that the other context has dropped, because too many of its answers to this context
// are under way, is asked again.
func TestRoutesAskedAgain(t *testing.T) { synctest.Test(t, routesAskedAgain) }

func routesAskedAgain(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	dropped := make(chan struct{}, 100)
	asked, asker := cl.Open(0, logging(func(r slog.Record) {
		if strings.Contains(r.Message, "a question for routes was dropped") {
			dropped <- struct{}{}
		}
	})), cl.Open(0)
	end := asked.BeginAnswers(asker.ID())
	ctx, cancel := stdctx.WithTimeout(bg, time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := context.RoutesOf(ctx, asker, asked.ID())
		done <- err
	}()
	<-dropped
	end()
	noErr(t, <-done)
}

// A context that has used all its identifiers neither registers nor asks for routes.
func TestSerialsUsedUp(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	c, other := cl.Open(0), cl.Open(0)
	c.UseUpSerials()
	for range 2 {
		fails(t, errOf(c.Register(bg, nil)), context.ErrIdentifiers, "Register")
		fails(t, errOf(context.RoutesOf(bg, c, other.ID())), context.ErrIdentifiers, "RoutesOf")
	}
}
