// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/tpvm"
)

// groupAcross is a group with a member in each of two tasks that reach each other over a cable. The
// first one coordinates.
func groupAcross(t *testing.T, wire *cable, giveUp time.Duration) (tasks [2]*tpvm.Task, members [2]*tpvm.Group) {
	t.Helper()
	ctx, sock := eventually.Context(t), socket(t)
	for i := range tasks {
		c := got(lib.Open(ctx, lib.WithSocket(sock), lib.WithTransports(wire.transport()), lib.WithGiveUp(giveUp), lib.WithLinger(0)))(t)
		t.Cleanup(func() { c.Close() })
		tasks[i] = got(tpvm.Enrol(ctx, tpvm.WithContext(c)))(t)
		members[i] = got(tasks[i].Join(ctx, "g"))(t)
	}
	meet(t, members)
	return tasks, members
}

// meet lets both members pass a barrier.
func meet(t *testing.T, members [2]*tpvm.Group) {
	t.Helper()
	ctx := eventually.Context(t)
	first := make(chan error, 1)
	go func() { first <- members[0].Barrier(ctx, 2) }()
	must(t, errors.Join(members[1].Barrier(ctx, 2), <-first))
}

// An operation of a group that needs a member, or the coordinator, out of reach fails after
// WithGiveUp with the reason, or as its ctx ends, with the reason too. When the cut ends, the group
// goes on. A member that the coordinator has given up joins again.
//
// Promise (Package tpvm): An operation of a group whose coordinator or member is out of reach fails
// after `WithGiveUp`, or as its ctx ends, with the reason.
func TestGroupUnreachable(t *testing.T) {
	bg := context.Background()
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
				t.Run(what+" by the "+who+", "+how, func(t *testing.T) {
					t.Parallel()
					wire := &cable{conns: map[net.Conn]bool{}}
					tasks, members := groupAcross(t, wire, giveUp)
					if what == "join" {
						got(tasks[1-i].Join(bg, "other"))(t)
					}
					wire.cut()
					ctx, cancel, want := eventually.Context(t), func() {}, lib.ErrUnreachable
					if how == "deadline" {
						awaitDialling(t, tasks[i].Rocl())
						ctx, cancel = context.WithTimeout(bg, 50*time.Millisecond)
						want = context.DeadlineExceeded
					}
					err := f(ctx, members[i])
					cancel()
					if !errors.Is(err, want) || !strings.Contains(err.Error(), "127.0.0.1:") {
						t.Errorf("%v", err)
					}
					wire.mend()
					if strings.HasPrefix(what, "leave") {
						members[1] = got(tasks[1].Join(bg, "g"))(t)
					}
					eventually.True(t, "the group goes on", func() bool {
						n, err := members[0].Size(bg)
						m, err2 := members[1].Size(bg)
						if errors.Is(err2, tpvm.ErrNotInGroup) {
							members[1], err2 = tasks[1].Join(bg, "g")
						}
						return err == nil && err2 == nil && n == 2 && m == 2
					})
				})
			}
		}
	}
}
