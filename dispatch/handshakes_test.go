// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/subsys/tcp"
)

// A thousand connections that send nothing, renewed as they are cut, do not keep out a peer from
// another address. Nor do some hundred connections from the peer's own address.
func TestSilentConnections(t *testing.T) {
	for from, many := range map[string]int{"127.0.0.2": 1000, "127.0.0.1": 400} {
		w := newWorld()
		b := w.node(t, 1, tcp.New())
		mb := box(t, b, 1, 0)
		addr := strings.TrimPrefix(b.Addrs()[0], "tcp://")
		stop := make(chan struct{})
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		var attackers sync.WaitGroup
		up := make(chan struct{}, many)
		for range cap(up) {
			attackers.Go(func() {
				for isFirst := true; ; isFirst = false {
					c, err := d.Dial("tcp", addr)
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
		for range cap(up) {
			<-up
		}
		for i := range uint64(5) {
			talk(t, w.node(t, 10+i, tcp.New(), func(c *Config) { c.GiveUp = 20 * time.Second }), b, mb, i)
		}
		close(stop)
		attackers.Wait()
	}
}
