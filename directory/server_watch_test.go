// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"net"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/must"
	"github.com/rocl-go/rocl/resource"
)

// The server keeps nothing of the resources that came and went for a watch whose connection is not
// read. The watch may be a context's or another member's.
func TestUnreadWatch(t *testing.T) {
	for name, kind := range map[string]byte{"a context": wire.KindWatch, "a member": wire.KindPeer} {
		t.Run(name, func(t *testing.T) {
			s := NewServer()
			near, far := net.Pipe() // has no buffer
			done := make(chan struct{})
			go func() {
				defer close(done)
				if kind == wire.KindPeer {
					s.ServePeer(far)
				} else {
					s.ServeConn(far)
				}
			}()
			defer func() {
				near.Close()
				s.Close()
				<-done
			}()
			must.Get(near.Write(wire.Greeting(kind)))
			pattern := list(t, resource.Match{"type": "lamp"})
			k := wire.NewConn(near)
			if kind == wire.KindPeer { // a member sends a beat first; then nothing is read
				if m, err := k.ReadMessage(); err != nil || m.Type != wire.MsgBeat {
					t.Fatal(m.Type, err)
				}
			}
			k.Begin(wire.MsgWatch, 1)
			k.Append(pattern.Wire())
			must.OK(k.Send())
			for m := (wire.Message{}); m.Type != wire.MsgEvent; { // until Synced: the watch has begun
				m = must.Get(k.ReadMessage())
			}
			owner, lamp := resource.MakeGID(s.Node(), 1, 0), list(t, resource.Attrs{"type": "lamp"})
			for i := range uint32(4_000) {
				must.Get(s.Database().Put(owner.WithSerial(i+1), owner, lamp))
				must.OK(s.Database().Delete(owner.WithSerial(i + 1)))
			}
			st := s.Database().Stats()
			if st.Watched > 1 { // one event may be on its way; a member that is silent for long is cut off
				t.Errorf("%d watches keep %d entries of 4,000 resources that came and went", st.Watches, st.Watched)
			}
		})
	}
}
