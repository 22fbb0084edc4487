// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/election"
	"github.com/rocl-go/rocl/rocltest"
)

// A contender is a call of Hold, and its term when it has returned.
type contender struct {
	c    *rocl.Context
	stop context.CancelFunc // of the waiting
	done chan struct{}      // closed when Hold has returned
	term *election.Term
	err  error

	waits bool // it has its place in the queue
}

// inOrder returns the contenders in the order of their claims. Those that were there before keep
// their order.
func inOrder(rt *rapid.T, observer *rocl.Context, name rocl.Attrs, queue []*contender) (sorted []*contender) {
	claims := map[rocl.GID]uint64{}
	for f, err := range observer.FindAll(context.Background(), rocl.Match{election.AttrName: fmt.Sprintf("%q=%q %q=%q", "role", name["role"], "round", name["round"])}) {
		n, nerr := strconv.ParseUint(f.Attrs.GetString(election.AttrClaim), 10, 64)
		if err != nil || nerr != nil {
			rt.Fatal(err, nerr)
		}
		claims[f.Context] = n
	}
	if len(claims) != len(queue) {
		rt.Fatalf("%d claims of %d contenders", len(claims), len(queue))
	}
	sorted = slices.SortedFunc(slices.Values(queue), func(a, b *contender) int { return cmp.Compare(claims[a.c.ID()], claims[b.c.ID()]) })
	for i, x := range queue {
		if at := slices.Index(sorted, x); x.waits && at != i {
			rt.Fatalf("contender %d has the place %d", i, at)
		}
		x.waits = true
	}
	return sorted
}

// Contenders of three nodes come, several at once, with clocks that differ by years. They close
// their terms, stop waiting, and have their contexts closed. After each step, at once, the oldest
// one holds the name.
//
// Promise (Package election): While the nodes reach each other, one process at most holds a name,
// and standbys take it in order, at once. Fencing numbers grow.
func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 3
		cluster := rocltest.Cluster(t, nodes)
		observer := cluster.Open(0)
		rounds := 0
		rapid.Check(struct{ testing.TB }{t}, func(rt *rapid.T) { // a bubble has no deadline
			rounds++
			name := rocl.Attrs{"role": "leader", "round": fmt.Sprint(rounds)}
			var queue []*contender // the oldest first
			last := uint64(0)
			leave := func(rt *rapid.T, end func(*contender)) {
				if len(queue) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(queue)-1).Draw(rt, "contender")
				x := queue[i]
				queue = slices.Delete(queue, i, i+1)
				end(x)
				<-x.done
				if x.term != nil {
					<-x.term.Done()
					x.term.Close()
				}
			}
			defer func() {
				for _, x := range queue {
					x.stop()
					if <-x.done; x.term != nil {
						x.term.Close()
					}
					x.c.Close()
				}
			}()
			rt.Repeat(map[string]func(*rapid.T){
				"hold": func(rt *rapid.T) {
					for range rapid.IntRange(1, 3).Draw(rt, "at once") {
						ctx, stop := context.WithCancel(t.Context())
						x := &contender{c: cluster.Open(rapid.IntRange(0, nodes-1).Draw(rt, "node")), stop: stop, done: make(chan struct{})}
						clock := election.Above(rapid.SampledFrom([]uint64{0, 1 << 61, 1 << 62}).Draw(rt, "clock"))
						queue = append(queue, x)
						go func() {
							defer close(x.done)
							x.term, x.err = election.Hold(ctx, x.c, name, clock)
						}()
					}
				},
				"close or stop waiting": func(rt *rapid.T) {
					leave(rt, func(x *contender) {
						select {
						case <-x.done:
							x.stop()
							if err := x.term.Close(); err != nil || !errors.Is(x.term.Err(), election.ErrClosed) {
								rt.Fatal(err, x.term.Err())
							}
						default:
							x.stop()
							if <-x.done; !errors.Is(x.err, context.Canceled) || x.term != nil {
								rt.Fatal(x.term, x.err)
							}
						}
						x.c.Close()
					})
				},
				"end": func(rt *rapid.T) {
					leave(rt, func(x *contender) {
						x.c.Close()
						if <-x.done; x.term == nil && !errors.Is(x.err, rocl.ErrClosed) {
							rt.Fatal(x.err)
						}
						x.stop()
					})
				},
				"": func(rt *rapid.T) {
					time.Sleep(time.Millisecond) // of virtual time; a pause between two looks is longer
					synctest.Wait()
					queue = inOrder(rt, observer, name, queue)
					for i, x := range queue {
						select {
						case <-x.done:
							if i > 0 || x.err != nil || x.term.Err() != nil {
								rt.Fatalf("contender %d of %d: %v", i, len(queue), x.err)
							}
						default:
							if i == 0 {
								rt.Fatal("the oldest contender does not hold the name")
							}
						}
					}
					f, err := observer.Find(t.Context(), rocl.Match(name))
					if len(queue) == 0 {
						if last = 0; !errors.Is(err, rocl.ErrNotFound) {
							rt.Fatal("a holder is found: ", err)
						}
						return
					}
					n := queue[0].term.Number()
					if err != nil || f.ID != queue[0].term.Resource().ID() || f.Attrs.GetString(election.AttrNumber) != strconv.FormatUint(n, 10) {
						rt.Fatal(f, err)
					}
					if n < last {
						rt.Fatalf("number %d follows %d", n, last)
					}
					last = n
				},
			})
		})
	})
}
