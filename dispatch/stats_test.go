// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// The counts of a link that ends while Stats reads are in Stats, once.
func TestStatsOnlyGrow(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	const links, each = 5000, 10
	var all []*link
	for i := range uint64(links) {
		l := newLink(d, linkKey{peer: resource.MakeGID(1, 2+i, 0)})
		l.traffic.resumed = each
		d.links[l.peer] = []*link{l}
		all = append(all, l)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, l := range all {
			d.unlink(l)
			d.unlink(l) // a link may be unlinked twice
		}
	}()
	for hasEnded := false; !hasEnded; {
		select {
		case <-ended:
			hasEnded = true
		default:
		}
		if n := d.Stats().Resumed; n != links*each {
			t.Fatalf("%d are counted, want %d", n, links*each)
		}
	}
}
