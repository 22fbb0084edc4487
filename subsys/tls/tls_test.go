// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"bytes"
	stdtls "crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/subsystest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// key is a secret made of one byte.
func key(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

func secrets(t testing.TB, cluster string, s ...[]byte) *Secrets {
	t.Helper()
	return try.Get(FromSecrets(cluster, s...))(t)
}

func host(addr string) string { return strings.TrimPrefix(addr, "tls://") }

// connect makes a handshake as cfg says and waits until the other side has completed it or has hung
// up.
func connect(addr string, cfg *stdtls.Config) (*stdtls.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	c, err := stdtls.DialWithDialer(&d, "tcp", host(addr), cfg)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func TestConformance(t *testing.T) {
	cred := secrets(t, "test", key(1))
	subsystest.Test(t, subsystest.Options{
		New: func() subsys.Transport { return New(cred) },
		Own: func() (string, error) {
			at, err := freeaddr.Loopback()
			return "tls://" + at, err
		},
		// A peer that knows the secret and then writes nonsense.
		Garbage: func(addr string, b []byte) error {
			c, err := connect(addr, cred.now.Load().client)
			if err != nil {
				return err
			}
			defer c.Close()
			_, _ = c.Write(b) // the connection may be cut before all is written
			return nil
		},
		Allocs: 1, // crypto/tls makes an atLeastReader (24 bytes) for each record it reads
	})
}

// A peer without the secret may write anything, too. A peer that is refused again and again does
// not fill the log.
func TestPlainGarbage(t *testing.T) {
	p := listen(t, New(secrets(t, "test", key(1))))
	for _, b := range [][]byte{nil, {22}, {22, 3, 1, 255, 255}, {22, 3, 1, 0, 1}, {22, 3, 3, 0, 0}, {21, 3, 3, 0, 2, 1, 0}, bytes.Repeat([]byte{22}, 1<<16),
		[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), make([]byte, 1000), {0x80, 46, 1, 3, 1}} {
		c := try.Get(net.Dial("tcp", host(p.Addr())))(t)
		_, _ = c.Write(b)
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if said, _ := io.ReadAll(c); len(said) > 0 {
			t.Errorf("%q was answered %q", b, said)
		}
		c.Close()
	}
	p.wantRefused(t, 10)
	p.wantNone(t)
	if n := p.lines.Load(); n < ratelog.Burst || n > 2*ratelog.Burst { // one more each ten seconds
		t.Errorf("%d lines in the log, want %d", n, ratelog.Burst)
	}
}
