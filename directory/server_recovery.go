// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/internal/planted"
	"github.com/rocl-go/rocl/resource"
)

// A server that follows another one delays each "no" until it has recovered: until the contexts
// that its predecessor knew have joined again and offered what they own. A server has recovered
// when all of this holds:
//
//   - Contexts can connect.
//   - Each context that lived when the server began, and still lives, has joined
//     ([node.Listener.Awaits]).
//   - No context is in the middle of its offer.
//
// No time has to pass: the kernel says which contexts live, and a context says in its join how many
// resources it offers. If a living context does not join within offerSilence, or nothing comes from
// an offering one for that time, the server does not wait for it. After maxRecovery the server
// waits for no context. So a context that hangs or lies delays a "no" and does no other harm.
const (
	offerSilence = 2 * time.Second
	maxRecovery  = 30 * time.Second
	recoveryStep = time.Millisecond
)

// offers is the server's state of the contexts that offer again what they own.
type offers struct {
	recovered atomic.Bool // changed only with mu held
	mu        sync.Mutex  // guards open and the fields of each offer; taken alone
	// open has contexts that are about to join, or have not offered all that they announced.
	open map[*offer]struct{}
}

// offer is the offer of one context. The goroutine that serves the context's connection uses it.
type offer struct {
	left  uint64    // resources that are announced and have not come
	heard time.Time // when something last came; mu of offers must be held
}

// Follows reports whether the node has had another server before, since boot.
func (s *Server) Follows() bool { return s.id.Epoch > 1 }

// markOpen records that contexts can connect from now on.
func (s *Server) markOpen() {
	now := time.Now()
	s.opened.Store(&now)
}

// Recovered reports whether the server knows what its predecessor knew, because the contexts have
// offered it again. Once true, it stays true.
func (s *Server) Recovered() bool {
	f := &s.offers
	if !s.Follows() || f.recovered.Load() || planted.Is(planted.NoRecovery) {
		return true
	}
	begun := s.opened.Load()
	if begun == nil {
		return false
	}
	now := time.Now()
	age := now.Sub(*begun)
	if age < offerSilence && s.awaits() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if age >= maxRecovery || f.isQuietLocked(now) {
		f.recovered.Store(true)
	}
	return f.recovered.Load()
}

// isQuietLocked reports whether no context is offering. mu must be held.
func (f *offers) isQuietLocked(now time.Time) bool {
	for o := range f.open {
		if now.Sub(o.heard) < offerSilence {
			return false
		}
	}
	return true
}

// arrives records that a context is about to join and may announce an offer. It returns nil if the
// server has recovered and waits for no offer.
func (f *offers) arrives() *offer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.recovered.Load() {
		return nil
	}
	o := &offer{heard: time.Now()}
	if f.open == nil {
		f.open = map[*offer]struct{}{}
	}
	f.open[o] = struct{}{}
	return o
}

// heard records that something has come of o, after which left resources are still to come. It
// reports whether there are any.
func (f *offers) heard(o *offer, left uint64) (more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.left, o.heard = left, time.Now(); left == 0 {
		delete(f.open, o)
	}
	return left > 0
}

// untilRecovered calls ask, again and again until the server has recovered, until ask reports true.
// An error says that ctx or the server has ended first, and that there is no certain answer.
func (s *Server) untilRecovered(ctx context.Context, ask func() (resource.Record, bool)) (r resource.Record, ok bool, err error) {
	for {
		recovered := s.Recovered() // read before the question: what was offered by then is found
		r, ok = ask()
		switch {
		case ok || recovered:
			return r, ok, nil
		case s.lifetime.Err() != nil:
			return r, false, ErrClosed
		}
		if err = sleep(ctx, recoveryStep); err != nil {
			return r, false, err
		}
	}
}

// awaitRecovery waits until the server has recovered. An error says that ctx or the server has
// ended first.
func (s *Server) awaitRecovery(ctx context.Context) error {
	_, _, err := s.untilRecovered(ctx, func() (r resource.Record, ok bool) { return })
	return err
}
