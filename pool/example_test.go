// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl/pool"
)

func Example() {
	ctx := context.Background()
	s := pool.New()
	var mu sync.Mutex
	var squares []int
	for i := range 5 {
		err := s.Default().Submit(ctx, pool.Unit{Run: func(context.Context) {
			mu.Lock()
			defer mu.Unlock()
			squares = append(squares, i*i)
		}})
		if err != nil {
			log.Fatal(err)
		}
	}
	if err := s.Close(ctx); err != nil { // waits for the units
		log.Fatal(err)
	}
	slices.Sort(squares)
	fmt.Println(squares)
	// Output: [0 1 4 9 16]
}

func ExampleLoad() {
	s, err := pool.Load([]byte(`{"pools": [
		{"name": "reads",  "workers": "unbounded"},
		{"name": "writes", "policy": "keyed", "workers": 8, "queue": 1000, "when_full": "wait"}
	]}`))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close(context.Background())
	for _, p := range s.Pools() {
		fmt.Println(p.Name())
	}
	_, err = pool.Load([]byte(`{"pools": [{"name": "reads", "threads": 8}]}`))
	fmt.Println(err)
	// Output:
	// reads
	// writes
	// pool: configuration: pools[0].threads: no such key
}

// Units of one key keep their order, here the steps of each account.
func ExamplePool_Submit_keyed() {
	ctx := context.Background()
	s, err := pool.NewSet(pool.Config{Pools: []pool.PoolConfig{{Policy: pool.Keyed, Workers: 4}}})
	if err != nil {
		log.Fatal(err)
	}
	var steps [3][]string // of each account; units of one key never run at the same time
	for _, step := range []string{"open", "pay", "close"} {
		for account := range steps {
			err := s.Default().Submit(ctx, pool.Unit{Key: uint64(account), Run: func(context.Context) {
				steps[account] = append(steps[account], step)
			}})
			if err != nil {
				log.Fatal(err)
			}
		}
	}
	if err := s.Close(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(steps)
	// Output: [[open pay close] [open pay close] [open pay close]]
}

// A bounded queue refuses units instead of making all of them late.
func ExamplePool_Submit_full() {
	ctx := context.Background()
	s, err := pool.NewSet(pool.Config{Pools: []pool.PoolConfig{{Name: "scans", Workers: 1, Queue: 1}}})
	if err != nil {
		log.Fatal(err)
	}
	end := make(chan struct{})
	for range 3 {
		err := s.Default().Submit(ctx, pool.Unit{Run: func(context.Context) { <-end }})
		if errors.Is(err, pool.ErrFull) {
			fmt.Println(err)
		}
	}
	close(end)
	if err := s.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: pool: submit "scans": the queue is full (limit 1)
}

func ExampleSet_Resize() {
	s, err := pool.Load([]byte(`{"pools": [{"name": "scans", "workers": 1}]}`))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close(context.Background())
	var three sync.WaitGroup
	three.Add(3)
	meet := func(context.Context) { three.Done(); three.Wait() } // ends when three run at a time
	for range 3 {
		if err := s.Default().Submit(context.Background(), pool.Unit{Run: meet}); err != nil {
			log.Fatal(err)
		}
	}
	if err := s.Resize("scans", 3); err != nil {
		log.Fatal(err)
	}
	three.Wait()
	fmt.Println("three at a time")
	// Output: three at a time
}

func ExampleStream_SetScheduler() {
	s, err := pool.Load([]byte(`{
		"pools":   [{"name": "urgent"}, {"name": "rest"}],
		"streams": [{"name": "worker", "pools": ["urgent", "rest"]}]
	}`))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close(context.Background())
	worker, err := s.Stream("worker")
	if err != nil {
		log.Fatal(err)
	}
	worker.SetScheduler(pool.WeightedRandom(9, 1)) // nine urgent units to one of the rest
	done := make(chan struct{})
	rest := s.Pools()[1]
	if err := rest.Submit(context.Background(), pool.Unit{Run: func(context.Context) { close(done) }}); err != nil {
		log.Fatal(err)
	}
	<-done
	fmt.Println("the stream serves pool", rest.Name())
	// Output: the stream serves pool rest
}

func ExampleConfig_Validate() {
	c := pool.Config{
		Pools:   []pool.PoolConfig{{Name: "urgent"}, {Name: "rest"}},
		Streams: []pool.StreamConfig{{Pools: []string{"urgent", "rest"}}, {Pools: []string{"urgent"}}},
	}
	warnings, err := c.Validate()
	if err != nil {
		log.Fatal(err)
	}
	for _, w := range warnings {
		fmt.Println(w)
	}
	// Output: pools[1]: pool "rest" is never the first of a stream: its units wait while the pools before it have units
}

func ExampleSet_Close() {
	s := pool.New()
	end := make(chan struct{})
	_ = s.Default().Submit(context.Background(), pool.Unit{Run: func(context.Context) { <-end }})
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	fmt.Println(s.Close(ctx))
	close(end)
	fmt.Println(s.Close(context.Background()))
	// Output:
	// pool: close: pool "default" has 0 queued, 1 running: context deadline exceeded
	// <nil>
}

// A unit that waits is moved to a pool that has a worker for it, and another one is cancelled.
func ExampleTicket() {
	ctx := context.Background()
	s, err := pool.Load([]byte(`{"pools": [{"name": "busy", "workers": 1}, {"name": "idle", "workers": 1}]}`))
	if err != nil {
		log.Fatal(err)
	}
	busy, idle := s.Pools()[0], s.Pools()[1]
	end := make(chan struct{})
	if err := busy.Submit(ctx, pool.Unit{Run: func(context.Context) { <-end }}); err != nil {
		log.Fatal(err)
	}
	moved, err := busy.SubmitTicket(ctx, pool.Unit{Run: func(context.Context) { fmt.Println("moved"); close(end) }})
	if err != nil {
		log.Fatal(err)
	}
	cancelled, err := busy.SubmitTicket(ctx, pool.Unit{Run: func(context.Context) { fmt.Println("never") }})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("cancelled:", cancelled.Cancel())
	if err := moved.Move(idle); err != nil {
		log.Fatal(err)
	}
	if err := s.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// cancelled: true
	// moved
}
