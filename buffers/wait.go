// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"context"
	"sync"
)

// The state word of a buffer counts the sends in progress, so that a sender may retain a buffer and
// send it to several targets at once:
//
//	bits    0 … 7        8                        9 …
//	        the State    a goroutine waits for    sends that have begun
//	                     the last send's end      and not ended
const (
	stateBits = 0xff
	waitedFor = 1 << 8
	oneSend   = 1 << 9
)

// State returns where the buffer is in its life, as rocl_bfstat does in the paper.
func (b *Buffer) State() State {
	if b.free {
		return Free
	}
	w := b.state.Load()
	if w >= oneSend {
		return Sending
	}
	return State(w & stateBits)
}

// BeginSend counts a send that has been accepted. Links call it for a buffer that its sender has
// retained.
func (b *Buffer) BeginSend() { b.state.Add(oneSend) }

// EndSend ends a send that BeginSend has counted. It may be called without BeginSend. The end of
// the last send makes the buffer Delivered and wakes the goroutines in Wait.
func (b *Buffer) EndSend() {
	for {
		was := b.state.Load()
		now := was&^stateBits | uint32(Delivered)
		if was >= oneSend {
			now -= oneSend
		}
		ends := now < oneSend && was&waitedFor != 0
		if ends {
			now &^= waitedFor
		}
		if b.state.CompareAndSwap(was, now) {
			if ends {
				b.pool.waits.fire(b)
			}
			return
		}
	}
}

// EndCopied marks a buffer delivered whose message was copied at once, and releases the reference
// of the send.
func (b *Buffer) EndCopied() {
	if b.Refs() > 1 { // another holder may ask
		b.SetDelivered()
	}
	b.Release()
}

// SetDelivered records that one send of the buffer ended at once. Sends that BeginSend has counted
// are not affected.
func (b *Buffer) SetDelivered() {
	for {
		was := b.state.Load()
		if was < oneSend {
			b.state.Store(uint32(Delivered)) // no send is in progress, so no goroutine waits
			return
		}
		if b.state.CompareAndSwap(was, was&^stateBits|uint32(Delivered)) {
			return
		}
	}
}

// Done reports whether the library has ended its use of a buffer that its sender has retained: each
// send of it was delivered or reported as undelivered.
func (b *Buffer) Done() bool { return b.State() != Sending }

// Wait waits until Done reports true and returns nil. If ctx ends first, Wait returns its cause.
// The caller must hold a reference of its own: retain the buffer before it is sent, and release it
// after Wait.
//
// After nil the library does not read the memory any more, so the caller may write it again. nil
// does not mean that the message was delivered: [context.Resource.Flush] reports that.
//
// Any number of goroutines may wait for a buffer. Wait returns at once if the buffer is not being
// sent.
func (b *Buffer) Wait(ctx context.Context) error {
	if b.Done() {
		return nil
	}
	b.pool.mu.Lock()
	how := b.pool.waiter
	b.pool.mu.Unlock()
	if how == nil {
		how = plainWaiter{}
	}
	s := &b.pool.waits
	w := new(waiting)
	return how.WaitFor(ctx, func(fire func()) bool { w.fire = fire; return s.add(b, w) }, func() bool { return s.remove(b, w) })
}

// A Waiter waits on behalf of a goroutine. WaitFor calls begin, and returns nil if begin returns
// false: the wait is not needed. Otherwise it waits until the function that it gave to begin is
// called, or until ctx ends. The function is called at most once, with the lock of the pool's waits
// held, so it must not call begin or end. When ctx ends, WaitFor calls end. It returns the cause of
// ctx if end reports true: the goroutine was still waiting. It returns nil if end reports false:
// the function has been called.
type Waiter interface {
	WaitFor(ctx context.Context, begin func(fire func()) bool, end func() (waited bool)) error
}

// SetWaiter makes w wait for the goroutines in Buffer.Wait. Without a Waiter, each blocks on a
// channel.
func (p *Pool) SetWaiter(w Waiter) {
	p.mu.Lock()
	p.waiter = w
	p.mu.Unlock()
}

type plainWaiter struct{}

func (plainWaiter) WaitFor(ctx context.Context, begin func(func()) bool, end func() bool) error {
	fired := make(chan struct{})
	if !begin(func() { close(fired) }) {
		return nil
	}
	select {
	case <-fired:
		return nil
	case <-ctx.Done():
		if end() {
			return context.Cause(ctx)
		}
		return nil
	}
}

// waits holds the goroutines that wait for buffers of a pool.
type waits struct {
	mu sync.Mutex // may be taken with any other lock held; with it held, only fire of a waiting goroutine takes locks
	on map[*Buffer]map[*waiting]struct{}
}

type waiting struct{ fire func() }

// add records that a goroutine waits for b. It reports false if b is not being sent.
func (s *waits) add(b *Buffer, w *waiting) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		was := b.state.Load()
		if was < oneSend {
			return false
		}
		if b.state.CompareAndSwap(was, was|waitedFor) {
			break
		}
	}
	if s.on == nil {
		s.on = map[*Buffer]map[*waiting]struct{}{}
	}
	if s.on[b] == nil {
		s.on[b] = map[*waiting]struct{}{}
	}
	s.on[b][w] = struct{}{}
	return true
}

// remove ends the wait that add recorded. It reports false if w has been fired.
func (s *waits) remove(b *Buffer, w *waiting) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, isThere := s.on[b][w]; !isThere {
		return false
	}
	if delete(s.on[b], w); len(s.on[b]) == 0 {
		delete(s.on, b)
	}
	return true
}

func (s *waits) fire(b *Buffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.on[b] {
		w.fire()
	}
	delete(s.on, b)
}
