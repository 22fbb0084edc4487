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
func (x *Mux) Stats() Stats {
	n := &x.count
	x.mu.RLock()
	members := len(x.peers)
	x.mu.RUnlock()
	x.gossipers.mu.RLock()
	gossipers := len(x.gossipers.of)
	x.gossipers.mu.RUnlock()
	return Stats{
		n.Sent.Load(), n.SentBytes.Load(), n.Received.Load(), n.ReceivedBytes.Load(),
		n.GossipSent.Load(), n.GossipSentBytes.Load(), n.GossipReceived.Load(), n.GossipReceivedBytes.Load(),
		n.Foreign.Load(), n.Replayed.Load(), n.GossipDropped.Load(),
		n.Streams.Load(), n.StreamsRefused.Load(), members, gossipers,
	}
}
