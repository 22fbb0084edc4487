// SPDX-License-Identifier: Apache-2.0

// Package life decides which connection a link has. A [Machine] is the part of a link that
// knows its state, the identifiers of its session and the number of its connection. It is a
// machine without I/O, clock or lock: a method that returns an [Action] is an event, and the
// link does what the action says. Other methods judge handshakes (package wire draws
// those).
//
// A link has one searcher at most: a goroutine that dials, or that looks for a better route.
//
//	detached ──wanted──► dialling ──bound──► found ──dialled──► attached ──improve──► moving
//	   ▲                  │ ▲ ▲ ▲              │                 waiting  ──timeout──►  │ ▲
//	   └─────dialled──────┘ │ │ └─────lost─────┘                 resting  ◄───moved───  │ │
//	  (the context closes)  │ │                                     │               lost│ │bound
//	                        │ └────────────────lost─────────────────┘                   ▼ │
//	                        └───────────────────────────moved────────────────────────  broken
//
//	waiting ──timeout, and nothing has travelled since the timer was set──► resting
//	waiting ──timeout, and this side looks for no better route──► attached
//	resting ──stirred──► waiting
//	found ──dialled──► waiting, and moving ──moved──► waiting, if a better route is known
//	detached, attached, waiting, resting ──bound──► attached
//	each of these ──ends──► dying ──buried──► dead
//
// Bound means that a handshake has succeeded, whichever side began it. A link that dies
// while a goroutine writes is buried when that has ended. The stories in testdata say
// what each event does in each state.
package life

