// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/subsys"
)

// lines is a log that several goroutines write to.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// A peer that is refused again and again does not fill the log.
func TestRefusedIsLimited(t *testing.T) {
	var log lines
	pool := buffers.New()
	p, err := New(secrets(t, "test", key(1))).Listen("", subsys.Config{
		Pool: pool, Logger: slog.New(slog.NewTextHandler(&log, nil)), Count: &subsys.Counters{},
		Accept: func(subsys.Conn) subsys.Sink { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	const flood = 100
	for range flood {
		nc, err := net.Dial("tcp", host(p.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = nc.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		_, _ = nc.Read(make([]byte, 1)) // returns when the peer was refused
		nc.Close()
	}
	if err := p.Close(); err != nil { // after Close nothing more is logged
		t.Error(err)
	}
	if n := strings.Count(log.b.String(), "tls: refused"); n != ratelog.Burst {
		t.Errorf("%d lines for %d peers, want %d", n, flood, ratelog.Burst)
	}
}
