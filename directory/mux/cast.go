// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/binary"
	"net"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// askAgain is how often a member is asked for its floor: the number from which on its casts are
// taken.
const askAgain = 50 * time.Millisecond

// Cast sends payload to all members with one datagram. A member that does not know this port's
// floor yet asks for it, and does not receive this datagram. Without a group, Cast does nothing.
func (p *Mux) Cast(payload []byte) {
	if p.group == nil || len(payload) > MaxPayload {
		return
	}
	k := p.keys.Load()
	w := writers.Get().(*writer)
	defer writers.Put(w)
	a := p.castOut.get(k, 0, "cast", uint64(p.cfg.Self), p.epoch)
	m := w.next(p.groupTo)
	m.Buffers[0] = seal(m.Buffers[0][:0], a, kindCast, k.tags[0], p.cfg.Self, p.casts.Add(1), payload)
	p.flush(w, p.main)
}

// heardCast handles a cast that has opened. It passes a new one at or above the floor to Receive.
// If the floor is not known, it asks the sender for it.
func (p *Mux) heardCast(from *peer, n uint64, size int, plain []byte) {
	from.mu.Lock()
	ask, first := false, false
	if from.castFrom == 0 {
		if now := time.Now(); now.Sub(from.askedCast) > askAgain {
			from.askedCast, ask = now, true
		}
	} else {
		first = n >= from.castFrom && from.seenCast.first(n)
	}
	known := from.castFrom != 0
	from.mu.Unlock()
	switch {
	case first:
		p.received(size)
		p.cfg.Receive(from.node, nil, plain)
	case known:
		p.count.Replayed.Add(1)
	case ask:
		p.send(p.main, plainAskFloor, []Out{{To: from.node}})
	}
}

// Beacon tells all that listen to the group that this member is there, and its port; the host is
// where the datagram comes from. A recorded beacon may be replayed: it only leads to an attempt to
// join.
func (p *Mux) Beacon() {
	if p.group == nil {
		return
	}
	_ = p.sendToAddress(kindBeacon, p.beacon(), &p.beacons, "beacon", p.groupTo)
}

// beacon returns the payload of a beacon.
func (p *Mux) beacon() []byte { return binary.LittleEndian.AppendUint16(nil, uint16(p.adv.Port)) }

// heardBeacon handles a beacon that has opened.
func (p *Mux) heardBeacon(node resource.NodeID, plain []byte, from *net.UDPAddr) {
	if len(plain) < 2 {
		return
	}
	at := &net.UDPAddr{IP: from.IP, Port: int(binary.LittleEndian.Uint16(plain)), Zone: from.Zone}
	p.cfg.Beacon(node, at)
}
