// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

// A pair is a group with a member at each end of a wire. The first one coordinates.
type pair struct {
	*wire
	contexts [2]*lib.Context
	tasks    [2]*tpvm.Task
	members  [2]*tpvm.Group
}

func newPair(ctx context.Context, t *testing.T, giveUp ...time.Duration) *pair {
	t.Helper()
	p := &pair{wire: newWire(t)}
	for i := range p.tasks {
		p.contexts[i] = p.open(t, i, lib.WithGiveUp(giveUp[i]), lib.WithLinger(0))
		p.tasks[i] = try.Get(tpvm.Enrol(ctx, tpvm.WithContext(p.contexts[i])))(t)
		t.Cleanup(func() { _ = p.tasks[i].Exit(ctx) })
		p.join(ctx, t, i)
	}
	p.meet(ctx, t)
	return p
}

func (p *pair) join(ctx context.Context, t *testing.T, i int) {
	t.Helper()
	p.members[i] = try.Get(p.tasks[i].Join(ctx, "g"))(t)
}

// barrier calls Barrier, again if the coordinator was given up meanwhile. The channel gets the
// result.
func (p *pair) barrier(ctx context.Context, i, count int) <-chan error {
	g, done := p.members[i], make(chan error, 1)
	go func() {
		err := g.Barrier(ctx, count)
		for errors.Is(err, lib.ErrUnreachable) && !errors.Is(err, tpvm.ErrMemberGone) {
			err = g.Barrier(ctx, count)
		}
		done <- err
	}()
	return done
}

// meet lets both members pass a barrier.
func (p *pair) meet(ctx context.Context, t *testing.T) {
	t.Helper()
	first, second := p.barrier(ctx, 0, 2), p.barrier(ctx, 1, 2)
	try.OK(t, errors.Join(<-first, <-second))
}

// After a cut, the context of one of two members has given up that of the other, which was idle.
// If the context of the coordinator was given up, the next call of a barrier that has failed with
// ErrUnreachable goes on, and the members with it. If that of the other member was given up, its
// barrier fails with ErrNotInGroup, also one in which it waits since before the cut. The remaining
// member is told that it is gone, and goes on. The other one may join again.
//
// Promise (Package tpvm): A cut after which one task has given the other up leaves no member of a
// group waiting: the members go on, or get `ErrNotInGroup` and may join again. See also
// TestGroupTakeoverGivenUp.
func TestGroupAfterGivingUp(t *testing.T) {
	const short, long = 200 * time.Millisecond, time.Hour
	for i, gives := range []string{"coordinator", "other member"} {
		for _, waits := range []bool{false, true} {
			bubble(t, fmt.Sprintf("given up by the %s, the other member waits: %v", gives, waits), func(t *testing.T) {
				ctx := eventually.Context(t)
				p := newPair(ctx, t, [][]time.Duration{{short, long}, {long, short}}[i]...)
				from, to := register(t, p.contexts[i], nil), register(t, p.contexts[1-i], nil)
				var second <-chan error
				if waits {
					second = p.barrier(ctx, 1, 2)
					try.Get(p.members[1].Size(ctx))(t) // its answer comes behind the arrival
				}
				p.cut()
				if _, err := from.CallBytes(ctx, to.ID(), 1, nil); !errors.Is(err, lib.ErrUnreachable) {
					t.Fatal(err)
				}
				p.Heal()
				if !waits {
					second = p.barrier(ctx, 1, 2)
				}
				if gives != "coordinator" {
					try.OK(t, errors.Join(<-p.barrier(ctx, 0, 2), <-second))
					p.meet(ctx, t)
					return
				}
				try.Fails(<-second)(t, tpvm.ErrNotInGroup, "the barrier of the member that was given up")
				try.Fails(<-p.barrier(ctx, 0, 2))(t, tpvm.ErrMemberGone, "the barrier of the other one")
				try.OK(t, <-p.barrier(ctx, 0, 1))
				p.join(ctx, t, 1)
				try.Equal(t, p.members[1].Instance(), 1, "the number of the member that has joined again")
				p.meet(ctx, t)
			})
		}
	}
}

// An operation of a group that needs a member, or the coordinator, out of reach fails after
// WithGiveUp with the reason, or as its ctx ends, with the reason too. When the cut ends, the group
// goes on. A member that the coordinator has given up joins again.
//
// Promise (Package tpvm): An operation of a group whose coordinator or member is out of reach fails
// after `WithGiveUp`, or as its ctx ends, with the reason.
func TestGroupUnreachable(t *testing.T) {
	data := make([]int64, 100_000) // more than a member takes unasked
	for what, f := range map[string]func(ctx context.Context, g *tpvm.Group) error{
		"barrier": func(ctx context.Context, g *tpvm.Group) error { return g.Barrier(ctx, 2) },
		"gather here": func(ctx context.Context, g *tpvm.Group) error {
			_, err := tpvm.Gather(ctx, g, 1, g.Instance(), data)
			return err
		},
		"gather elsewhere": func(ctx context.Context, g *tpvm.Group) error {
			_, err := tpvm.Gather(ctx, g, 1, 1-g.Instance(), data)
			return err
		},
		"scatter from here": func(ctx context.Context, g *tpvm.Group) error {
			_, err := tpvm.Scatter(ctx, g, 1, g.Instance(), [][]int64{data, data})
			return err
		},
		"scatter to here": func(ctx context.Context, g *tpvm.Group) error {
			_, err := tpvm.Scatter[int64](ctx, g, 1, 1-g.Instance(), nil)
			return err
		},
		"join":                 func(ctx context.Context, g *tpvm.Group) error { _, err := g.Thread().Join(ctx, "other"); return err },
		"size, of the second":  func(ctx context.Context, g *tpvm.Group) error { _, err := g.Size(ctx); return err },
		"leave, of the second": func(ctx context.Context, g *tpvm.Group) error { return g.Leave(ctx) },
	} {
		for i, who := range []string{"coordinator", "other member"} {
			if i == 0 && strings.HasSuffix(what, "second") {
				continue // needs only the coordinator
			}
			for how, giveUp := range map[string]time.Duration{"given up": 200 * time.Millisecond, "deadline": time.Hour} {
				bubble(t, what+" by the "+who+", "+how, func(t *testing.T) {
					bg := eventually.Context(t)
					p := newPair(bg, t, giveUp, giveUp)
					if what == "join" {
						try.Get(p.tasks[1-i].Join(bg, "other"))(t)
					}
					p.cut()
					ctx, want := bg, lib.ErrUnreachable
					if how == "deadline" {
						awaitDialling(t, p.contexts[i])
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(bg, 50*time.Millisecond)
						defer cancel()
						want = context.DeadlineExceeded
					}
					if err := f(ctx, p.members[i]); !errors.Is(err, want) || !strings.Contains(err.Error(), reach) {
						t.Errorf("%v", err)
					}
					p.Heal()
					if strings.HasPrefix(what, "leave") {
						p.join(bg, t, 1)
					}
					eventually.True(t, "the group goes on", func() bool {
						n, err := p.members[0].Size(bg)
						m, err2 := p.members[1].Size(bg)
						if errors.Is(err2, tpvm.ErrNotInGroup) {
							p.members[1], err2 = p.tasks[1].Join(bg, "g")
						}
						return err == nil && err2 == nil && n == 2 && m == 2
					})
				})
			}
		}
	}
}
