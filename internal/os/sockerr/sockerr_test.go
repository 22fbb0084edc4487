// SPDX-License-Identifier: Apache-2.0

package sockerr

import (
	"net"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Errors of the system's sockets are known.
func TestIs(t *testing.T) {
	at := try.Get(freeaddr.Loopback())(t) // else another process may get the port when it is closed
	ln := try.Get(net.Listen("tcp", at))(t)
	if _, err := net.Listen("tcp", at); !Is(err, syscall.EADDRINUSE) || Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("a port that is in use: %v", err)
	}
	ln.Close()
	if _, err := net.Dial("tcp", at); !Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port that is not: %v", err)
	}
	if _, err := net.Listen("tcp", "192.0.2.1:0"); !Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("another machine's address: %v", err)
	}
}
