// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/tpvm"
)

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
	ctx := eventually.Context(t)
	for _, isNear := range []bool{true, false} { // the first member, near, is with the coordinator
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprintf("coordinator gives up: %v, the other one waits: %v", isNear, waits), func(t *testing.T) {
				t.Parallel()
				wire, sock := &cable{conns: map[net.Conn]bool{}}, socket(t)
				var contexts []*lib.Context
				var groups []*tpvm.Group
				var tasks []*tpvm.Task
				for i := range 2 {
					opts := []lib.Option{lib.WithSocket(sock), lib.WithTransports(wire.transport()), lib.WithUndelivered(func(lib.Undelivered) {})}
					if isNear == (i == 0) {
						opts = append(opts, lib.WithGiveUp(200*time.Millisecond))
					}
					c := got(lib.Open(ctx, opts...))(t)
					t.Cleanup(func() { c.Close() })
					task := got(tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM(t.Name())))(t)
					t.Cleanup(func() { task.Exit(ctx) })
					g := got(task.Join(ctx, "g"))(t)
					contexts, groups, tasks = append(contexts, c), append(groups, g), append(tasks, task)
				}
				barrier := func(i, count int) <-chan error {
					done := make(chan error, 1)
					go func() {
						err := groups[i].Barrier(ctx, count)
						for errors.Is(err, lib.ErrUnreachable) && !errors.Is(err, tpvm.ErrMemberGone) { // the coordinator was given up
							err = groups[i].Barrier(ctx, count)
						}
						done <- err
					}()
					return done
				}
				both := func() {
					t.Helper()
					first, second := barrier(0, 2), barrier(1, 2)
					must(t, errors.Join(<-first, <-second))
				}
				both()
				gives, idle := contexts[0], contexts[1]
				if !isNear {
					gives, idle = idle, gives
				}
				from := got(gives.Register(ctx, nil))(t)
				to := got(idle.Register(ctx, nil))(t)
				var second <-chan error
				if waits {
					second = barrier(1, 2)
					got(groups[1].Size(ctx))(t) // its answer comes behind the arrival
				}
				wire.cut()
				if _, err := from.CallBytes(ctx, to.ID(), 1, nil); !errors.Is(err, lib.ErrUnreachable) {
					t.Fatal(err)
				}
				wire.mend()
				if !waits {
					second = barrier(1, 2)
				}
				if !isNear {
					must(t, errors.Join(<-barrier(0, 2), <-second))
					both()
					return
				}
				if err := <-second; !errors.Is(err, tpvm.ErrNotInGroup) {
					t.Errorf("the barrier of the member that was given up: %v", err)
				}
				if err := <-barrier(0, 2); !errors.Is(err, tpvm.ErrMemberGone) {
					t.Errorf("the barrier of the other one: %v", err)
				}
				must(t, <-barrier(0, 1))
				groups[1] = got(tasks[1].Join(ctx, "g"))(t)
				if n := groups[1].Instance(); n != 1 {
					t.Errorf("the member that has joined again has the number %d", n)
				}
				both()
			})
		}
	}
}
