// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"flag"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

var resourcesFlag = flag.Int("forget.resources", 2_000, "short-lived resources in TestShortLivedResources")

// The accounts of a link with resources go with the resources: the link keeps nothing of each
// resource that was ever used.
//
// Promise (Memory): What a context keeps about a resource or a peer is freed when it goes. See also
// TestShortLivedPeers.
func TestShortLivedResources(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		lasting := box(t, b, 1, 0)
		f := flow(t, a, lasting)
		for i := range *resourcesFlag {
			mb := box(t, b, uint32(2+i), 0)
			try.OK(t, flow(t, a, mb).try(soon(t), 0, 10))
			if i%2 == 0 { // otherwise it is closed while the message comes, or is unread
				take(t, mb)
			}
			mb.Close()
		}
		try.OK(t, f.try(soon(t), 0, 10))
		take(t, lasting)
		if f.l == nil {
			eventually.True(t, "the sender's flows dropped", func() bool {
				a.mu.RLock()
				defer a.mu.RUnlock()
				return len(a.passages.flows) == 1
			})
			return
		}
		eventually.True(t, "the sender's flows dropped", locked(&f.l.mu, func() bool { return len(f.l.flows) == 1 }))
		l := try.Get(b.link(a.self))(t)
		eventually.True(t, "the receiver's accounts dropped", func() bool {
			_ = f.try(soon(t), 0, 0) // the accounts go with the next frames
			l.d.progress.Lock()
			defer l.d.progress.Unlock()
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.inflows) == 1 && len(l.closedIn) == 0
		})
	})
}
