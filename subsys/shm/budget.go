// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"sync"
	"sync/atomic"
)

// Limits of what peers may have mapped in a port's process. A process has 65,530 mappings
// (vm.max_map_count) and ends when the Go runtime gets no more. So a part of them is shared out:
// many to the first connections, and the minimum to each of very many.
const (
	fewArenas  = 8       // minimum of each peer, and limit of a peer that is not admitted
	fewBytes   = 4 << 30 // the same in bytes: one message of the largest size and some smaller ones
	peerArenas = 1 << 10 // limits of one peer
	peerGiB    = 64
	portArenas = 1 << 14 // limits of all peers, beside the minimum of each
	portGiB    = 4 << 10
	oneOf      = 16 // each quota is this fraction of what is left
)

// A budget is the sum that a port has granted to admitted peers. Its lock is the last one taken.
type budget struct {
	mu     sync.Mutex
	arenas int
	gib    int
}

// A quota is the number of arenas and of their bytes that a peer may have mapped at a time, besides
// those in which messages are held. An arena that the peer has withdrawn stays mapped while a held
// message lies in it. So up to maxLoans further arenas of the peer may be mapped. The zero value is
// the minimum.
type quota struct {
	arenas atomic.Uint32 // more than fewArenas
	gib    atomic.Uint32 // more than fewBytes
	made   atomic.Bool
}

func (q *quota) get() (arenas int, bytes uint64) {
	return fewArenas + int(q.arenas.Load()), fewBytes + uint64(q.gib.Load())<<30
}

// grow grants more to a peer. It reports false if that was done before.
func (b *budget) grow(q *quota) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q.made.Swap(true) {
		return false
	}
	arenas := min((portArenas-b.arenas)/oneOf, peerArenas-fewArenas)
	gib := min((portGiB-b.gib)/oneOf, peerGiB-fewBytes>>30)
	b.arenas += arenas
	b.gib += gib
	q.gib.Store(uint32(gib))
	q.arenas.Store(uint32(arenas))
	return true
}

// reclaim takes a quota back. The peer gets no other one.
func (b *budget) reclaim(q *quota) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arenas -= int(q.arenas.Swap(0))
	b.gib -= int(q.gib.Swap(0))
	q.made.Store(true)
}

// Admit implements subsys.Admitter: the peer is authenticated and may have more mapped.
func (c *conn) Admit() {
	if !c.tryRetain() {
		return
	}
	defer c.drop()
	if c.onKnown != nil {
		c.onKnown()
	}
	if c.port.budget.grow(&c.granted) {
		c.mine.gib.Store(c.granted.gib.Load())
		c.mine.arenas.Store(c.granted.arenas.Load())
	}
}
