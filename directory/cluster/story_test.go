// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/subsys/simnet"
)

// What a member logs at level info is the story of its cluster, a line for each event, with names
// of machines: a member joins, the wire to it is cut and heals, another one joins, the first is
// restarted, and the other one leaves.
//
// Promise (Clusters): A member's log tells at level info, a line each, that a member joined, was
// lost, was reached again, restarted or left, with the name of its machine.
func TestStory(t *testing.T) {
	inMemory(t, func(t *testing.T) {
		s := &logged.Story{Prefix: "cluster: ", Attrs: []string{"event", "host"}}
		told := func() string { return strings.Join(s.Lines(), "\n") }
		net, _ := networks.Load(t)
		wire := net.(*simnet.Network)
		machines := map[string]*simnet.Host{}
		named := func(host string) func(*Config) {
			return func(c *Config) {
				h := machines[host]
				if h == nil {
					h = wire.AddHost(host)
					machines[host] = h
				}
				c.host, c.Network = host, h.Start()
				if host == "anna" {
					c.Logger = slog.New(s)
				}
			}
		}
		cut := func(host string) {
			for name, h := range machines {
				if name != host {
					wire.Cut(h, machines[host])
					wire.Cut(machines[host], h)
				}
			}
		}
		has := func(n int, line string) {
			t.Helper()
			if !eventually.Within(time.Minute, func() bool { return strings.Count(told(), "\n") >= n-1 && told() != "" }) || !strings.HasSuffix(told(), "cluster: member "+line) {
				t.Fatalf("line %d is not %q:\n%s", n, line, told())
			}
		}
		a := member(t, 1, named("anna"))
		b := member(t, 2, named("bert"), a)
		has(1, "event=joined host=bert")
		together(t, a, b)
		cut("bert")
		has(2, "event=lost host=bert")
		wire.Heal()
		has(3, "event=reached again host=bert")
		together(t, a, b)

		c := member(t, 3, named("cleo"), a)
		has(4, "event=joined host=cleo")
		together(t, a, b, c)
		_ = b.HandOver()
		has(5, "event=restarting host=bert")
		b = member(t, 2, named("bert"), a)
		has(6, "event=restarted host=bert")
		together(t, a, b, c)

		c.Close()
		has(7, "event=left host=cleo")
		time.Sleep(10 * time.Second) // of virtual time: no further line comes
		has(7, "event=left host=cleo")
	})
}
