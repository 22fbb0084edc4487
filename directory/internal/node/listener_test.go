// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/internal/testkit/try"
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
	return nil, syscall.EMFILE
}

// A repeated problem is logged a few times and not each time.
//
// Promise (Directory): An event that can repeat is logged a few times, with the number of
// suppressed lines.
func TestAcceptingIsLoggedRarely(t *testing.T) {
	var log strings.Builder
	l := New(NewIdentity(), Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer l.Stop()
	l.accept(&failing{tries: 10 * ratelog.Burst}, nil)
	try.Equal(t, strings.Count(log.String(), "directory: accepting"), ratelog.Burst, "lines")
}

// A Listener that was stopped listens nowhere again, and its path is free after Unlock.
func TestStopped(t *testing.T) {
	path := sock(t)
	s := serve(t, path, true)
	s.Stop()
	try.Fails(s.OpenSecond(path+"2"))(t, wire.ErrClosed, "a second path")
	try.Fails(s.OpenTCP("tcp://127.0.0.1:0"))(t, wire.ErrClosed, "a TCP port")
	try.Fails(refused(t, path, false))(t, wire.ErrInUse, "before Unlock")
	try.Check(t, s.Unlock())
	serve(t, path, false).close()
	serve(t, path+"2", true).close()
}
