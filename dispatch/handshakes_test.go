// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// A thousand connections that send nothing, renewed as they are cut, do not keep out a peer from
// another address. Nor do some hundred connections from the peer's own address.
func TestSilentConnections(t *testing.T) {
	for isNear, many := range map[bool]int{false: 1000, true: 400} {
		inSimulation(t, func(t *testing.T, n *simulated) {
			w := newWorld()
			b := w.node(t, 1, n.transport())
			mb := box(t, b, 1, 0)
			addr := strings.TrimPrefix(b.Addrs()[0], "sim://")
			from := n.AddHost("")
			attacker := from.Start()
			stop, up := make(chan struct{}), make(chan struct{}, many)
			var attackers sync.WaitGroup
			for range many {
				attackers.Go(func() {
					for isFirst := true; ; isFirst = false {
						c, err := attacker.DialContext(t.Context(), addr)
						if isFirst {
							up <- struct{}{}
						}
						if err != nil {
							t.Error(err)
							return
						}
						cut := make(chan struct{})
						go func() {
							defer close(cut)
							_, _ = c.Read(make([]byte, 1))
						}()
						select {
						case <-stop:
							c.Close()
							<-cut
							return
						case <-cut:
							c.Close()
						}
						select {
						case <-stop:
							return
						case <-time.After(time.Second):
						}
					}
				})
			}
			for range many {
				<-up
			}
			for i := range uint64(5) {
				if !isNear {
					from = n.AddHost("")
				}
				talk(t, w.node(t, 10+i, from.Start().Transport()), b, mb, i)
			}
			close(stop)
			attackers.Wait()
		})
	}
}
