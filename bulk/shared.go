// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// copyAtOnce is how many bytes one goroutine copies before it checks whether the transfer has been
// cancelled. Go copies 1 MiB and more past the caches, which is faster for memory that does not fit
// into them.
const copyAtOnce = 4 << 20

// eachCopied calls do for n bytes in parts of copyAtOnce, in several goroutines.
func (ep *Endpoint) eachCopied(ctx context.Context, n int64, do func(at, n int64) error) error {
	_, err := inPieces(ctx, 0, n, every(copyAtOnce, n), min(ep.cfg.depth, runtime.GOMAXPROCS(0)), func(_ context.Context, at, n int64) error {
		return do(at, n)
	})
	return err
}

// copyOut writes p to local memory at an offset.
func (ep *Endpoint) copyOut(ctx context.Context, local *memory, at int64, p []byte) error {
	ep.counts.copiedBytes.Add(uint64(len(p)))
	return ep.eachCopied(ctx, int64(len(p)), func(off, n int64) error {
		local.write(p[off:off+n], at+off)
		return nil
	})
}

// inPlace returns the function that moves pieces over shared memory without the transport's ring.
// It returns nil if the transfer has to use the ring.
func (ep *Endpoint) inPlace(want Rights, mv *move) pieceFunc {
	if min(mv.n, int64(ep.cfg.inPlace)) < inPlaceLeast || !mv.local.isCoarse(mv.n) || mv.h.origin.Context() == ep.ID().Context() || !ep.sharing.mayReadInPlace(ep.c, mv.h.origin) {
		return nil
	}
	one := ep.pushInPlace
	if want == ReadOnly {
		one = ep.pullInPlace
	}
	return func(ctx context.Context, at, n int64) error { return one(ctx, mv, at, n) }
}

// pullInPlace copies n bytes to local memory, from where they lie. It fails with errElsewhere if
// that is not possible.
func (ep *Endpoint) pullInPlace(ctx context.Context, mv *move, at, n int64) error {
	m, err := ep.ask(ctx, mv.h.origin, tagLocate, nil, mv.request(at, n))
	if err != nil {
		return err
	}
	defer m.Release()
	if int64(m.Len()) == n {
		return ep.copyOut(ctx, mv.local, mv.at+at, m.Bytes())
	}
	t, err := parseLocator(m, 0)
	if err != nil {
		return parseError(m.Bytes())
	}
	return ep.sharing.noteDenied(mv.h.origin, ep.logDenied(mv.h.origin, ep.readLocated(ctx, t, mv.local, mv.at+at, n)))
}

// pushInPlace asks the origin to copy n bytes of local memory from where they lie. It fails with
// errElsewhere if that is not possible.
func (ep *Endpoint) pushInPlace(ctx context.Context, mv *move, at, n int64) error {
	q := mv.request(at, n)
	b, err := ep.newLocator(&q, mv.local, mv.at+at, n)
	if err != nil {
		return err
	}
	ep.counts.transfers.Add(1)
	m, err := ep.r.Call(ctx, mv.h.origin, tagTake, b)
	if err != nil {
		b.Release()
		return err
	}
	return ep.sharing.noteDenied(mv.h.origin, done(m))
}

// locate replies with the bytes of a request themselves if they are registered memory in one
// segment, and else with a locator: see answer.
func (ep *Endpoint) locate(m *rocl.Message, q *request) error {
	if ep.sharing.route(ep.c, m.From()) != shared || q.Len < inPlaceLeast || q.Len > rocl.MaxMessage {
		return errElsewhere
	}
	r, off, err := ep.admit(q, ReadOnly)
	if err != nil {
		return err
	}
	b := r.lendRegistered(off, int(q.Len))
	if b == nil {
		b, err = r.giveLocator(off, int64(q.Len))
	}
	if err == nil {
		ep.granted(m, q.Len, b)
	}
	return err
}

// giveLocator returns a locator for the n bytes from off, and calls end. The region is in use until
// the target has returned the locator: see await.
func (r *Region) giveLocator(off, n int64) (*rocl.Buffer, error) {
	defer r.end()
	if !r.mem.isCoarse(r.mem.size()) {
		return nil, errElsewhere
	}
	b, err := r.ep.newLocator(nil, &r.mem, off, n)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.areLocatorsOutLocked() // forgets those that targets have returned
	r.locators = append(r.locators, b.Retain())
	return b, nil
}

// areLocatorsOutLocked reports whether a target has a locator of the region. It releases the
// locators that targets have returned. r.mu must be held.
func (r *Region) areLocatorsOutLocked() bool {
	kept := r.locators[:0]
	for _, b := range r.locators {
		if b.Refs() > 1 {
			kept = append(kept, b)
		} else {
			b.Release()
		}
	}
	clear(r.locators[len(kept):])
	r.locators = kept
	return len(r.locators) > 0
}

// take copies bytes from a target, whose request has a locator for them, to a region: see answer.
func (ep *Endpoint) take(m *rocl.Message, q *request) error {
	t, err := parseLocator(m, requestLen)
	if err != nil {
		return errElsewhere
	}
	r, off, err := ep.admit(q, WriteOnly)
	if err != nil {
		return err
	}
	ep.server.Go(func() {
		ep.written(m, q, r, ep.logDenied(m.From(), ep.readLocated(ep.life, t, &r.mem, off, int64(q.Len))))
	})
	return nil
}

// A sharing caches the routes to other contexts. The origin lends them registered
// memory. For plain memory it prefers locators: the ring would cost two copies.
type sharing struct {
	mu     sync.Mutex
	looked time.Time
	routes map[rocl.GID]route // by context
	denied map[rocl.GID]bool  // contexts whose memory this process may not read, or that may not read memory of this process
}

// sharingFor is how long sharing uses an answer. A wrong answer costs a copy.
const sharingFor = time.Second

// deniedMost limits how many contexts are remembered as denied.
const deniedMost = 1024

// A route is the kind of route between two contexts.
type route int

const (
	unknown route = iota // there is no connection
	within               // within the process
	remote               // over a stream
	shared               // over shared memory
)

func routeOf(transport string) route {
	switch transport {
	case "":
		return unknown
	case "inproc":
		return within
	case "shm":
		return shared
	default:
		return remote
	}
}

// route returns the route to the context of a resource. If there are several, it returns the one
// over shared memory.
func (s *sharing) route(c *rocl.Context, to rocl.GID) route {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer := to.Context()
	if r := s.routes[peer]; r != unknown && time.Since(s.looked) <= sharingFor {
		return r
	}
	s.looked, s.routes = time.Now(), map[rocl.GID]route{}
	for _, r := range c.Routes() {
		s.routes[r.Peer] = max(s.routes[r.Peer], routeOf(r.Transport))
	}
	return s.routes[peer]
}

// mayReadInPlace reports whether this process may try to read memory of a resource's process where
// it lies: memory is shared or that is not known, and no attempt was denied.
func (s *sharing) mayReadInPlace(c *rocl.Context, to rocl.GID) bool {
	r := s.route(c, to)
	s.mu.Lock()
	defer s.mu.Unlock()
	return (r == shared || r == unknown) && !s.denied[to.Context()]
}

// noteDenied returns err. If err is errDenied, it remembers the resource's context as denied.
func (s *sharing) noteDenied(to rocl.GID, err error) error {
	if !errors.Is(err, errDenied) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.denied) >= deniedMost || s.denied == nil {
		s.denied = map[rocl.GID]bool{}
	}
	s.denied[to.Context()] = true
	return err
}

// countDenied returns how many contexts are denied.
func (s *sharing) countDenied() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.denied)
}
