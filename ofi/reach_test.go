// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"net/netip"
	"testing"

	"github.com/rocl-go/rocl/subsys"
)

func TestReaches(t *testing.T) {
	for _, c := range []struct {
		provider, own, host string
		want                bool
	}{
		{"tcp;ofi_rxm", "10.0.0.7", "10.0.0.8:1", true},
		{"tcp;ofi_rxm", "10.0.0.7", "127.0.0.1:1", false},
		{"tcp;ofi_rxm", "127.0.0.1", "127.0.0.2:1", true},
		{"tcp;ofi_rxm", "127.0.0.1", "10.0.0.8:1", false},
		{"tcp;ofi_rxm", "0.0.0.0", "10.0.0.8:1", true},
		{"tcp;ofi_rxm", "::1", "localhost:1", true},
		{"shm", "127.0.0.1", "127.0.0.1:1", true},
		{"shm", "10.0.0.7", "10.0.0.7:1", true},
		{"shm", "10.0.0.7", "10.0.0.8:1", false},
		{"shm", "0.0.0.0", "10.0.0.8:1", false},
	} {
		tr := New(c.provider).(transport)
		if got := tr.reaches(netip.MustParseAddr(c.own), c.host); got != c.want {
			t.Errorf("%s from %s to %s: %v", c.provider, c.own, c.host, got)
		}
	}
}

// A cluster with a key does not use the transport between nodes (see TestForeignLoopback of package
// context).
func TestUnsealed(t *testing.T) {
	if _, is := New("shm").(subsys.Unsealed); !is {
		t.Error("the transport does not say that it does not seal")
	}
}
