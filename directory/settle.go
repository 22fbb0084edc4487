// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/resource"
)

// A server that follows another holds a no back until it has settled: the contexts
// that its predecessor knew join again and offer what they own. It has settled
// when settleTime has passed, no context has joined again for settlePause, each
// context that lives has joined (presence.go), and none is in the midst of its offer.
// A context that lives and does not join is waited for until offerSilence after the
// beginning. A context says in its join how many resources it offers. One from which
// nothing comes for offerSilence is not waited for, and after settleMost none is: a
// context that hangs, or lies, delays a no and does nothing else.
const (
	settleTime   = 300 * time.Millisecond
	settlePause  = 100 * time.Millisecond
	offerSilence = 2 * time.Second
	settleMost   = 30 * time.Second
	settleStep   = 5 * time.Millisecond
)

// offers are what a server knows of the contexts that offer again what they own.
type offers struct {
	settled atomic.Bool // changed with mu held
	mu      sync.Mutex
	last    time.Time           // when a context last joined again, or offered what it had not announced
	open    map[*offer]struct{} // of contexts about to join, and announced and not at their end
}

// offer is the offer of one context. The goroutine of its connection uses it.
type offer struct {
	left  uint64    // resources that are still to come
	heard time.Time // when something last came; mu of offers must be held
}

// Follows says that the node has had another server before.
func (s *Server) Follows() bool { return s.id.Epoch > 1 }

// opens says that contexts can come from now on.
func (s *Server) opens() {
	now := time.Now()
	s.begun.Store(&now)
}

// Settled says that the server knows what its predecessor knew: the contexts
// have offered it again. A server that has settled stays so.
func (s *Server) Settled() bool {
	f := &s.offers
	if !s.Follows() || f.settled.Load() {
		return true
	}
	begun := s.begun.Load()
	if begun == nil {
		return false
	}
	now := time.Now()
	age := now.Sub(*begun)
	if age < settleTime || age < offerSilence && s.awaits() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if age >= settleMost || f.quiet(now) {
		f.settled.Store(true)
	}
	return f.settled.Load()
}

// quiet reports whether no context is offering. mu must be held.
func (f *offers) quiet(now time.Time) bool {
	if now.Sub(f.last) < settlePause {
		return false
	}
	for o := range f.open {
		if now.Sub(o.heard) < offerSilence {
			return false
		}
	}
	return true
}

// arrives notes that a context is about to join and may announce an offer. A
// server that has settled waits for none.
func (f *offers) arrives() *offer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.settled.Load() {
		return nil
	}
	o := &offer{heard: time.Now()}
	if f.open == nil {
		f.open = map[*offer]struct{}{}
	}
	f.open[o] = struct{}{}
	return o
}

// joins notes that the context of o has joined, whether again, and announces n
// resources. It reports whether some may come.
func (f *offers) joins(o *offer, again bool, n uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !again || n == 0 {
		delete(f.open, o)
	}
	if !again {
		return false
	}
	f.last = time.Now()
	o.left, o.heard = n, f.last
	return true
}

// came notes that one resource of o has come. It reports whether more are
// awaited, or might come.
func (f *offers) came(o *offer) (more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if o.heard = now; o.left == 0 { // of a context that announces nothing
		f.last = now
	} else if o.left--; o.left == 0 {
		delete(f.open, o)
		return false
	}
	return !f.settled.Load()
}

// ended notes that nothing more of o comes.
func (f *offers) ended(o *offer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, o)
}

// announces returns how many resources the list of a join announces.
func announces(l *resource.List) uint64 {
	b, _ := l.Get(offerCount)
	if len(b) != 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// patiently asks again while the server is settling. An error says that ctx or
// the server ended first, and is no answer.
func (s *Server) patiently(ctx context.Context, ask func() (database.Record, bool)) (r database.Record, ok bool, err error) {
	for {
		settled := s.Settled() // before the question: what was offered by then is found
		r, ok = ask()
		switch {
		case ok || settled:
			return r, ok, nil
		case s.life.Err() != nil:
			return r, false, ErrClosed
		}
		if err = sleep(ctx, settleStep); err != nil {
			return r, false, err
		}
	}
}

// settle waits until the server has settled, or ended.
func (s *Server) settle() {
	_, _, _ = s.patiently(s.life, func() (r database.Record, ok bool) { return })
}
