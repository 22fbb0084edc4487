// SPDX-License-Identifier: Apache-2.0

package freeaddr

import (
	"net"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/must"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLoopback(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		addr, err := Loopback()
		if err != nil || seen[addr] {
			t.Fatalf("%s: %v, again: %v", addr, err, seen[addr])
		}
		seen[addr] = true
	}
	addr := must.Get(Loopback())
	pc := must.Get(net.ListenPacket("udp", addr))
	defer pc.Close()
	if free(addr) {
		t.Error("an address with a UDP socket counts as free")
	}
}
