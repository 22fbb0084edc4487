// SPDX-License-Identifier: Apache-2.0

package simnet_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/simnet"
	"github.com/rocl-go/rocl/subsys/subsystest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apart opens each port on a host of its own. A port that names an address is opened on its host.
type apart struct {
	subsys.Transport
	n *simnet.Network

	mu sync.Mutex
	at map[string]*simnet.Process // by address
}

func (a *apart) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.at[addr]; p != nil {
		return p.Transport().Listen(addr, cfg)
	}
	p := a.n.AddHost("").Start()
	port, err := p.Transport().Listen(addr, cfg)
	if err == nil {
		a.at[port.Addr()] = p
	}
	return port, err
}

// TestConformance runs the suite of transports without delay in real time, and with delay in
// virtual time. A frame costs allocations, because Send copies frames into new memory.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name        string
		least, most time.Duration
	}{{name: "real"}, {"virtual", time.Millisecond, 5 * time.Millisecond}} {
		t.Run(c.name, func(t *testing.T) {
			var n *simnet.Network
			subsystest.Test(t, subsystest.Options{
				New: func() subsys.Transport {
					n = simnet.New(1)
					n.SetDelay(c.least, c.most)
					return &apart{Transport: n.AddHost("").Start().Transport(), n: n, at: map[string]*simnet.Process{}}
				},
				Garbage: func(addr string, b []byte) error {
					nc, err := n.AddHost("").Start().DialContext(context.Background(), strings.TrimPrefix(addr, "sim://"))
					if err != nil {
						return err
					}
					defer nc.Close()
					_, _ = nc.Write(b)
					return nil
				},
				Allocs: 8,
				Bubble: c.most > 0,
			})
		})
	}
}
