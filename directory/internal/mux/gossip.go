// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"crypto/cipher"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/resource"
)

// gossipByte begins memberlist's streams if memberlist has a label.
const gossipByte = 244

// Gossip returns the port as a transport for memberlist. memberlist must have a label. Datagrams
// reach only the members that the port was told of (Gossips).
func (x *Mux) Gossip() memberlist.NodeAwareTransport { return gossip{x} }

// gossip is the port as a memberlist.NodeAwareTransport.
type gossip struct{ x *Mux }

func (g gossip) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return g.x.adv.IP, g.x.adv.Port, nil
}

// WriteTo implements memberlist.Transport.
func (g gossip) WriteTo(b []byte, addr string) (time.Time, error) {
	return g.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress seals a datagram for the present incarnation of a member. To an unknown member the
// datagram is lost, as if in the network: memberlist then asks over a stream.
func (g gossip) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	to := g.x.gossipTo(a)
	if to == nil || len(b) > MaxPayload {
		return time.Now(), nil
	}
	n, err := g.x.sendOne(kindGossip, g.x.gossipers.sent.Add(1), b, to.addr, func(k *keys) cipher.AEAD { return g.x.sealer(to, "gossip", k) })
	g.x.count.GossipSent.Add(1)
	g.x.count.GossipSentBytes.Add(uint64(n))
	return time.Now(), err
}

// DialTimeout implements memberlist.Transport.
func (g gossip) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(g.x.lifetime, timeout)
	defer cancel()
	return g.x.DialAddr(ctx, addr)
}

func (g gossip) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return g.DialTimeout(a.Addr, timeout)
}

func (g gossip) PacketCh() <-chan *memberlist.Packet { return g.x.packets }
func (g gossip) StreamCh() <-chan net.Conn           { return g.x.streams }

// Shutdown implements memberlist.Transport. The port outlives memberlist.
func (g gossip) Shutdown() error { return nil }

// gossipers are the members that gossip goes to and comes from. Their sessions outlive Part:
// memberlist gossips to the dead too, so that a member that is wrongly taken for dead can deny it.
type gossipers struct {
	// sent is the counter. All members share it, so that no key seals two datagrams with one
	// number.
	sent atomic.Uint64

	mu   sync.RWMutex
	of   map[resource.NodeID]*session
	at   map[string]*session // the members in of, by address
	past pastIncarnations    // those that were forgotten
}

// Gossips makes another member known to gossip: its number, the epoch of its incarnation and its
// address. Gossip of its former incarnations is not heard any more.
func (x *Mux) Gossips(node resource.NodeID, epoch uint64, addr *net.UDPAddr) {
	if node == x.cfg.Self {
		return
	}
	g := &x.gossipers
	at := hostPort(addr)
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.of[node]
	if old != nil && old.epoch == epoch && hostPort(old.addr) == at {
		return
	}
	if old != nil {
		g.forgetLocked(old)
	}
	if other := g.at[at]; other != nil {
		g.forgetLocked(other) // a machine that was started anew is another node
	}
	m := &session{incarnation: incarnation{node, epoch}, addr: addr}
	g.past.restore(m.incarnation, &m.seen)
	g.of[node], g.at[at] = m, m
}

// ForgetGossip forgets a member: its gossip is not heard, and no gossip is sent to it, until
// Gossips makes it known again. The highest counter that was heard of its incarnation is kept.
func (x *Mux) ForgetGossip(node resource.NodeID) {
	g := &x.gossipers
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.of[node]; m != nil {
		g.forgetLocked(m)
	}
}

// forgetLocked removes m, and keeps in past what was heard of its incarnation. g.mu must be held.
func (g *gossipers) forgetLocked(m *session) {
	delete(g.of, m.node)
	if at := hostPort(m.addr); g.at[at] == m {
		delete(g.at, at)
	}
	m.end(g.past)
}

// gossipTo returns the member that memberlist means, by its name if memberlist gives one, or nil.
func (x *Mux) gossipTo(a memberlist.Address) *session {
	g := &x.gossipers
	g.mu.RLock()
	defer g.mu.RUnlock()
	if id, err := strconv.ParseUint(a.Name, 16, 48); err == nil {
		if m := g.of[resource.NodeID(id)]; m != nil && hostPort(m.addr) == a.Addr {
			return m
		}
	}
	return g.at[a.Addr]
}

// gossipFrom returns the session of a node, or nil.
func (x *Mux) gossipFrom(node resource.NodeID) *session {
	x.gossipers.mu.RLock()
	defer x.gossipers.mu.RUnlock()
	return x.gossipers.of[node]
}

// heardGossip passes a datagram to memberlist, if the datagram opens under the i-th key and is new.
// It reports whether the datagram opened.
func (x *Mux) heardGossip(b []byte, k *keys, i int, from *net.UDPAddr) bool {
	m, n, size := x.gossipFrom(senderOf(b)), counterOf(b), len(b)
	if m == nil {
		return false
	}
	plain, ok := open(b, x.opener(m, "gossip", k, i))
	if !ok {
		return false
	}
	if !m.first(n) {
		x.count.Replayed.Add(1)
		return true
	}
	x.count.GossipReceived.Add(1)
	x.count.GossipReceivedBytes.Add(uint64(size))
	select {
	case x.packets <- &memberlist.Packet{Buf: slices.Clone(plain), From: from, Timestamp: time.Now()}:
	default:
		x.count.GossipDropped.Add(1)
	}
	return true
}
