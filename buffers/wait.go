// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"context"
	"sync"
)

// The state word of a buffer that its sender has retained counts the sends that are not
// through, so that a buffer may be sent to several targets at once:
//
//	bits    0 … 7        8                        9 …
//	        the State    a goroutine waits for    sends that have begun
//	                     the last send's end      and not ended
const (
	stateBits = 0xff
	waitedFor = 1 << 8
	oneSend   = 1 << 9
)

// State returns where the buffer is in its life, as rocl_bfstat does.
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

// BeginSend counts a send that has been accepted. Links call it, for a buffer that its
// sender has retained.
func (b *Buffer) BeginSend() { b.state.Add(oneSend) }

// EndSend ends what BeginSend began. It may be called without BeginSend. After the last
// send's end the buffer is Delivered, and the goroutines in Wait go on.
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

// EndCopied releases the reference of a send whose message was copied at once.
func (b *Buffer) EndCopied() {
	if b.Refs() > 1 { // another holder may ask
		b.SetDelivered()
	}
	b.Release()
}

// SetDelivered says that one send of the buffer was through at once. Sends that
// BeginSend has counted go on.
func (b *Buffer) SetDelivered() {
	for {
		was := b.state.Load()
		if was < oneSend {
			b.state.Store(uint32(Delivered)) // no send, so nobody waits
			return
		}
		if b.state.CompareAndSwap(was, was&^stateBits|uint32(Delivered)) {
			return
		}
	}
}

// Done reports whether the library is through with a buffer that its sender has retained:
// each send of it was delivered or reported as undelivered.
func (b *Buffer) Done() bool { return b.State() != Sending }

// Wait waits until Done reports true, or until ctx ends; then it returns the cause. The
// caller must hold a reference of its own: retain the buffer before it is sent, and
// release it after Wait. nil means that the library does not read the memory any more, so
// it may be written again. It does not mean that the message was delivered:
// [context.Resource.Flush] tells that.
//
// Any number of goroutines may wait for a buffer. A buffer that is not being sent is not
// waited for.
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

// A Waiter waits on behalf of a goroutine. WaitFor calls begin, which returns false if
// there is nothing to wait for. Otherwise it waits until the function that it gave to begin
// is called, which happens once and without a lock of the pool's that the function might
// need, or until ctx ends: then it calls end, and returns nil if end reports that the
// function has been called.
type Waiter interface {
	WaitFor(ctx context.Context, begin func(fire func()) bool, end func() (waited bool)) error
}

// SetWaiter has w wait for the goroutines in Buffer.Wait. Without a Waiter they sleep.
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

// waits are the goroutines of a pool that wait for buffers.
type waits struct {
	mu sync.Mutex // may be taken with any other lock held; no lock is taken with it but by fire of a waiting goroutine
	on map[*Buffer]map[*waiting]struct{}
}

type waiting struct{ fire func() }

// add notes that a goroutine waits. It returns false if b is not being sent.
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

// remove ends what add began. It returns false if w has been fired.
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
