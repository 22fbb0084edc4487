// SPDX-License-Identifier: Apache-2.0

// Package freeaddr finds addresses for tests that must name an address before a listener has it,
// and again after the listener has ended.
package freeaddr

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// These ports are below those that the kernel assigns to listeners and outgoing connections.
// Between its uses a test's port could otherwise be assigned to another process.
const first, count = 10_000, 20_000

var next atomic.Uint32

// Loopback returns a HOST:PORT on 127.0.0.1 that is free for TCP and UDP. It is not returned twice,
// and another process is unlikely to get it.
func Loopback() (string, error) {
	port, err := Port()
	return fmt.Sprint("127.0.0.1:", port), err
}

// Port returns the port of such an address, for a test that listens at another IP address too.
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

// Socket returns the path of a Unix socket in a folder of its own, which is removed when the test
// ends. Unlike paths in t.TempDir, it is shorter than the 107 bytes that the kernel allows.
func Socket(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rt-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "d.sock")
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
