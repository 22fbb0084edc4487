// SPDX-License-Identifier: Apache-2.0

package context

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// others is the rest of a cluster, as the directory of a node sees it. What the directory asks for
// by name is on a node that does not answer.
type others struct {
	directory.Remote
	finds atomic.Int64
	mu    sync.Mutex
	nodes []resource.NodeID // the living nodes
	err   error             // of a search that finds nothing
	hold  chan struct{}     // if not nil, a search waits until it is closed
}

func (o *others) set(err error, nodes ...resource.NodeID) {
	o.mu.Lock()
	o.nodes, o.err = nodes, err
	o.mu.Unlock()
}

func (o *others) Find(context.Context, *resource.List) (resource.Record, error) {
	o.finds.Add(1)
	if o.hold != nil {
		<-o.hold
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return resource.Record{}, o.err
}

func (o *others) All(context.Context, *resource.List, *directory.Coverage) iter.Seq2[resource.Record, error] {
	o.mu.Lock()
	nodes := o.nodes
	o.mu.Unlock()
	return func(yield func(resource.Record, error) bool) {
		for _, n := range nodes {
			l, _ := resource.NewPattern(resource.Match{directory.AttrKind: "node"})
			id := directory.NodeResource(n)
			if !yield(resource.Record{ID: id, Owner: id, Revision: 1, Attrs: *l}, nil) {
				return
			}
		}
	}
}

// A node is dead if the directory does not know it, and is not cut off itself: it knows another
// member. The known addresses are returned with the error. All links together ask a few times a
// second.
func TestNodeDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := directory.NewServer()
		c := newBare(t, s)
		o := &others{Remote: directory.Unreachable(errors.New("nobody is reached"))}
		s.Attach(o)
		peer := resource.MakeGID(c.targets.self.Node()+1, 1, 0)
		third := peer.Node() + 1
		ask := func() (addrs []string, finds int64, err error) {
			time.Sleep(time.Second) // in the synctest bubble: makes the last answer old
			before := o.finds.Load()
			addrs, err = c.targets.Resolve(bg, peer)
			return addrs, o.finds.Load() - before, err
		}
		for what, err := range map[string]error{
			"the directory is cut off": directory.ErrNotFound,
			"a member does not answer": directory.ErrPartial,
			"the node has a resource":  nil,
		} {
			o.set(err)
			if _, _, err := ask(); !errors.Is(err, directory.ErrPartial) || errors.Is(err, dispatch.ErrGone) {
				t.Errorf("%s: %v", what, err)
			}
		}
		o.set(directory.ErrPartial, third)
		if _, _, err := ask(); errors.Is(err, dispatch.ErrGone) {
			t.Error("another node is suspected:", err)
		}
		o.set(directory.ErrNotFound, third)
		if addrs, n, err := ask(); !errors.Is(err, dispatch.ErrNodeDead) || n != 1 || len(addrs) > 0 {
			t.Errorf("the node is dead: %q, %d searches, %v", addrs, n, err)
		}
		before := o.finds.Load()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if _, err := c.targets.Resolve(bg, peer); !errors.Is(err, dispatch.ErrNodeDead) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := o.finds.Load() - before; n != 0 {
			t.Errorf("%d searches for what was just answered", n)
		}
		c.remember(peer, "inproc://there/1")
		for range 2 { // the first attempt uses the cached addresses
			if addrs, err := c.targets.Resolve(bg, peer); !slices.Equal(addrs, []string{"inproc://there/1"}) || err != nil && !errors.Is(err, dispatch.ErrNodeDead) {
				t.Errorf("%q, %v", addrs, err)
			}
		}
		o.set(directory.ErrPartial, third)
		if _, _, err := ask(); errors.Is(err, dispatch.ErrGone) {
			t.Error("the node may live again:", err)
		}
	})
}

// A call that has asked whether a node is dead, and gives up, answers for no other call.
func TestNodeDeadAskerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := directory.NewServer()
		c := newBare(t, s)
		node := c.targets.self.Node() + 1
		o := &others{Remote: directory.Unreachable(errors.New("no member is reached")), hold: make(chan struct{})}
		o.set(directory.ErrNotFound, node+1)
		s.Attach(o)
		ctx, cancel := context.WithCancel(bg)
		first, second := make(chan bool, 1), make(chan bool, 1)
		go func() { first <- c.targets.deaths.isDead(ctx, node) }()
		synctest.Wait() // the first call asks
		go func() { second <- c.targets.deaths.isDead(bg, node) }()
		synctest.Wait() // the second call waits for the first
		if n := o.finds.Load(); n != 1 {
			t.Errorf("%d searches", n)
		}
		cancel()
		if <-first {
			t.Error("the call that gave up says that the node is dead")
		}
		close(o.hold)
		if !<-second {
			t.Error("the other call says that the node lives")
		}
	})
}

// The number of answers about dead nodes that a context keeps is limited.
func TestManyNodesDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := directory.NewServer()
		c := newBare(t, s)
		o := &others{Remote: directory.Unreachable(errors.New("nobody is reached"))}
		s.Attach(o)
		o.set(directory.ErrNotFound, c.targets.self.Node()+1)
		for i := range 1000 {
			time.Sleep(100 * time.Millisecond) // in the synctest bubble: a few questions a second are asked
			if _, err := c.targets.Resolve(bg, resource.MakeGID(resource.NodeID(i+1), 1, 0)); !errors.Is(err, dispatch.ErrNodeDead) {
				t.Fatal(err)
			}
			if n := len(c.targets.deaths.all); n > 100 {
				t.Fatalf("%d nodes are remembered", n)
			}
		}
	})
}
