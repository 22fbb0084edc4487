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
	"sync"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/os/sockerr"
)

// These ports are below those that the kernel assigns to listeners and outgoing connections.
// Between its uses a test's port could otherwise be assigned to another process. They are cut into
// blocks. A process that listens at the first port of a block has the others for itself.
const first, blocks, size = 10_000, 100, 200

var mine struct {
	sync.Mutex
	held []net.Listener // as long as the process runs
	next int            // the next port of the last of them; a block is used up when it is a multiple of size
}

// Loopback returns a HOST:PORT on 127.0.0.1 that is free for TCP and UDP. No test gets it again,
// in no process, as long as this process runs.
func Loopback() (string, error) {
	port, err := Port()
	return fmt.Sprint("127.0.0.1:", port), err
}

// Port returns the port of such an address, for a test that listens at another IP address too.
func Port() (int, error) {
	mine.Lock()
	defer mine.Unlock()
	for {
		for ; mine.next%size != 0; mine.next++ {
			if port := first + mine.next; free(fmt.Sprint("127.0.0.1:", port)) {
				mine.next++
				return port, nil
			}
		}
		if err := hold(); err != nil {
			return 0, err
		}
	}
}

// hold takes a block that no process has. The caller has locked mine.
func hold() error {
	for i, begin := 0, rand.N(blocks); i < blocks; i++ {
		block := (begin + i) % blocks * size
		if ln, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", first+block)); err == nil {
			mine.held, mine.next = append(mine.held, ln), block+1
			return nil
		}
	}
	return fmt.Errorf("freeaddr: each of %d blocks of %d ports is in use", blocks, size)
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
		return !sockerr.Is(err, syscall.EADDRINUSE) // Go cannot use UDP under wine 8
	}
	return pc.Close() == nil
}
