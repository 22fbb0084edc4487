// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/group"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

const (
	tagItem = iota
	tagResult
	tagGroup
	tagOver
)

// Promise (Package group): When a worker between a source and a sink has ended, the source gets
// exactly the items that the worker held: no result is missing, and none comes twice.
func TestCustody(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { custody(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

// custody has a source give items to a worker after another, each of which is killed, until the
// sink has the results of all.
func custody(t *testing.T, rnd *rand.Rand) {
	const items = 500
	var workers sync.WaitGroup
	defer workers.Wait() // one may still be at work on an item that another has done
	ctx, stop := context.WithTimeout(t.Context(), time.Hour)
	defer stop()
	c := rocltest.Cluster(t, 3)
	sc, kc := c.Open(0), c.Open(1)
	source, sink := try.Get(sc.Register(ctx, nil))(t), try.Get(kc.Register(ctx, nil))(t)
	results := make(chan []int, 1)
	go func() {
		got := collect(ctx, t, sink, items)
		try.Check(t, sink.SendBytes(ctx, source.ID(), tagOver, nil))
		results <- got
	}()

	// worker starts a worker that is killed after a while.
	worker := func() rocl.GID {
		rc := c.Open(2)
		me := try.Get(rc.Register(ctx, nil))(t)
		pace, life := time.Duration(rnd.IntN(3))*time.Millisecond, time.Duration(rnd.IntN(100))*time.Millisecond
		workers.Go(func() {
			for m, err := range me.Messages(ctx) {
				if err != nil {
					return
				}
				time.Sleep(pace) // in a bubble: the work
				err = me.SendBytes(ctx, sink.ID(), tagResult, m.Bytes())
				m.Release()
				if err != nil {
					return
				}
			}
		})
		time.AfterFunc(life, func() { rc.Close() })
		return me.ID()
	}

	s := group.NewSource[int](source, sink.ID(), tagGroup)
	todo := make([]int, items)
	for i := range todo {
		todo[i] = i
	}
	for now := worker(); ; {
		for len(todo) > 0 {
			err := s.Give(ctx, now, todo[0])
			if errors.Is(err, group.ErrWorker) {
				now = worker()
				continue
			}
			try.OK(t, err)
			if err := source.SendBytes(ctx, now, tagItem, fmt.Append(nil, todo[0])); err != nil {
				try.Fails(err)(t, rocl.ErrGone)
				now = worker() // the item comes back
			}
			todo = todo[1:]
			time.Sleep(time.Duration(rnd.IntN(2)) * time.Millisecond) // in a bubble
		}
		for len(todo) == 0 { // until a worker has ended, or all results are there
			m := try.Get(source.Recv(ctx))(t)
			isOver := m.Tag() == tagOver
			_, todo, _ = s.Handle(m)
			m.Release()
			if isOver {
				for i, n := range <-results {
					try.Equal(t, n, 1, "results of item", i)
				}
				return
			}
		}
	}
}

// collect receives as many results as there are items, and returns how many came of each.
func collect(ctx context.Context, t *testing.T, sink *rocl.Resource, items int) []int {
	k := group.NewSink(sink, tagGroup)
	got, n := make([]int, items), 0
	for m, err := range sink.Messages(ctx) {
		try.Check(t, err)
		isMine, err := k.Handle(ctx, m)
		try.Check(t, err)
		if !isMine && k.Take(m.From()) {
			var i int
			fmt.Sscan(string(m.Bytes()), &i)
			got[i]++
			n++
		}
		m.Release()
		if n == items {
			break
		}
	}
	return got
}
