// SPDX-License-Identifier: Apache-2.0

// Package life decides which connection a link has. A [Machine] is the part of a link that knows
// its state, the identifiers of its session and the number of its connection. It has no I/O, clock
// or lock. A method that returns an [Action] is an event, and the link does what the action says.
// Other methods judge handshakes (package wire draws these).
//
// A link has at most one searcher: a goroutine that dials, or that looks for a better route.
//
//	detached ──wanted──► dialling ──bound──► found ──dialled──► attached ──improve──► moving
//	   ▲                  │ ▲ ▲ ▲              │                 waiting  ──timeout──►  │ ▲
//	   └─────dialled──────┘ │ │ └─────lost─────┘                 idle     ◄───moved───  │ │
//	  (the context closes)  │ │                                     │               lost│ │bound
//	                        │ └────────────────lost─────────────────┘                   ▼ │
//	                        └───────────────────────────moved────────────────────────  broken
//
//	waiting ──timeout, and nothing has travelled since the timer was set──► idle
//	waiting ──timeout, and this side looks for no better route──► attached
//	idle ──traffic──► waiting
//	found ──dialled──► waiting, and moving ──moved──► waiting, if a better route is known
//	found ──dialled──► moving, and moving ──moved──► moving, if improve came while the searcher ran
//	detached, attached, waiting, idle ──bound──► attached
//	each of these ──ends──► dying ──cleaned──► dead
//
// Bound means that a handshake has succeeded, no matter which side began it. If a goroutine writes
// while the link dies, the link is cleaned up when that goroutine has finished. The stories in
// testdata say what each event does in each state.
package life

