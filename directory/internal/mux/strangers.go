// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"net"

	"github.com/rocl-go/rocl/internal/os/netsource"
	"github.com/rocl-go/rocl/subsys"
)

// A stranger is a stream whose caller has not shown yet that it is a member. memberlist's streams
// stay strangers, because memberlist does not report when a caller has. There is room for
// maxPending strangers; then one gives way, see [subsys.Handshakes].
type stranger struct {
	net.Conn
	slot *subsys.Handshake
}

// admitStranger takes up a connection, for which the oldest stranger may have to give way.
func (x *Mux) admitStranger(c net.Conn) *stranger {
	return &stranger{c, x.waiting.Add(netsource.Of(c.RemoteAddr()), func() { c.Close() })}
}

// markKnown notes that the caller has shown that it is a member.
func (n *stranger) markKnown() { n.slot.Done() }

func (n *stranger) Close() error {
	n.markKnown()
	return n.Conn.Close()
}
