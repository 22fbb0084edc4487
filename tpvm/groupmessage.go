// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
)

const (
	typeGroup       = "group"     // a member of a group
	typeGroupAgent  = "grouptask" // a task that has members of a group
	typeCoordinator = "groupsync" // the coordinator of a group
	attrGroup       = "group"
	attrInstance    = "inst"
	attrTID         = "tid"
)

// member is a member of a group.
type member struct {
	Inst int
	TID  TID // of the thread
	ID   TID // of the member's own resource
}

// maxInstance is the highest instance number that is accepted from another process. Gather makes a
// slice as long as the highest number.
const maxInstance = 1 << 20

// isValid reports whether a coordinator can have given the instance number of a member.
func (m member) isValid() bool { return m.Inst >= 0 && m.Inst <= maxInstance }

func (m member) public() Member { return Member{Instance: m.Inst, TID: m.TID} }

func publicAll(ms []member) (all []Member) {
	for _, m := range ms {
		all = append(all, m.public())
	}
	return all
}

// The kinds of a groupMessage. All messages between an agent and the coordinator have the same rocl
// tag, and so keep their order.
const (
	// From an agent to the coordinator.
	opAttach  = iota // Tokens[0]; Members: the agent's; Joining: the agent's that are not counted yet; Known: other members; Freeze: the group is frozen; Key; Released; Lost; a call, answered with opView
	opJoin           // Tokens[0]; answered with opReserved
	opJoined         // Tokens[0]: the reservation; Members[0]
	opLeave          // Members[0]
	opSync           // answered with opSynced
	opArrive         // Tokens: members at a barrier of Count; Version: the agent's
	opCancel         // Tokens: arrivals or reservations that are withdrawn
	opConnect        // from an agent to itself: it needs a coordinator
	opDropped        // from an agent to itself: the coordinator has ended the call of the attachment Tokens[0]
	opLost           // from a monitor: the sender was given up, or its node was taken for dead; it may live

	// From the coordinator to an agent.
	opView     // Tokens[0]: the attachment; Version; Members: all; Known: members that are gone, and that agents knew; Freeze: the group is frozen; Released; Lost: members that were given up, and may live
	opReserved // Tokens[0], Inst: -1, the group is frozen, also in answer to opJoined
	opChange   // Version; Members[0] has joined or, if Gone, is gone; Lost: it was given up; Why: it is out of reach
	opSynced   // Tokens[0]
	opRelease  // Tokens: arrivals whose barrier is complete; Released: of all agents; Freeze: the group is frozen now
	opMismatch // Tokens: arrivals at a barrier at which Count is another
)

// A groupMessage is a message between an agent and the coordinator of a group.
type groupMessage struct {
	Op      int      `cbor:"1,keyasint"`
	Version uint64   `cbor:"2,keyasint,omitempty"`
	Count   int      `cbor:"3,keyasint,omitempty"`
	Inst    int      `cbor:"4,keyasint,omitempty"`
	Freeze  bool     `cbor:"5,keyasint,omitempty"`
	Gone    bool     `cbor:"6,keyasint,omitempty"`
	Left    bool     `cbor:"7,keyasint,omitempty"`
	Tokens  []uint64 `cbor:"8,keyasint,omitempty"`
	Members []member `cbor:"9,keyasint,omitempty"`

	Key      uint64     `cbor:"10,keyasint,omitempty"`
	Released []released `cbor:"11,keyasint,omitempty"`
	Lost     []TID      `cbor:"12,keyasint,omitempty"`
	Why      string     `cbor:"13,keyasint,omitempty"`
	Joining  []member   `cbor:"14,keyasint,omitempty"`
	Known    []member   `cbor:"15,keyasint,omitempty"`

	// Number is one more than that of the message before, of those from the agent or from the
	// coordinator. A number is missing when a message was lost, because one of the two contexts has
	// given the other up. The messages behind it are ignored up to the next attachment: they may
	// depend on what is missing.
	Number uint64 `cbor:"16,keyasint,omitempty"`

	call groupCall // the received message, if it is the request of a call
}