import (
	"errors"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// ErrUnreachable is matched by errors about a context that cannot be reached.
var ErrUnreachable = errors.New("rocl: context cannot be reached")

// A State says which connection a link has, and what is under way to get one. The drawing
// is in the documentation of the package.
type State uint8

const (
	Detached State = iota // no connection, and none is looked for
	Dialling              // no connection; the searcher dials
	Found                 // a connection; the searcher, which dialled, has not noticed yet
	Attached              // a connection; no better route is looked for
	Waiting               // a connection; a better route is tried when the timer fires
	Resting               // a connection; the timer is set again when something travels
	Moving                // a connection; the searcher tries a better route
	Broken                // no connection; the searcher, which tried a better route, ends
	Dying                 // ended; a goroutine writes still
	Dead                  // ended
)

var stateNames = [...]string{"detached", "dialling", "found", "attached", "waiting", "resting", "moving", "broken", "dying", "dead"}

func (s State) String() string { return stateNames[s] }

// An Action is what a link has to do after an event. Actions are bits.
type Action uint8

const (
	StartDial  Action = 1 << iota // start the searcher, to dial
	StartMove                     // start the searcher, to try better routes
	CancelMove                    // let the searcher that tries better routes end,
	CancelSoon                    // or let it end within moments
	SetTimer                      // have Timeout called after Wait, in place of an earlier timer
	StopTimer                     // do not have it called
	Bury                          // finish the end, as soon as no goroutine writes
)

// A Machine is what a link knows of its connections.
type Machine struct {
	state State
	cause error // why the link ended, or will end: it says goodbye

	isTheirs bool         // the peer dials and moves the link
	peer     resource.GID // for errors

	id       uint64 // of our end of the session
	peerID   uint64 // of the peer's, 0 before the first handshake
	gen      uint64 // counts the connections of the session, agreed in the handshake
	proposed uint64 // the gen of our own handshake under way, or 0

	wait   time.Duration // before the next try of a better route
	rx, tx uint32        // the session's numbers when the timer was set
}

// The first wait before a better route is tried again, and the longest: each is twice the
// one before.
const (
	RetryFirst = 50 * time.Millisecond
	RetryMost  = 30 * time.Second
)

// New returns the machine of a link that has no connection yet. id is that of this end
// of the session. isTheirs says that the lane is one of the peer's rules: the peer dials and
// moves it.
func New(id uint64, peer resource.GID, isTheirs bool) Machine {
	return Machine{id: id, peer: peer, isTheirs: isTheirs}
}

// State returns the state.
func (m *Machine) State() State { return m.state }

// Cause returns why the link has ended, or will end; nil: it goes on.
func (m *Machine) Cause() error { return m.cause }

// ID returns the identifier of this end of the session.
func (m *Machine) ID() uint64 { return m.id }

// PeerID returns the identifier of the peer's end, or 0 before the first handshake.
func (m *Machine) PeerID() uint64 { return m.peerID }

// Proposed returns the number that a handshake of our own which is under way has proposed,
// or 0.
func (m *Machine) Proposed() uint64 { return m.proposed }

// Wait returns for how long SetTimer sets the timer.
func (m *Machine) Wait() time.Duration { return m.wait }

// HasEnded reports whether the link has ended.
func (m *Machine) HasEnded() bool { return m.state >= Dying }

// HasConn reports whether the link has a connection.
func (m *Machine) HasConn() bool { return m.state >= Found && m.state <= Moving }

// Wanted says that there is something to send, or that credit is waited for.
func (m *Machine) Wanted() Action {
	if m.state != Detached {
		return 0
	}
	m.state = Dialling
	return StartDial
}

// Bound says that a handshake has given the link a connection, in place of any earlier
// one.
func (m *Machine) Bound(session, gen uint64) Action {
	m.peerID, m.gen, m.wait = session, gen, 0
	switch m.state {
	case Detached, Attached, Waiting, Resting:
		m.state = Attached
	case Dialling, Found:
		m.state = Found
	case Broken:
		m.state = Moving
	}
	return StopTimer
}

// Lost says that the connection has broken. The link dials again even if there is nothing
// to send: the peer may be gone, which senders that wait for its credit must hear.
func (m *Machine) Lost() Action {
	switch m.state {
	case Attached, Waiting, Resting:
		m.state = Dialling
		return StartDial | StopTimer
	case Found:
		m.state = Dialling
	case Moving:
		m.state = Broken
		if m.proposed != 0 {
			// The peer may have taken the new connection and closed this one, and the end
			// of this one has been quicker to arrive than the peer's answer over the new one.
			return CancelSoon
		}
		return CancelMove
	}
	return 0
}

// Dialled says that the searcher that dialled has ended: there is a connection, or the
// context ends. isBest is false if a better route is known. rx and tx are the session's
// numbers.
func (m *Machine) Dialled(isBest bool, rx, tx uint32) Action {
	switch m.state {
	case Dialling:
		m.state = Detached
	case Found:
		m.state = Attached
		if !isBest {
			return m.later(rx, tx)
		}
	}
	return 0
}

// Moved says that the searcher that tried better routes has ended. isBest is false if a
// better route than the present one is known.
func (m *Machine) Moved(isBest bool, rx, tx uint32) Action {
	switch m.state {
	case Broken:
		m.state = Dialling
		return StartDial
	case Moving:
		m.state = Attached
		if !isBest {
			return m.later(rx, tx)
		}
	}
	return 0
}

// later has a better route tried after a while, which is longer each time.
func (m *Machine) later(rx, tx uint32) Action {
	m.state, m.rx, m.tx = Waiting, rx, tx
	m.wait = min(max(2*m.wait, RetryFirst), RetryMost)
	return SetTimer
}

// Timeout says that the timer has fired.
func (m *Machine) Timeout(rx, tx uint32) Action {
	switch {
	case m.state != Waiting:
		return 0
	case rx == m.rx && tx == m.tx:
		m.state = Resting
		return 0
	}
	m.state = Attached // the timer does not run, whether better routes are tried or not
	return m.Improve()
}

// Stirred says that something travels.
func (m *Machine) Stirred(rx, tx uint32) Action {
	if m.state != Resting {
		return 0
	}
	m.state, m.rx, m.tx = Waiting, rx-1, tx // what has stirred the link has travelled
	return SetTimer                         // after as long as before the rest
}

// Improve has better routes tried now.
func (m *Machine) Improve() Action {
	switch m.state {
	case Attached, Waiting, Resting:
		if m.isTheirs || m.cause != nil {
			return 0
		}
		m.state = Moving
		return StartMove | StopTimer
	}
	return 0
}

// Leaves says that the link is about to say goodbye: whatever ends it, cause is the reason.
func (m *Machine) Leaves(cause error) {
	if !m.HasEnded() {
		m.cause = cause
	}
}

// Ends says that the link ends because of err.
func (m *Machine) Ends(err error) Action {
	if m.HasEnded() {
		return 0
	}
	if m.cause == nil {
		m.cause = err
	}
	was := m.state
	m.state = Dying
	if was == Moving || was == Broken {
		return Bury | StopTimer | CancelMove
	}
	return Bury | StopTimer
}

// Buried says that nothing of the link is left to be done. It reports false if that has
// been said.
func (m *Machine) Buried() bool {
	was := m.state
	m.state = Dead
	return was == Dying
}

// Propose begins our own handshake, and returns the number of its connection.
func (m *Machine) Propose() (gen uint64) {
	m.proposed = m.gen + 1
	return m.proposed
}

// EndProposal says that our own handshake has ended.
func (m *Machine) EndProposal() { m.proposed = 0 }

// A Verdict is what becomes of the peer's handshake.
type Verdict struct {
	Why            wire.Refusal // 0: it is admitted
	Gen            uint64       // the number to be told with a refusal
	Fatal          error        // what the link ends of; nil: it goes on
	IsForSuccessor bool         // the link's successor decides
}

// IsAdmitted reports whether the connection becomes the link's.
func (v *Verdict) IsAdmitted() bool { return v.Why == 0 && v.Fatal == nil }

// Admits judges the peer's handshake a. isFirst reports whether this context goes first
// where both dial, isIdle whether nothing of the session is under way, and isWorse whether
// the connection is over a worse route than the present one.
func (m *Machine) Admits(a *wire.Attach, isFirst, isIdle, isWorse bool) Verdict {
	v := Verdict{Gen: m.gen}
	switch {
	case m.HasEnded():
		v.Fatal, v.IsForSuccessor = m.cause, true
	case a.Known != 0 && a.Known != m.id:
		v.Why = wire.RefusedUnknown
		if m.peerID == 0 && isIdle {
			v.Fatal = fmt.Errorf("%w: %v knows another session", ErrUnreachable, m.peer)
		}
	case m.peerID != 0 && m.peerID != a.Session:
		// The peer has given the old session up and told its senders. This context tells
		// its own, and begins anew.
		v.Fatal, v.IsForSuccessor = fmt.Errorf("%w: %v has given up the session", ErrUnreachable, m.peer), true
	case a.Gen <= m.gen:
		v.Why = wire.RefusedStale
	case m.proposed >= a.Gen && isFirst:
		v.Why, v.Gen = wire.RefusedBusy, a.Gen-1
	case a.IsMove && m.HasConn() && isWorse:
		v.Why = wire.RefusedWorse
	}
	return v
}

// Confirms judges the peer's answer a to our handshake mine.
func (m *Machine) Confirms(mine, a *wire.Attach) error {
	if m.HasEnded() || a.Gen != mine.Gen || a.Gen <= m.gen || a.Known != m.id {
		return fmt.Errorf("%w: linked meanwhile", wire.ErrRefused)
	}
	if m.peerID != 0 && m.peerID != a.Session {
		return fmt.Errorf("%w: unknown session", wire.ErrProtocol)
	}
	return nil
}

// Refused notes the peer's refusal of our handshake. It returns what the link ends of, or
// nil.
func (m *Machine) Refused(why wire.Refusal, gen uint64) (fatal error) {
	switch why {
	case wire.RefusedStale:
		m.gen = max(m.gen, gen)
	case wire.RefusedUnknown:
		fatal = fmt.Errorf("%w: %v has given up the session", ErrUnreachable, m.peer)
	}
	return fatal
}
