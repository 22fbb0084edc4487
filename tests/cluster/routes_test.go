// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// There is no shared memory across the boundary of a container with its own network namespace,
// although kernel and user are the same. TCP is used, or TLS if the cluster has a key. Namespaces
// only for processes and mounts are no boundary.
func TestContainers(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		l := newLab(t, 2)
		far := "tls"
		if !sealed {
			l.key, far = "", "tcp"
		}
		l.nodes[0].serve()
		l.nodes[1].serve(l.nodes[0])
		plain := l.nodes[0].agent()
		for _, n := range l.nodes {
			n.box = true
		}
		boxed, other := l.nodes[0].agent(), l.nodes[1].agent()
		plain.register(rocl.Attrs{"who": "plain"})
		talk := func(to *agent, who, transport string) {
			t.Helper()
			id := to.register(rocl.Attrs{"who": who})
			eventually.True(t, "it is found", func() bool { return plain.find(rocl.Match{"who": who}).How == "" })
			plain.say(to, id, "hello")
			for _, r := range do[struct{}, []rocl.Route](plain, "Routes", struct{}{}) {
				if r.Peer == id.Context() {
					try.Equal(t, r.Transport, transport, "the transport to %s", who)
					return
				}
			}
			t.Errorf("no route to %s", who)
		}
		talk(boxed, "boxed", "shm")
		talk(other, "other", far)
	}
}
