// SPDX-License-Identifier: Apache-2.0

// Package freeaddr finds addresses for tests that must name one before somebody
// listens there, and again after he has ended.
package freeaddr

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
)

// Below those that the kernel hands out by itself, to listeners and for outgoing
// connections: between its uses such a one could get into another's hands.
const first, count = 10_000, 20_000

var next atomic.Uint32

// Loopback is HOST:PORT on 127.0.0.1 where nobody listens, over TCP or UDP. It is
// not given out twice, and it is unlikely that another process is given it.
func Loopback() (string, error) {
	port, err := Port()
	return fmt.Sprint("127.0.0.1:", port), err
}

// Port is the port of such an address, for who listens at another address too.
func Port() (int, error) {
	next.CompareAndSwap(0, 1+rand.Uint32N(count))
	for range count {
		port := int(first + next.Add(1)%count)
		if free(fmt.Sprint("127.0.0.1:", port)) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("freeaddr: none of %d ports is free", count)
}

func free(addr string) bool {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer ln.Close()
	pc, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	return pc.Close() == nil
}
