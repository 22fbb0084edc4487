// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rocl-go/rocl/internal/os/netsource"
)

// A source with any number of connections does not displace those of a source that has fewer. Of
// one source the oldest connection is cut first.
//
// Promise (Hostile peers): Connections that say nothing, or whose handshake never ends, keep no
// peer out. See also TestSilentConnections.
func TestHandshakes(t *testing.T) {
	const most = 8
	s := NewHandshakes(most)
	var cut []string
	entries := map[string]*Handshake{}
	add := func(remote string) {
		entries[remote] = s.Add(netsource.OfURL(remote), func() { cut = append(cut, remote) })
	}
	add("tcp://10.0.0.1:1")
	add("tcp://[fd00::1]:1")
	for i := range most {
		add(fmt.Sprintf("tcp://10.0.0.2:%d", i))
	}
	if want := []string{"tcp://10.0.0.2:0", "tcp://10.0.0.2:1"}; !slices.Equal(cut, want) {
		t.Fatalf("cut %v, want %v", cut, want)
	}
	add("tls://[fd00::2]:1") // the same /64 as fd00::1
	add("shm://one/a")
	add("shm://one/b")
	if want := []string{"tcp://10.0.0.2:2", "tcp://10.0.0.2:3", "tcp://10.0.0.2:4"}; !slices.Equal(cut[2:], want) {
		t.Fatalf("then cut %v, want %v", cut[2:], want)
	}
	if !entries["tcp://10.0.0.1:1"].Done() || entries["tcp://10.0.0.1:1"].Done() || entries["tcp://10.0.0.2:0"].Done() {
		t.Error("a place is given back once, and one that was taken not at all")
	}
	cut = nil
	add("tcp://10.0.0.3:1") // in its place
	if len(cut) > 0 {
		t.Errorf("cut %v beside a free place", cut)
	}
	s.CloseAll()
	if len(cut) != most || s.Len() != 0 || len(s.of) != 0 {
		t.Errorf("%d cut, %d left", len(cut), s.Len())
	}
	// If all sources have one connection, the oldest is cut.
	cut = nil
	for i := range most + 1 {
		add(fmt.Sprintf("tcp://10.0.1.%d:1", i))
	}
	if !slices.Equal(cut, []string{"tcp://10.0.1.0:1"}) {
		t.Errorf("of equals cut %v", cut)
	}
}
