// SPDX-License-Identifier: Apache-2.0

package freeaddr

import (
	"net"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLoopback(t *testing.T) {
	seen := map[string]bool{}
	for range 2 * size { // more than a block has
		addr, err := Loopback()
		if err != nil || seen[addr] {
			t.Fatalf("%s: %v, again: %v", addr, err, seen[addr])
		}
		seen[addr] = true
	}
	addr := try.Get(Loopback())(t)
	pc := try.Get(net.ListenPacket("udp", addr))(t)
	defer pc.Close()
	if free(addr) {
		t.Error("an address with a UDP socket counts as free")
	}
}
