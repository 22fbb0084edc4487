// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// A state says which connection a link has, and what is under way to get one. A link has
// one searcher at most: a goroutine that dials, or that looks for a better route.
//
//	detached ──wanted──► dialling ──bound──► found ──dialled──► attached ──improve──► moving
//	   ▲                  │ ▲ ▲ ▲              │                 waiting  ──timeout──►  │ ▲
//	   └─────dialled──────┘ │ │ └─────lost─────┘                 resting  ◄───moved───  │ │
//	  (the context closes)  │ │                                     │               lost│ │bound
//	                        │ └────────────────lost─────────────────┘                   ▼ │
//	                        └───────────────────────────moved────────────────────────  broken
//
//	waiting ──timeout, and nothing has travelled since the timer was set──► resting
//	resting ──stirred──► waiting
//	found ──dialled──► waiting, and moving ──moved──► waiting, if a better route is known
//	detached, attached, waiting, resting ──bound──► attached
//	each of these ──ends──► dying ──buried──► dead
//
// Bound means that a handshake has succeeded, whichever side began it. A link that dies
// while a goroutine writes is buried when that has ended. The stories in testdata/life say
// what each event does in each state.
type state uint8

const (
	detached state = iota // no connection, and none is looked for
	dialling              // no connection; the searcher dials
	found                 // a connection; the searcher, which dialled, has not noticed yet
	attached              // a connection; no better route is looked for
	waiting               // a connection; a better route is tried when the timer fires
	resting               // a connection; the timer is set again when something travels
	moving                // a connection; the searcher tries a better route
	broken                // no connection; the searcher, which tried a better route, ends
	dying                 // ended; a goroutine writes still
	dead                  // ended
)

var stateNames = [...]string{"detached", "dialling", "found", "attached", "waiting", "resting", "moving", "broken", "dying", "dead"}

func (s state) String() string { return stateNames[s] }

// An action is what a link has to do after an event. Actions are bits.
type action uint8

const (
	startDial  action = 1 << iota // start the searcher, to dial
	startMove                     // start the searcher, to try better routes
	cancelMove                    // let the searcher that tries better routes end
	setTimer                      // have timeout called after life.wait, in place of an earlier timer
	stopTimer                     // do not have it called
	bury                          // finish the end, as soon as no goroutine writes
)

// A life is the part of a link that decides which connection it has. It is a machine
// without I/O, clock or lock: a method that returns an action is an event.
type life struct {
	state state
	cause error // why the link ended, or will end: it says goodbye
	// The lane is one of the peer's rules: the peer dials and moves it.
	isTheirs bool
	peer     resource.GID // for errors

	id       uint64 // of our end of the session
	peerID   uint64 // of the peer's, 0 before the first handshake
	gen      uint64 // counts the connections of the session, agreed in the handshake
	proposed uint64 // the gen of our own handshake under way, or 0

	wait   time.Duration // before the next try of a better route
	rx, tx uint32        // the session's numbers when the timer was set
}

const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 30 * time.Second
)

// hasEnded reports whether the link has ended.
func (f *life) hasEnded() bool { return f.state >= dying }

// hasConn reports whether the link has a connection.
func (f *life) hasConn() bool { return f.state >= found && f.state <= moving }

// wanted says that there is something to send, or that credit is waited for.
func (f *life) wanted() action {
	if f.state != detached {
		return 0
	}
	f.state = dialling
	return startDial
}

// bound says that a handshake has given the link a connection, in place of any earlier
// one.
func (f *life) bound(session, gen uint64) action {
	f.peerID, f.gen, f.wait = session, gen, 0
	switch f.state {
	case detached, attached, waiting, resting:
		f.state = attached
	case dialling, found:
		f.state = found
	case broken:
		f.state = moving
	}
	return stopTimer
}

// lost says that the connection has broken. The link dials again even if there is nothing
// to send: the peer may be gone, which senders that wait for its credit must hear.
func (f *life) lost() action {
	switch f.state {
	case attached, waiting, resting:
		f.state = dialling
		return startDial | stopTimer
	case found:
		f.state = dialling
	case moving:
		f.state = broken
		return cancelMove
	}
	return 0
}

// dialled says that the searcher that dialled has ended: there is a connection, or the
// context ends. isBest is false if a better route is known. rx and tx are the session's
// numbers.
func (f *life) dialled(isBest bool, rx, tx uint32) action {
	switch f.state {
	case dialling:
		f.state = detached
	case found:
		f.state = attached
		if !isBest {
			return f.later(rx, tx)
		}
	}
	return 0
}

// moved says that the searcher that tried better routes has ended. isBest is false if a
// better route than the present one is known.
func (f *life) moved(isBest bool, rx, tx uint32) action {
	switch f.state {
	case broken:
		f.state = dialling
		return startDial
	case moving:
		f.state = attached
		if !isBest {
			return f.later(rx, tx)
		}
	}
	return 0
}

// later has a better route tried after a while, which is longer each time.
func (f *life) later(rx, tx uint32) action {
	f.state, f.rx, f.tx = waiting, rx, tx
	f.wait = min(max(2*f.wait, retryFirst), retryMost)
	return setTimer
}

