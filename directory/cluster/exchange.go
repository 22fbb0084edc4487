// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// exchanges has the exchanges that this member has begun with other members. In an exchange both
// members tell all that they know of the members.
type exchanges struct {
	*core
	members *memberTable
	gossip  *gossip

	mu       sync.Mutex // guards underWay; taken before memberTable.mu
	underWay map[resource.NodeID]*exchange
}

// An exchange with a member is under way, or has ended.
type exchange struct {
	done chan struct{} // closed at its end
	err  error         // why it failed; read after done is closed
}

// with exchanges with a member all that both know of the members. It reports whether this call
// began the exchange: a call waits for an exchange that is under way.
func (x *exchanges) with(ctx context.Context, id resource.NodeID) (begun bool, err error) {
	x.mu.Lock()
	e := x.underWay[id]
	if e == nil {
		begun = true
		if addr, ok := x.members.addr(id); ok {
			e = x.beginLocked(id, addr)
		}
	}
	x.mu.Unlock()
	if e == nil {
		return true, context.Cause(x.life)
	}
	select {
	case <-e.done:
		return begun, e.err
	case <-ctx.Done():
		return begun, context.Cause(ctx)
	case <-x.life.Done():
		return begun, context.Cause(x.life)
	}
}

// beginLocked begins an exchange with a member, with which none is under way. The end of x.life
// ends it. It returns nil if x.life has ended.
func (x *exchanges) beginLocked(id resource.NodeID, addr string) *exchange {
	e := &exchange{done: make(chan struct{})}
	if !x.life.begin(func() {
		_, err := x.gossip.list.Join([]string{addr})
		if err != nil {
			x.log.Debug("cluster: exchanging members", "addr", addr, "err", err)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		e.err = err
		delete(x.underWay, id)
		close(e.done)
	}) {
		return nil
	}
	x.underWay[id] = e
	return e
}

const (
	silentEvery    = time.Second // how often a member that does not answer is exchanged with
	mostWithSilent = 16          // exchanges under way when exchangeWith begins no other one
)

// exchangeWith exchanges with members that do not answer and are taken for alive. Gossip of the
// present life of one of them may have been lost: then neither of the two opens what the other one
// sends, and memberlist, which reaches it by a stream, sees nothing wrong. In a large cluster, only
// a few of the members that ask do so at a time.
func (x *exchanges) exchangeWith(silent ...resource.NodeID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, id := range silent {
		if x.underWay[id] != nil || len(x.underWay) >= mostWithSilent {
			continue
		}
		if addr, ok := x.members.silentAddress(id); ok {
			x.beginLocked(id, addr)
		}
	}
}

// silentAddress returns the address of a member that is taken for alive, with which exchangeWith
// has begun no exchange for silentEvery. ok is false for other nodes, and if it is not this
// member's turn. The caller begins an exchange.
func (t *memberTable) silentAddress(id resource.NodeID) (addr string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, now := t.nodes[id], time.Now()
	if m == nil || !m.isAlive || now.Sub(m.exchanged) < silentEvery || !t.seeks() {
		return "", false
	}
	m.exchanged = now
	return m.addr, true
}
