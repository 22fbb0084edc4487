// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
)

// A reception receives the messages to a node. Two goroutines take turns: the node's own receives
// while the node waits for what only a message can bring, so that no other one has to hand it over,
// and the reserve receives when the node does not: until its first wait, after its end, and when it
// has been busy for a while.
type reception struct {
	m   *remote
	res *rocl.Resource

	turn      mutex // held by the goroutine that receives
	waits     atomic.Uint64
	wanted    atomic.Bool                        // the node waits for its turn
	interrupt atomic.Pointer[context.CancelFunc] // ends the turn of the reserve
	isParked  atomic.Bool                        // the reserve sleeps until the node leaves
	left      chan struct{}
	isOver    atomic.Bool // the node has ended
}

func newReception(m *remote) *reception {
	return &reception{m: m, turn: newMutex(), left: make(chan struct{}, 1)}
}

// busyFor is the time after which the reserve receives for a node that does not: one to two of it.
const busyFor = time.Millisecond

// wait receives in the node's goroutine until ready reports true.
func (p *reception) wait(ctx context.Context, ready func() bool) error {
	if !p.turn.TryLock() {
		p.wanted.Store(true)
		if end := p.interrupt.Load(); end != nil {
			(*end)()
		}
		p.turn.Lock()
		p.wanted.Store(false)
	}
	p.waits.Add(1) // odd while the node waits
	defer p.leave()
	for !ready() {
		msg, err := p.res.Recv(ctx)
		if err != nil {
			return err
		}
		p.m.handle(p, msg)
		msg.Release()
	}
	return nil
}

// leave ends the node's turn.
func (p *reception) leave() {
	p.waits.Add(1)
	p.turn.Unlock()
	if p.isParked.Load() {
		p.wake()
	}
}

// end says that the node waits no more.
func (p *reception) end() {
	p.isOver.Store(true)
	p.wake()
}

func (p *reception) wake() {
	select {
	case p.left <- struct{}{}:
	default:
	}
}

// reserve is the loop of the reserve. It returns when ctx ends, or with the error of a receive.
func (p *reception) reserve(ctx context.Context) error {
	tick := time.NewTimer(busyFor)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := p.standIn(ctx); err != nil {
			return err
		}
		p.awaitBusy(ctx, tick)
	}
	return nil
}

// standIn receives until the node wants its turn.
func (p *reception) standIn(ctx context.Context) error {
	if !p.turn.TryLock() {
		return nil
	}
	defer p.turn.Unlock()
	own, end := context.WithCancel(ctx)
	defer end()
	p.interrupt.Store(&end)
	if p.wanted.Load() {
		return nil
	}
	for msg, err := range p.res.Messages(own) {
		if err != nil {
			return err
		}
		p.m.handle(p, msg)
		msg.Release()
	}
	if own.Err() == nil {
		return rocl.ErrClosed
	}
	return nil
}

// awaitBusy returns when the node has not waited for a while, or has ended.
func (p *reception) awaitBusy(ctx context.Context, tick *time.Timer) {
	for !p.isOver.Load() && ctx.Err() == nil {
		before := p.waits.Load()
		tick.Reset(busyFor)
		select {
		case <-tick.C:
		case <-p.left:
		case <-ctx.Done():
		}
		switch {
		case p.waits.Load() != before:
		case before%2 == 0:
			return
		default: // the node still waits
			p.isParked.Store(true)
			if p.waits.Load() == before && !p.isOver.Load() {
				select {
				case <-p.left:
				case <-ctx.Done():
				}
			}
			p.isParked.Store(false)
		}
	}
}