// timeout says that the timer has fired.
func (f *life) timeout(rx, tx uint32) action {
	switch {
	case f.state != waiting:
		return 0
	case rx == f.rx && tx == f.tx:
		f.state = resting
		return 0
	}
	return f.improve()
}

// stirred says that something travels.
func (f *life) stirred(rx, tx uint32) action {
	if f.state != resting {
		return 0
	}
	f.state, f.rx, f.tx = waiting, rx-1, tx // what has stirred the link has travelled
	return setTimer                         // after as long as before the rest
}

// improve has better routes tried now.
func (f *life) improve() action {
	switch f.state {
	case attached, waiting, resting:
		if f.isTheirs || f.cause != nil {
			return 0
		}
		f.state = moving
		return startMove | stopTimer
	}
	return 0
}

// leaves says that the link is about to say goodbye: whatever ends it, cause is the reason.
func (f *life) leaves(cause error) {
	if !f.hasEnded() {
		f.cause = cause
	}
}

// ends says that the link ends because of err.
func (f *life) ends(err error) action {
	if f.hasEnded() {
		return 0
	}
	if f.cause == nil {
		f.cause = err
	}
	was := f.state
	f.state = dying
	if was == moving {
		return bury | stopTimer | cancelMove
	}
	return bury | stopTimer
}

// buried says that nothing of the link is left to be done. It reports false if that has
// been said.
func (f *life) buried() bool {
	was := f.state
	f.state = dead
	return was == dying
}

// propose begins our own handshake, and returns the number of its connection.
func (f *life) propose() (gen uint64) {
	f.proposed = f.gen + 1
	return f.proposed
}

// A verdict is what becomes of the peer's handshake.
type verdict struct {
	why   wire.Refusal // 0: it is admitted
	gen   uint64       // the number to be told with a refusal
	fatal error        // what the link ends of; nil: it goes on
	again bool         // the link's successor decides
}

// admits judges the peer's handshake a. isFirst reports whether this context goes first
// where both dial, isIdle whether nothing of the session is under way, and isWorse whether
// the connection is over a worse route than the present one.
func (f *life) admits(a *wire.Attach, isFirst, isIdle, isWorse bool) verdict {
	v := verdict{gen: f.gen}
	switch {
	case f.hasEnded():
		v.fatal, v.again = f.cause, true
	case a.Known != 0 && a.Known != f.id:
		v.why = wire.RefusedUnknown
		if f.peerID == 0 && isIdle {
			v.fatal = fmt.Errorf("%w: %v knows another session", ErrUnreachable, f.peer)
		}
	case f.peerID != 0 && f.peerID != a.Session:
		// The peer has given the old session up and told its senders. This context tells
		// its own, and begins anew.
		v.fatal, v.again = fmt.Errorf("%w: %v has given up the session", ErrUnreachable, f.peer), true
	case a.Gen <= f.gen:
		v.why = wire.RefusedStale
	case f.proposed >= a.Gen && isFirst:
		v.why, v.gen = wire.RefusedBusy, a.Gen-1
	case a.IsMove && f.hasConn() && isWorse:
		v.why = wire.RefusedWorse
	}
	return v
}

// confirms judges the peer's answer a to our handshake mine.
func (f *life) confirms(mine, a *wire.Attach) error {
	if f.hasEnded() || a.Gen != mine.Gen || a.Gen <= f.gen || a.Known != f.id {
		return fmt.Errorf("%w: linked meanwhile", ErrRefused)
	}
	if f.peerID != 0 && f.peerID != a.Session {
		return fmt.Errorf("%w: unknown session", ErrProtocol)
	}
	return nil
}

// refused notes the peer's refusal of our handshake. It returns what the link ends of, or
// nil.
func (f *life) refused(why wire.Refusal, gen uint64) (fatal error) {
	switch why {
	case wire.RefusedStale:
		f.gen = max(f.gen, gen)
	case wire.RefusedUnknown:
		fatal = fmt.Errorf("%w: %v has given up the session", ErrUnreachable, f.peer)
	}
	return fatal
}

// act does what an event asks for. mu must be held; act releases it for a while if the
// link ends.
func (l *link) act(do action) {
	if do&cancelMove != 0 {
		l.endMove()
	}
	if do&stopTimer != 0 && l.retry != nil {
		l.retry.Stop()
	}
	if do&setTimer != 0 {
		l.attend()
		if l.retry == nil {
			l.retry = time.AfterFunc(l.life.wait, l.timeout)
		} else {
			l.retry.Reset(l.life.wait)
		}
	}
	if do&startDial != 0 {
		l.d.running.Add(1)
		go l.connect()
	}
	if do&startMove != 0 {
		l.startMove()
	}
	if do&bury != 0 && !l.calls() {
		l.bury()
	}
}

// timeout is called when the timer has fired.
func (l *link) timeout() {
	l.mu.Lock()
	l.act(l.life.timeout(l.s.rxNext.Load(), l.s.next))
	if l.life.state == resting {
		l.attend()
	}
	l.mu.Unlock()
}
