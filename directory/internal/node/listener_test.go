// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/ratelog"
	"golang.org/x/sys/unix"
)

// failing is a listener whose process has no free descriptors for a while.
type failing struct {
	net.Listener
	tries int
}

func (f *failing) Accept() (net.Conn, error) {
	if f.tries--; f.tries < 0 {
		return nil, net.ErrClosed
	}
	return nil, unix.EMFILE
}

// A repeated problem is logged a few times and not each time.
func TestAcceptingIsLoggedRarely(t *testing.T) {
	var log strings.Builder
	l := New(NewIdentity(), Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer l.Stop()
	l.busy.Add(1)
	l.accept(&failing{tries: 10 * ratelog.Burst}, nil)
	if n := strings.Count(log.String(), "directory: accepting"); n != ratelog.Burst {
		t.Errorf("it was logged %d times", n)
	}
}