import (
	"errors"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// ErrUnreachable is matched by errors about a context that cannot be reached.
//
// Cause: no transport reached the target within `WithGiveUp`. Remedy: see the reason, firewalls,
// `rocl routes`, and the target's log.
var ErrUnreachable = errors.New("rocl: context cannot be reached")

// A State says which connection a link has, and what is under way to get one. The documentation of
// the package has the drawing.
type State uint8

const (
	Detached State = iota // no connection, and no search for one
	Dialling              // no connection; the searcher dials
	Found                 // a connection; the searcher that dialled has not noticed it yet
	Attached              // a connection; no search for a better route
	Waiting               // a connection; the link tries a better route when the timer fires
	Idle                  // a connection; the timer is set again when frames travel
	Moving                // a connection; the searcher tries a better route
	Broken                // no connection; the searcher that tried a better route ends
	Dying                 // ended; a goroutine still writes
	Dead                  // ended
)

var stateNames = [...]string{"detached", "dialling", "found", "attached", "waiting", "idle", "moving", "broken", "dying", "dead"}

// String returns the name of the state, as in the drawing.
func (s State) String() string { return stateNames[s] }

// An Action is what a link has to do after an event. Actions are bits.
type Action uint8

const (
	StartDial  Action = 1 << iota // start the searcher, to dial
	StartMove                     // start the searcher, to try better routes
	CancelMove                    // make the searcher that tries better routes end
	CancelSoon                    // the same, but within moments
	SetTimer                      // make Timeout be called after Wait, in place of an earlier timer
	StopTimer                     // prevent the call of Timeout
	Clean                         // finish the end, as soon as no goroutine writes
)

// A Machine is what a link knows of its connections.
type Machine struct {
	state State
	cause error // why the link ended, or will end: it says goodbye

	peer resource.GID // for errors

	id       uint64 // the identifier of this end of the session
	peerID   uint64 // the identifier of the peer's end; 0 before the first handshake
	gen      uint64 // counts the connections of the session, as agreed in the handshake
	proposed uint64 // the gen that this context's handshake under way has proposed; 0: none

	wait   time.Duration // the pause before the next try of a better route
	rx, tx uint32        // the session's numbers when the timer was set

	isAsked bool // Improve was called while there was a searcher

	hasHeir bool      // the link ended because the peer has given up the session
	past    wire.Past // how far the session had come, as the peer says
}

// RetryFirst is the first pause before a better route is tried again, and RetryMost the longest.
// Each pause is twice the one before.
const (
	RetryFirst = 50 * time.Millisecond
	RetryMost  = 30 * time.Second
)

// New returns the machine of a link that has no connection yet. id is the identifier of this end of
// the session.
func New(id uint64, peer resource.GID) Machine { return Machine{id: id, peer: peer} }

// State returns the state of the link.
func (m *Machine) State() State { return m.state }

// Cause returns why the link has ended, or will end. It returns nil if the link goes on.
func (m *Machine) Cause() error { return m.cause }

// ID returns the identifier of this end of the session.
func (m *Machine) ID() uint64 { return m.id }

// PeerID returns the identifier of the peer's end, or 0 before the first handshake.
func (m *Machine) PeerID() uint64 { return m.peerID }

// Wait returns how long the timer runs after SetTimer.
func (m *Machine) Wait() time.Duration { return m.wait }

// HasEnded reports whether the link has ended.
func (m *Machine) HasEnded() bool { return m.state >= Dying }

// hasConn reports whether the link has a connection.
func (m *Machine) hasConn() bool { return m.state >= Found && m.state <= Moving }

// RequestConn makes the searcher dial if the link has no connection and no searcher: there is
// something to send, or a goroutine waits for credit. In the drawing this is the event "wanted".
func (m *Machine) RequestConn() Action {
	if m.state != Detached {
		return 0
	}
	m.state = Dialling
	return StartDial
}

// Bound notes that a handshake has given the link a connection, in place of any earlier one.
// session is the peer's identifier, and gen the number of the connection.
func (m *Machine) Bound(session, gen uint64) Action {
	m.peerID, m.gen, m.wait = session, gen, 0
	switch m.state {
	case Detached, Attached, Waiting, Idle:
		m.state = Attached
	case Dialling, Found:
		m.state = Found
	case Broken:
		m.state = Moving
	}
	return StopTimer
}

// Lost notes that the connection has broken. The link dials again even if there is nothing to send:
// the peer may be gone, and senders that wait for its credit must learn that.
func (m *Machine) Lost() Action {
	switch m.state {
	case Attached, Waiting, Idle:
		m.state = Dialling
		return StartDial | StopTimer
	case Found:
		m.state = Dialling
	case Moving:
		m.state = Broken
		if m.proposed != 0 {
			// The peer may have taken the new connection and closed this one. Then the end of this
			// one has arrived before the peer's answer over the new one.
			return CancelSoon
		}
		return CancelMove
	}
	return 0
}

// Dialled notes that the searcher that dialled has ended: the link has a connection, or the context
// ends. isBest is false if a better route is known. rx and tx are the session's numbers.
func (m *Machine) Dialled(isBest bool, rx, tx uint32) Action {
	switch m.state {
	case Dialling:
		m.state = Detached
	case Found:
		return m.searched(isBest, rx, tx)
	}
	return 0
}

// Moved notes that the searcher that tried better routes has ended. isBest is false if a better
// route than the present one is known.
func (m *Machine) Moved(isBest bool, rx, tx uint32) Action {
	switch m.state {
	case Broken:
		m.state = Dialling
		return StartDial
	case Moving:
		return m.searched(isBest, rx, tx)
	}
	return 0
}

// searched notes that a searcher has ended, and that the link has a connection.
func (m *Machine) searched(isBest bool, rx, tx uint32) Action {
	m.state = Attached
	if m.isAsked {
		m.isAsked = false
		if do := m.Improve(); do != 0 {
			return do
		}
	}
	if !isBest {
		return m.later(rx, tx)
	}
	return 0
}

// later sets the timer for the next try of a better route. The pause is longer each time.
func (m *Machine) later(rx, tx uint32) Action {
	m.state, m.rx, m.tx = Waiting, rx, tx
	m.wait = min(max(2*m.wait, RetryFirst), RetryMost)
	return SetTimer
}

// Timeout notes that the timer has fired. rx and tx are the session's numbers.
func (m *Machine) Timeout(rx, tx uint32) Action {
	switch {
	case m.state != Waiting:
		return 0
	case rx == m.rx && tx == m.tx:
		m.state = Idle
		return 0
	}
	m.state = Attached // the timer no longer runs, whether better routes are tried or not
	return m.Improve()
}

// Traffic notes that frames travel. rx and tx are the session's numbers.
func (m *Machine) Traffic(rx, tx uint32) Action {
	if m.state != Idle {
		return 0
	}
	m.state, m.rx, m.tx = Waiting, rx-1, tx // the frame that ended the idle state has travelled
	return SetTimer                         // the pause is as long as before
}

// Improve makes a searcher try better routes now, if the link has a connection and no searcher. If
// it has a searcher, that one may not know of all routes, and another one begins when it has ended.
// Improve does nothing if the link is about to end.
func (m *Machine) Improve() Action {
	switch m.state {
	case Dialling, Found, Moving, Broken:
		m.isAsked = true
	case Attached, Waiting, Idle:
		if m.cause != nil {
			return 0
		}
		m.state = Moving
		return StartMove | StopTimer
	}
	return 0
}

// SetCause sets the reason of the link's end before it ends, because the link is about to say
// goodbye. The link then ends for that reason, however it ends. In the stories this is the event
// "leaves".
func (m *Machine) SetCause(cause error) {
	if !m.HasEnded() {
		m.cause = cause
	}
}

// End ends the link because of err. In the drawing this is the event "ends".
func (m *Machine) End(err error) Action {
	if m.HasEnded() {
		return 0
	}
	if m.cause == nil {
		m.cause = err
	}
	was := m.state
	m.state = Dying
	if was == Moving || was == Broken {
		return Clean | StopTimer | CancelMove
	}
	return Clean | StopTimer
}

// GivenUp ends the link because of err: the peer has given up the session while this side did not,
// or not yet. The peer says by past how far it had come. In the stories this is the event
// "givenUp".
func (m *Machine) GivenUp(err error, past wire.Past) Action {
	if !m.HasEnded() && m.cause == nil {
		m.hasHeir, m.past = true, past
	}
	return m.End(err)
}

// HasHeir reports whether the link leaves messages to its successor: those that the peer has
// certainly not received. If isKnown is true, these are the ones from number have on. Otherwise
// they are the ones that were never written to a connection.
func (m *Machine) HasHeir() (has bool, have uint32, isKnown bool) {
	return m.hasHeir, m.past.Have, m.past.Session != 0 && m.past.Session == m.peerID
}

// Cleaned notes that the link has been cleaned up. It reports false if that was noted before.
func (m *Machine) Cleaned() bool {
	was := m.state
	m.state = Dead
	return was == Dying
}

// Propose begins a handshake of this context, and returns the number of its connection.
func (m *Machine) Propose() (gen uint64) {
	m.proposed = m.gen + 1
	return m.proposed
}

// EndProposal notes that this context's handshake has ended.
func (m *Machine) EndProposal() { m.proposed = 0 }

// A Verdict says what becomes of the peer's handshake.
type Verdict struct {
	Why            wire.Refusal // 0: the connection is admitted, unless Fatal is set
	Gen            uint64       // the number to tell with a refusal
	Fatal          error        // why the link ends; nil: it goes on
	IsForSuccessor bool         // the link ends, and its successor decides
	IsGivenUp      bool         // the link ends because the peer has given up the session
}

// IsAdmitted reports whether the connection becomes the link's.
func (v *Verdict) IsAdmitted() bool { return v.Why == 0 && v.Fatal == nil }

// Admits judges the peer's handshake a. isFirst says that this context goes first if both sides
// dial. isWorse says that the connection uses a worse route than the present one.
func (m *Machine) Admits(a *wire.Attach, isFirst, isWorse bool) Verdict {
	v := Verdict{Gen: m.gen}
	switch {
	case m.HasEnded():
		v.Fatal, v.IsForSuccessor = m.cause, true
	case a.Known != 0 && a.Known != m.id:
		v.Why = wire.RefusedUnknown
	case m.peerID != 0 && m.peerID != a.Session:
		// The peer has given up the old session and told its senders. This context begins a new
		// session, for what the peer has not received, and reports the rest.
		v.Fatal, v.IsForSuccessor = fmt.Errorf("%w: %v has given up the session", ErrUnreachable, m.peer), true
		v.IsGivenUp = true
	case a.Gen <= m.gen:
		v.Why = wire.RefusedStale
	case m.proposed >= a.Gen && isFirst:
		v.Why, v.Gen = wire.RefusedBusy, a.Gen-1
	case a.IsMove && m.hasConn() && isWorse:
		v.Why = wire.RefusedWorse
	}
	return v
}

// Confirms judges the peer's answer a to this context's handshake mine.
func (m *Machine) Confirms(mine, a *wire.Attach) error {
	if m.HasEnded() || a.Gen != mine.Gen || a.Gen <= m.gen || a.Known != m.id {
		return fmt.Errorf("%w: the link has another connection", wire.ErrRefused)
	}
	if m.peerID != 0 && m.peerID != a.Session {
		return fmt.Errorf("%w: unknown session", wire.ErrProtocol)
	}
	return nil
}

// Refused notes the peer's refusal of this context's handshake. It returns why the link ends, or
// nil if it goes on.
func (m *Machine) Refused(why wire.Refusal, gen uint64) (fatal error) {
	switch why {
	case wire.RefusedStale:
		m.gen = max(m.gen, gen)
	case wire.RefusedUnknown:
		fatal = fmt.Errorf("%w: %v has given up the session", ErrUnreachable, m.peer)
	}
	return fatal
}