// reason returns the error of a member that is out of reach for the coordinator, or nil.
func (m *groupMessage) reason() error {
	if m.Why == "" {
		return nil
	}
	return &textError{m.Why, rocl.ErrUnreachable}
}

// A groupCall is a call that the coordinator has received. Release ends it.
type groupCall interface{ Release() }

// released tells of an agent that the barriers of its arrivals with tokens up to Token are
// complete, but for arrivals that were withdrawn or void. Agent is the key of the agent: a random
// number, which is shorter than its identifier.
type released struct{ Agent, Token uint64 }

func releasedOf(known map[uint64]uint64) (rs []released) {
	for agent, token := range known {
		rs = append(rs, released{agent, token})
	}
	return rs
}

// token returns the first token, or 0 if there is none.
func (m *groupMessage) token() uint64 {
	if len(m.Tokens) == 0 {
		return 0
	}
	return m.Tokens[0]
}

// A groupPost sends the messages of an agent or a coordinator.
type groupPost interface {
	// send sends a message. If that fails, the receiver has ended, and the monitor of it reports
	// that.
	send(to TID, m *groupMessage)
	// call sends a message as the request of a call, which is never replied to. It calls dropped,
	// in another goroutine, when the receiver has ended the call, or has given this context up.
	call(ctx context.Context, to TID, m *groupMessage, dropped func())
	// monitor makes the end of a resource a message. It reports false if the resource has ended.
	monitor(id TID) bool
}

// A groupWire is the groupPost of the resource r. It has one caller at a time.
type groupWire struct {
	t       *Task
	r       *rocl.Resource
	scratch []byte
}

func (w *groupWire) send(to TID, m *groupMessage) {
	p, err := m.appendTo(w.scratch[:0])
	if err != nil {
		return
	}
	w.scratch = p
	if err = w.r.SendBytes(w.t.ended, to, ownTag, p); errors.Is(err, rocl.ErrLimit) { // the program uses the memory of the context
		b := w.r.Context().Lend(slices.Clone(p), func() {})
		if w.r.Send(w.t.ended, to, ownTag, b) != nil {
			b.Release()
		}
	}
}

func (w *groupWire) call(ctx context.Context, to TID, m *groupMessage, dropped func()) {
	p, err := m.appendTo(nil)
	if err != nil {
		return
	}
	b := w.r.Context().Lend(p, func() {}) // needs none of the memory of the context
	pending, err := w.r.StartCall(ctx, to, ownTag, b)
	if err != nil {
		b.Release()
		return
	}
	w.t.work.Go(func() {
		m, err := pending.Wait(ctx)
		if err == nil {
			m.Release()
		}
		if ctx.Err() == nil && !errors.Is(err, rocl.ErrGone) { // the monitor reports the end of the receiver
			dropped()
		}
	})
}

func (w *groupWire) monitor(id TID) bool {
	_, err := w.r.Monitor(w.t.ended, id, ownTag)
	return err == nil
}

// receiveGroup calls handle for each message to r from an agent or a coordinator, until ctx ends.
// It calls handle with nil when a resource that r monitors has ended, and with opLost when its
// context was given up, or its node was taken for dead; gone is the reason. It ends calls that
// handle has not taken out of the message. In the end it closes r.
func (t *Task) receiveGroup(ctx context.Context, r *rocl.Resource, group string, handle func(from TID, m *groupMessage, gone error)) {
	defer r.Close()
	for {
		received, err := r.Recv(ctx)
		if err != nil {
			return
		}
		from, gone := received.From(), received.GoneErr()
		var m *groupMessage
		switch {
		case !received.IsGone():
			m = new(groupMessage)
			err = m.decode(received.Bytes())
		case !errors.Is(gone, rocl.ErrGone) || errors.Is(gone, rocl.ErrNodeDead):
			m = &groupMessage{Op: opLost}
		}
		if err == nil && received.IsCall() {
			_, _ = received.Writable() // so that it keeps no block of other messages
			m.call = received
		} else {
			received.Release()
		}
		if err != nil {
			t.log.Warn("tpvm: group: a message is invalid", "group", group, "from", from, "err", err)
			continue
		}
		handle(from, m, gone)
		if m != nil && m.call != nil {
			m.call.Release()
		}
	}
}

