// SPDX-License-Identifier: Apache-2.0

package mux

// Stats are the figures of Counters at one time.
type Stats struct {
	Sent, SentBytes                     uint64
	Received, ReceivedBytes             uint64
	GossipSent, GossipSentBytes         uint64
	GossipReceived, GossipReceivedBytes uint64
	Foreign, Replayed, GossipDropped    uint64
	Streams, StreamsRefused             uint64
	Members                             int // members that are known
	Gossipers                           int // members that gossip goes to and comes from
}

// Stats returns the present figures.
func (p *Mux) Stats() Stats {
	n := &p.count
	p.mu.RLock()
	members := len(p.peers)
	p.mu.RUnlock()
	p.gossipers.mu.RLock()
	gossipers := len(p.gossipers.of)
	p.gossipers.mu.RUnlock()
	return Stats{
		n.Sent.Load(), n.SentBytes.Load(), n.Received.Load(), n.ReceivedBytes.Load(),
		n.GossipSent.Load(), n.GossipSentBytes.Load(), n.GossipReceived.Load(), n.GossipReceivedBytes.Load(),
		n.Foreign.Load(), n.Replayed.Load(), n.GossipDropped.Load(),
		n.Streams.Load(), n.StreamsRefused.Load(), members, gossipers,
	}
}
