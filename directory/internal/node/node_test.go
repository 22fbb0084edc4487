// SPDX-License-Identifier: Apache-2.0

package node

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sock returns a path for a socket in a folder of its own.
func sock(t testing.TB) string { return freeaddr.Socket(t) }

// withTCP is serve for a server that listens at a TCP port too. It returns the port's address, and
// the one that clients use.
func withTCP(t *testing.T) (s *server, at, addr string) {
	t.Helper()
	path := sock(t)
	s = serve(t, path, false)
	url := try.Get(s.OpenTCP("tcp://127.0.0.1:0"))(t)
	return s, strings.TrimPrefix(url, tcpScheme), url + "?node=" + path + nodeSuffix
}

// server is a Listener whose connections are echoed.
type server struct {
	*Listener
	served atomic.Int32 // connections
	ended  chan struct{}
}

// never is an interval that no test reaches.
const never = time.Hour

// listen makes a server at path that does not check its files by itself.
func listen(path string, daemon bool) (*server, error) {
	s := &server{ended: make(chan struct{})}
	s.Listener = New(NewIdentity(), Config{Daemon: daemon, Log: slog.New(slog.DiscardHandler), Check: never,
		Serve: func(nc net.Conn) {
			s.served.Add(1)
			_, _ = io.Copy(nc, nc)
			nc.Close()
		},
		Remade: func() {},
		End:    func() { close(s.ended) },
	})
	_, err := s.Claim(path, nil)
	if err == nil {
		err = s.Open()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close ends the server.
func (s *server) close() error {
	s.Stop()
	return s.Unlock()
}

// serve is listen for a server that ends with the test.
func serve(t testing.TB, path string, daemon bool) *server {
	t.Helper()
	s := try.Get(listen(path, daemon))(t)
	t.Cleanup(func() { s.close() })
	return s
}

// refused returns the error of a server that cannot listen at path.
func refused(t testing.TB, path string, daemon bool) error {
	t.Helper()
	s, err := listen(path, daemon)
	if err == nil {
		s.close()
		t.Errorf("%s is served", path)
	}
	return err
}

// reach reports an error unless a server answers at addr.
func reach(t testing.TB, addr string) {
	t.Helper()
	nc, err := Dial(t.Context(), addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer nc.Close()
	b := []byte("echo")
	try.Works(nc.Write(b))(t)
	if _, err := io.ReadFull(nc, b); err != nil || string(b) != "echo" {
		t.Errorf("answer %q: %v", b, err)
	}
}

// names reports an error that does not name path.
func names(t testing.TB, err error, path string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("the error does not name %s: %v", path, err)
	}
}
