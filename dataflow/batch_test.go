// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// timed returns a sink that notes how long after the start each item came.
func timed(after *[]time.Duration) Part[int, None] {
	began := time.Now()
	return To(func(context.Context, Item[int]) error {
		*after = append(*after, time.Since(began))
		return nil
	})
}

// A batch leaves when it has its number of items, when its first item has waited for the delay, by
// Flush, and at the end of the stream.
func TestBatchLeaves(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		code func(ctx context.Context, out Out[int]) error
		want []time.Duration
	}{
		{"count", func(ctx context.Context, out Out[int]) error {
			return errors.Join(out.Send(ctx, 1), out.Send(ctx, 2), out.Send(ctx, 3), wait(9*ms))
		}, []time.Duration{0, 0, 0}},
		{"delay", func(ctx context.Context, out Out[int]) error {
			return errors.Join(out.Send(ctx, 1), wait(1*ms), out.Send(ctx, 2), wait(9*ms), out.Send(ctx, 3), wait(9*ms))
		}, []time.Duration{5 * ms, 5 * ms, 15 * ms}},
		{"flush", func(ctx context.Context, out Out[int]) error {
			return errors.Join(out.Send(ctx, 1), wait(2*ms), out.Flush(ctx), wait(9*ms))
		}, []time.Duration{2 * ms}},
		{"end", func(ctx context.Context, out Out[int]) error {
			return errors.Join(out.Send(ctx, 1), wait(2*ms))
		}, []time.Duration{2 * ms}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var got []time.Duration
			g := try.Get(New(c.name, Pipeline(From(c.code, Batch(3, 0, 5*ms)), timed(&got))))(t)
			try.OK(t, g.Run(t.Context()))
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: the items came after %v, want %v", c.name, got, c.want)
			}
		})
	}
}

// wait sleeps in the bubble's time.
func wait(d time.Duration) error {
	time.Sleep(d) // in a bubble
	return nil
}

// Batches leave before an item that is sent back, and before their sender waits
// for a consumer.
func TestBatchLeavesBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []time.Duration
		back := Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
			if in.Back {
				return errors.Join(wait(time.Minute), Done)
			}
			return errors.Join(out.Send(ctx, in.Value), out.SendBack(ctx, 0, in.Value))
		}), Batch(100, 0, time.Hour))
		g := try.Get(New("back", Pipeline3(count(1), Loop(back), timed(&got))))(t)
		try.OK(t, g.Run(t.Context()))
		try.Equal(t, len(got), 1)
		try.Equal(t, got[0], 0)
	})
	synctest.Test(t, func(t *testing.T) {
		var got []time.Duration
		g := try.Get(New("window", Pipeline(count(5, Batch(100, 0, time.Hour), Window(2)), timed(&got))))(t)
		try.OK(t, g.Run(t.Context()))
		if !slices.Equal(got, make([]time.Duration, 5)) {
			t.Errorf("the items came after %v", got)
		}
	})
}

// Promise (Dataflow): Balanced sends to the consumer that has the fewest items, however large the
// window is.
func TestBalanced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := From(func(ctx context.Context, out Out[int]) error {
			for i := range 100 {
				if err := errors.Join(out.Send(ctx, i), wait(time.Millisecond)); err != nil {
					return err
				}
			}
			return nil
		})
		var k collector[int]
		slow := To(func(context.Context, Item[int]) error { return wait(time.Hour) })
		g := try.Get(New("balanced", Pipeline(src, AllToAll(
			[]Part[int, int]{pass[int]("P")}, []Part[int, None]{slow, k.sink("K")}))))(t)
		try.OK(t, g.Run(t.Context()))
		if n := len(k.values("K")); n < 98 {
			t.Errorf("the idle consumer got %d items", n)
		}
	})
}

// Promise (Dataflow): A sender waits while a consumer has a window of items that it has not taken.
func TestWindow(t *testing.T) {
	for _, batch := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			sent, release := 0, make(chan struct{})
			src := From(func(ctx context.Context, out Out[int]) error {
				for ; sent < 100; sent++ {
					if err := out.Send(ctx, sent); err != nil {
						return err
					}
				}
				return nil
			}, Window(10), Batch(batch, 0, 0))
			sink := To(func(context.Context, Item[int]) error {
				<-release
				return nil
			})
			g := try.Get(New("window", Pipeline(src, sink)))(t)
			done := make(chan error)
			go func() { done <- g.Run(t.Context()) }()
			synctest.Wait()
			try.Equal(t, sent, 11, "with the item that the sink has taken")
			close(release)
			try.OK(t, <-done)
		})
	}
}