// The formats of a groupMessage. The messages of a barrier have a short format, which takes much
// less time to encode and decode.
const (
	formatShort = iota // op, flags; number, version, count, number of tokens, the first one, their steps; then Released
	formatCBOR
)

// Flags of formatShort.
const (
	flagFreeze = 1 << iota
	flagGone
	flagLeft
	flagsEnd
)

var errGroupMessage = errors.New("tpvm: invalid message of a group")

// appendTo appends the encoded message to p.
func (m *groupMessage) appendTo(p []byte) ([]byte, error) {
	if len(m.Members)+len(m.Joining)+len(m.Known) > 0 || m.Inst != 0 || m.Key != 0 || len(m.Lost) > 0 {
		return codec.Append(append(p, formatCBOR), m)
	}
	flags := byte(0)
	for i, is := range [...]bool{m.Freeze, m.Gone, m.Left} {
		if is {
			flags |= 1 << i
		}
	}
	p = append(p, formatShort, byte(m.Op), flags)
	p = binary.AppendUvarint(p, m.Number)
	p = binary.AppendUvarint(p, m.Version)
	p = binary.AppendUvarint(p, uint64(m.Count))
	p = binary.AppendUvarint(p, uint64(len(m.Tokens)))
	last := uint64(0)
	for _, t := range m.Tokens {
		p = binary.AppendUvarint(p, t-last) // modulo 2^64
		last = t
	}
	for _, r := range m.Released {
		p = binary.AppendUvarint(p, r.Agent)
		p = binary.AppendUvarint(p, r.Token)
	}
	return p, nil
}

// decode decodes a message of another task. It fails if the message is invalid.
func (m *groupMessage) decode(p []byte) error {
	switch {
	case len(p) > 0 && p[0] == formatCBOR:
		if err := codec.Decode(p[1:], m); err != nil {
			return err
		}
		isInvalid := m.Inst < -1 || m.Inst > maxInstance
		for _, ms := range [...][]member{m.Members, m.Joining, m.Known} {
			isInvalid = isInvalid || slices.ContainsFunc(ms, func(m member) bool { return !m.isValid() })
		}
		if isInvalid {
			return errGroupMessage
		}
		return nil
	case len(p) < 3 || p[0] != formatShort || p[2] >= flagsEnd:
		return errGroupMessage
	}
	flags := p[2]
	*m = groupMessage{Op: int(p[1]), Freeze: flags&flagFreeze != 0, Gone: flags&flagGone != 0, Left: flags&flagLeft != 0}
	p = p[3:]
	isOK := true
	next := func() uint64 {
		v, n := binary.Uvarint(p)
		if n <= 0 {
			isOK = false
			return 0
		}
		p = p[n:]
		return v
	}
	m.Number = next()
	m.Version = next()
	count := next()
	m.Count = int(count)
	n := next()
	if !isOK || m.Count < 0 || n > uint64(len(p)) {
		return errGroupMessage
	}
	last := uint64(0)
	if n > 0 {
		m.Tokens = make([]uint64, n)
	}
	for i := range m.Tokens {
		last += next()
		m.Tokens[i] = last
	}
	for isOK && len(p) > 0 {
		m.Released = append(m.Released, released{next(), next()})
	}
	if !isOK {
		return errGroupMessage
	}
	return nil
}
