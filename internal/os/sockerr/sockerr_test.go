// SPDX-License-Identifier: Apache-2.0

package sockerr

import (
	"net"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Errors of the system's sockets are known.
func TestIs(t *testing.T) {
	ln := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer ln.Close()
	if _, err := net.Listen("tcp", ln.Addr().String()); !Is(err, syscall.EADDRINUSE) || Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("a port that is in use: %v", err)
	}
	if _, err := net.Dial("tcp", "127.0.0.1:1"); !Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port where nothing listens: %v", err)
	}
	if _, err := net.Listen("tcp", "192.0.2.1:0"); !Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("another machine's address: %v", err)
	}
}