// Promise (Dataflow): Send returns Done when every consumer has ended, and an endless source ends.
func TestConsumerDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := From(func(ctx context.Context, out Out[int]) error {
			for i := 0; ; i++ {
				if err := out.Send(ctx, i); err != nil {
					return err
				}
			}
		})
		n := 0
		first := Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
			n++
			if n == 10 {
				return errors.Join(out.Send(ctx, in.Value), Done)
			}
			return out.Send(ctx, in.Value)
		}))
		var k collector[int]
		g := try.Get(New("done", Pipeline3(src, first, k.sink("K"))))(t)
		try.OK(t, g.Run(t.Context()))
		checkNumbers(t, k.values("K"), 10)
	})
}

// Promise (Dataflow): Broadcast sends each item to each consumer, and ByKey all items of a key to
// one.
func TestBroadcastAndByKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k collector[int]
		sinks := []Part[int, None]{k.sink("K0"), k.sink("K1"), k.sink("K2")}
		g := try.Get(New("broadcast", AllToAll([]Part[None, int]{count(50)}, sinks, Policy(Broadcast))))(t)
		try.OK(t, g.Run(t.Context()))
		for _, name := range []string{"K0", "K1", "K2"} {
			checkNumbers(t, k.values(name), 50)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var k collector[int]
		sinks := []Part[int, None]{k.sink("K0"), k.sink("K1"), k.sink("K2")}
		g := try.Get(New("keys", AllToAll([]Part[None, int]{count(60)}, sinks, Policy(ByKey(func(v int) uint64 { return uint64(v % 6) })))))(t)
		try.OK(t, g.Run(t.Context()))
		for i, name := range []string{"K0", "K1", "K2"} {
			try.Equal(t, len(k.values(name)), 20)
			for _, v := range k.values(name) {
				try.Equal(t, v%3, i)
			}
		}
	})
}

// bytewise encodes bytes.
type bytewise struct{}

func (bytewise) Append(p []byte, v uint8) ([]byte, error) { return append(p, v), nil }
func (bytewise) Decode(p []byte) (uint8, error)           { return p[0], nil }

// Promise (Dataflow): An option that does not fit the items is refused.
func TestOptionsRefused(t *testing.T) {
	text := ByKey(func(string) uint64 { return 0 })
	var k collector[int]
	for name, p := range map[string]Part[None, int]{
		"key of a node":    count(1, Policy(text)),
		"codec":            count(1, Codec[uint8](bytewise{})),
		"batch":            count(1, Batch(-1, 0, 0)),
		"window":           count(1, Window(0)),
		"demand":           count(1, Policy(OnDemand(0))),
		"ordered":          count(1, Ordered(3)),
		"key of a farm":    Pipeline(count(1), Farm(2, func(int) Part[int, int] { return pass[int]("P") }, Policy(text))),
		"key of AllToAll":  Pipeline(count(1), AllToAll(passes(1, "L"), passes(1, "R"), Policy(text))),
		"an empty farm":    Pipeline(count(1), Farm(0, func(int) Part[int, int] { return pass[int]("P") })),
		"fused parts":      Pipeline(count(1), Fuse(Pipeline(pass[int]("A"), pass[int]("B")), pass[int]("C"))),
		"loss of a string": Pipeline(count(1), Elastic[int, int]("E", OnLoss(func(string, error) error { return nil }))),
		"no part":          {},
		"no source":        From[int](nil),
		"no stage":         Pipeline(count(1), Do[int, int](nil)),
		"no function":      Pipeline(count(1), Do(Func[int, int](nil))),
		"no workers":       Pipeline(count(1), Farm[int, int](2, nil)),
	} {
		_, err := New("refused", Pipeline(p, k.sink("K")))
		try.Fails(err)(t, ErrGraph, "%s", name)
	}
	_, err := New("refused", Pipeline(count(1), To[int](nil)))
	try.Fails(err)(t, ErrGraph, "no sink")
}
