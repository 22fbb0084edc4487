// SPDX-License-Identifier: Apache-2.0

package node

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A client at a TCP port that does not prove that it knows the node's key is told nothing but the
// server's nonce.
func TestTCPStranger(t *testing.T) {
	s, at, addr := withTCP(t)
	reach(t, addr)
	nc := try.Get(net.Dial("tcp", at))(t)
	defer nc.Close()
	try.Get(nc.Write(make([]byte, tcpNonce+tcpProof+8)))(t)
	_ = nc.SetReadDeadline(time.Now().Add(10 * time.Second))
	if b, err := io.ReadAll(nc); len(b) != len(tcpHello)+tcpNonce {
		t.Errorf("a stranger is told %d bytes: %v", len(b), err)
	}
	try.Equal(t, s.served.Load(), 1, "connections were served")
}

// Silent connections keep no client out of a TCP port: their number is limited, and the oldest one
// is closed.
func TestSilentStrangers(t *testing.T) {
	s, at, addr := withTCP(t)
	for range 2 * maxUnproved {
		nc := try.Get(net.Dial("tcp", at))(t)
		defer nc.Close()
		if _, err := io.ReadFull(nc, make([]byte, len(tcpHello)+tcpNonce)); err != nil { // the connection is being served
			t.Fatal(err)
		}
		if n := s.unproved.Len(); n > maxUnprovedOfSource {
			t.Fatalf("%d unproved connections of one address", n)
		}
	}
	for range maxUnprovedOfSource + 1 { // connections that have proved to know the key do not count
		nc := try.Get(Dial(t.Context(), addr))(t)
		defer nc.Close()
	}
	reach(t, addr)
}
