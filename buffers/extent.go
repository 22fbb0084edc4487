// SPDX-License-Identifier: Apache-2.0

package buffers

import "context"

// extent returns a buffer above the largest class: a released one of suitable size, or a new
// mapping, which ends with ctx. Other goroutines use the pool while the memory is mapped.
func (p *Pool) extent(ctx context.Context, n int) (*Buffer, error) {
	size := paged(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	best := -1
	for i, b := range p.large {
		if l := len(b.mem); suits(l, size) && (best < 0 || l < len(p.large[best].mem)) {
			best = i
		}
	}
	if best >= 0 {
		b := p.large[best]
		p.large[best] = p.large[len(p.large)-1]
		p.large = p.large[:len(p.large)-1]
		p.largeBytes -= int64(len(b.mem))
		p.largeOut++
		b.free = false
		return b, nil
	}
	h, err := p.mapArenaLocked(ctx, size, classes, 1)
	if err != nil {
		return nil, err
	}
	p.largeOut++
	return &h.bufs[0], nil
}

func paged(n int) int { return (n + pageSize - 1) &^ (pageSize - 1) }

// suits reports whether an extent of l bytes fits size and wastes at most a quarter of it.
func suits(l, size int) bool { return l >= size && l <= size+size/4 }

// warm returns the extent that was released last, without taking a lock. It returns nil if none is
// in the slot, or if that one does not suit n.
func (p *Pool) warm(n int) *Buffer {
	b := p.hot.take()
	if b == nil {
		return nil
	}
	if suits(len(b.mem), paged(n)) && p.heed.Load() == 0 {
		b.free = false
		return b
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keepLocked(b)
	p.notifyLocked()
	return nil
}

// coolLocked moves the extent from the slot to the list of large extents. mu must be held.
func (p *Pool) coolLocked() {
	if b := p.hot.take(); b != nil {
		p.keepLocked(b)
	}
}

// keepLocked adds a released extent to the list of large extents. It unmaps the oldest ones while
// the list exceeds maxCached, or if the pool is closed. mu must be held.
func (p *Pool) keepLocked(b *Buffer) {
	b.free = true
	p.largeOut--
	p.large = append(p.large, b)
	p.largeBytes += int64(len(b.mem))
	for p.largeBytes > maxCached || p.closed && len(p.large) > 0 {
		old := p.large[0]
		p.large = append(p.large[:0], p.large[1:]...)
		p.largeBytes -= int64(len(old.mem))
		p.unmap(old.home)
	}
}
