// SPDX-License-Identifier: Apache-2.0

package tpvm

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

func (m member) public() Member { return Member{Instance: m.Inst, TID: m.TID} }

// What a groupMessage is. All messages between an agent and the coordinator have the same tag,
// and so keep their order.
const (
	// From an agent to the coordinator.
	opAttach  = iota // Members: the agent's; Freeze: the group is frozen; answered with opView
	opJoin           // Tokens[0]; Inst: a number that is taken, or -1; answered with opReserved
	opJoined         // Tokens[0]: the reservation; Members[0]
	opLeave          // Members[0]
	opSync           // answered with opSynced
	opArrive         // Tokens: members at a barrier of Count; Version: the agent's
	opCancel         // Tokens: arrivals or reservations that are withdrawn
	opConnect        // from an agent to itself: it needs a coordinator

	// From the coordinator to an agent.
	opView     // Version, Members: all; Freeze: the group is frozen
	opReserved // Tokens[0], Inst: -1, the group is frozen
	opChange   // Version; Members[0] has joined or, if Gone, is gone
	opSynced   // Tokens[0]
	opRelease  // Tokens: arrivals whose barrier is complete; Freeze: the group is frozen now
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
}

// token returns the first token; 0 is none.
func (m *groupMessage) token() uint64 {
	if len(m.Tokens) == 0 {
		return 0
	}
	return m.Tokens[0]
}
