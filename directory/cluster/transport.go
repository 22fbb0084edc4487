// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// within is memberlist's transport. Its streams end with the member's life, so that a peer that
// does not answer does not keep the member from closing.
type within struct {
	memberlist.NodeAwareTransport
	dial func(ctx context.Context, addr string) (net.Conn, error)
	life context.Context
}

func (w within) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(w.life, timeout)
	defer cancel()
	nc, err := w.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &ending{nc, context.AfterFunc(w.life, func() { nc.Close() })}, nil
}

func (w within) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return w.DialTimeout(a.Addr, timeout)
}

// ending is a connection that the end of the member's life closes too. Close stops that.
type ending struct {
	net.Conn
	stop func() bool
}

func (e *ending) Close() error {
	e.stop()
	return e.Conn.Close()
}

// knockAndDial dials for memberlist, which does so when a member does not answer a packet. The
// member may have been started anew and know no other member. The members that joined it still take
// it for alive and do not look for it. So knockAndDial first tells it that this member is here.
func (g *gossip) knockAndDial(ctx context.Context, addr string) (net.Conn, error) {
	if at, err := netip.ParseAddrPort(addr); err == nil {
		g.mux.Knock(net.UDPAddrFromAddrPort(at))
	}
	return g.mux.DialAddr(ctx, addr)
}
