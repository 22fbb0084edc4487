// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"math"
	"net"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/resource"
)

// Datagrams by which a member says that it goes. They have one byte, except msgOther. memberlist
// tells it too, in time, but cannot say whether the other members have heard it.
const (
	msgOther   = 12 // another member is away; an account entry of it follows
	msgHeard   = 13 // the answer to msgAway and msgLeaving
	msgAway    = 14 // another server is about to take the sender's place
	msgLeaving = 15 // the sender leaves
)

// tellTime is how long a member that goes waits for all members to acknowledge it. tellAgain is how
// often it tells those that have not. A member that is not reached takes this one for dead.
const (
	tellTime  = 150 * time.Millisecond
	tellAgain = 20 * time.Millisecond
)

// A departure tells the other members that this one leaves or is about to be away. It handles the
// same messages of other members.
type departure struct {
	*core
	members *memberTable
	gossip  *gossip

	mu    sync.Mutex               // guards the following fields
	unack map[resource.NodeID]bool // members that have not acknowledged the departure of this one
	acked chan struct{}            // closed when all members have acknowledged
}

// tell sends a datagram of the byte message to the other members, until they have acknowledged it
// or tellTime has passed.
func (d *departure) tell(message byte) {
	_, targets := d.members.aliveOtherMembers(math.MaxInt)
	acked := make(chan struct{})
	d.mu.Lock()
	d.unack, d.acked = map[resource.NodeID]bool{}, acked
	for _, id := range targets {
		d.unack[id] = true
	}
	d.mu.Unlock()
	end, again := time.After(tellTime), time.Tick(tellAgain)
	for {
		var out []mux.Out
		d.mu.Lock()
		for id := range d.unack {
			out = append(out, mux.Out{To: id, Payload: []byte{message}})
		}
		d.mu.Unlock()
		if len(out) == 0 {
			return
		}
		d.mux.Send(out...)
		select {
		case <-again:
		case <-acked:
			return
		case <-end:
			// Cause: the others may take this node for dead.
			d.log.Info("cluster: leaving before all members have acknowledged it", "members", len(out))
			return
		}
	}
}

// receive handles a datagram of the member id, and reports whether it is one of those above. at is
// where id awaits the answer.
func (d *departure) receive(id resource.NodeID, at *net.UDPAddr, b []byte) bool {
	switch {
	case len(b) == 1+absentLen && b[0] == msgOther:
		d.members.onOther(b[1:])
	case len(b) != 1:
		return false
	case b[0] == msgHeard:
		d.acknowledged(id)
	case b[0] == msgLeaving:
		d.members.leaving(id)
		d.mux.Send(mux.Out{To: id, At: at, Payload: []byte{msgHeard}})
	case b[0] == msgAway:
		if out, ok := d.members.goesAway(id); ok {
			d.mux.Send(append(out, mux.Out{To: id, At: at, Payload: []byte{msgHeard}})...)
		}
	default:
		return false
	}
	return true
}

// acknowledged notes that the member id has heard that this one leaves, or will be away.
func (d *departure) acknowledged(id resource.NodeID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.unack[id] {
		return
	}
	if delete(d.unack, id); len(d.unack) == 0 {
		close(d.acked)
	}
}
