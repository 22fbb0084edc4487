// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"crypto/cipher"
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
func (x *Mux) Cast(payload []byte) {
	if x.group == nil || len(payload) > MaxPayload {
		return
	}
	bytes, err := x.sendOne(kindCast, x.casts.Add(1), payload, x.groupTo, func(k *keys) cipher.AEAD {
		return x.castOut.get(k, 0, "cast", uint64(x.cfg.Self), x.epoch)
	})
	if err == nil {
		x.count.Sent.Add(1)
		x.count.SentBytes.Add(uint64(bytes))
	}
}

// heardCast handles a cast that has opened. It passes a new one at or above the floor to Receive.
// If the floor is not known, it asks the sender for it.
func (x *Mux) heardCast(from *peer, n uint64, size int, plain []byte) {
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
		x.received(size)
		x.cfg.Receive(from.node, nil, plain)
	case known:
		x.count.Replayed.Add(1)
	case ask:
		x.send(x.main, plainAskFloor, []Out{{To: from.node}})
	}
}

// Beacon tells all that listen to the group that this member is there, and its port; the host is
// where the datagram comes from. A recorded beacon may be replayed: it only leads to an attempt to
// join.
func (x *Mux) Beacon() {
	if x.group != nil {
		x.Knock(x.groupTo)
	}
}

// Knock tells the program at an address that this member is there, and at which port. A member that
// was started anew there may know no other member, and cannot open what is sealed for its former
// incarnation.
func (x *Mux) Knock(addr *net.UDPAddr) {
	port := binary.LittleEndian.AppendUint16(nil, uint16(x.adv.Port))
	_ = x.sendToAddress(kindBeacon, port, &x.beacons, "beacon", addr)
}

// heardBeacon handles a beacon that has opened.
func (x *Mux) heardBeacon(node resource.NodeID, plain []byte, from *net.UDPAddr) {
	if len(plain) < 2 {
		return
	}
	at := &net.UDPAddr{IP: from.IP, Port: int(binary.LittleEndian.Uint16(plain)), Zone: from.Zone}
	x.cfg.Beacon(node, at)
}
