// SPDX-License-Identifier: Apache-2.0

package bulk_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/sharedmem"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// Many targets send more requests at a time than the origin serves. The origin never serves more
// than its limit, and all transfers end with the right bytes.
//
// Promise (Package bulk): An endpoint serves a limited number of requests, and one target cannot
// take them all. See also TestGreedyTarget.
func TestRequestsAtATime(t *testing.T) {
	const most, n = 4, 3 << 20
	try.Fails(bulk.Open(deadline(t), nil, bulk.MaxRequests(0)))(t, bulk.ErrRange)
	for name, tr := range transports {
		t.Run(name, func(t *testing.T) {
			if name == "shm" {
				sharedmem.Need(t)
			}
			cl := rocltest.Cluster(t, 1)
			origin := endpoint(t, cl.Open(0, tr...), bulk.MaxRequests(most))
			r := expose(t, origin, bulk.ReadOnly, bulk.Bytes(counting(n)))
			var all sync.WaitGroup
			for range 2 * most { // each may have one request
				target := endpoint(t, cl.Open(0, tr...), bulk.PieceSize(300_000), bulk.Depth(8)) // the origin copies each piece in another goroutine
				for range 2 {
					w := expose(t, origin, bulk.WriteOnly, bulk.Bytes(make([]byte, n)))
					all.Go(func() {
						pulls(t, target, r.Handle(), 0, counting(n))
						try.Works(target.Push(deadline(t), w.Handle(), 0, counting(n)))(t)
					})
				}
			}
			ended := make(chan struct{})
			go func() { all.Wait(); close(ended) }()
			for isOver := false; !isOver; {
				select {
				case <-ended:
					isOver = true
				case <-time.After(50 * time.Microsecond):
				}
				if got := origin.Stats().Serving; got > most {
					t.Fatalf("%d requests at a time", got)
				}
			}
			eventually.True(t, "no request is counted", func() bool { return origin.Stats().Serving == 0 })
			if origin.Stats().Refused == 0 {
				t.Error("the limit was not reached")
			}
		})
	}
}

// A target that uses its whole share of the requests does not delay other targets.
func TestGreedyTarget(t *testing.T) {
	sharedmem.Need(t)
	cl := rocltest.Cluster(t, 1)
	const n = 1 << 20
	reading, goOn := make(chan struct{}, 8), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	hook(t, func(read func() error, local [][]byte) error {
		select {
		case reading <- struct{}{}:
		default:
		}
		<-goOn
		return read()
	})
	origin := endpoint(t, cl.Open(0, transports["shm"]...), bulk.MaxRequests(8))
	greedy, modest := endpoint(t, cl.Open(0, transports["shm"]...)), endpoint(t, cl.Open(0, transports["shm"]...))
	r := expose(t, origin, bulk.ReadOnly, bulk.Bytes(make([]byte, n)))
	var pushes []*bulk.Transfer
	for range 8 { // the origin reads the memory of the target, and is held up
		w := expose(t, origin, bulk.WriteOnly, bulk.Bytes(make([]byte, n)))
		pushes = append(pushes, greedy.StartPush(deadline(t), w.Handle(), 0, counting(n)))
	}
	<-reading
	<-reading
	eventually.True(t, "requests are refused", func() bool { return origin.Stats().Refused > 0 })
	if got := origin.Stats().Serving; got != 2 {
		t.Errorf("%d requests of one target at a time", got)
	}
	try.Works(modest.Pull(deadline(t), r.Handle(), 0, make([]byte, 1000)))(t)
	release()
	for _, p := range pushes {
		try.Works(p.Wait(deadline(t)))(t)
	}
}

// A handle of a resource that releases requests without a reply fails.
func TestSilentOrigin(t *testing.T) {
	overEach(t, func(t *testing.T, origin, target side) {
		silent := try.Get(origin.c.Register(deadline(t), nil))(t)
		ctx := deadline(t)
		var served sync.WaitGroup
		served.Go(func() {
			for {
				m, err := silent.Recv(ctx)
				if err != nil {
					return
				}
				m.Release()
			}
		})
		try.Fails(target.Pull(deadline(t), bulk.HandleOf(silent.ID(), 100), 0, make([]byte, 100)))(t, rocl.ErrNoReply)
		try.Check(t, silent.Close())
		served.Wait()
	})
}

// While an origin has no memory for a copy, it serves requests that need none.
func TestServesWithoutMemory(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	origin := endpoint(t, cl.Open(0, rocl.WithMemory(1<<20)))
	target := endpoint(t, cl.Open(0))
	r := expose(t, origin, bulk.ReadWrite, bulk.Bytes(counting(4000)))
	var all []*rocl.Buffer
	for n := 1 << 20; n >= 64; {
		if b, err := origin.c.Buffer(n); err == nil {
			all = append(all, b)
		} else {
			n /= 2
		}
	}
	got := make([]byte, 4000)
	tr := target.StartPull(deadline(t), r.Handle(), 0, got)
	eventually.True(t, "the pull is served", func() bool { return origin.Stats().Serving == 1 })
	try.Works(target.Push(deadline(t), r.Handle(), 0, counting(100)))(t)
	if _, err := target.Pull(deadline(t), bulk.HandleOf(origin.ID(), 100), 0, make([]byte, 100)); err == nil || errors.Is(err, rocl.ErrNoReply) {
		t.Errorf("what no handle names: %v", err)
	}
	for _, b := range all {
		b.Release()
	}
	if _, err := tr.Wait(deadline(t)); err != nil || !bytes.Equal(got, counting(4000)) {
		t.Error(err)
	}
}
