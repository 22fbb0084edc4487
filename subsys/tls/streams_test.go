// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Streams of one protocol are sealed both ways, with the credentials at the time of the handshake.
// Streams of another protocol or secret are refused at both ends, and get no answer.
func TestStreams(t *testing.T) {
	const proto = "stream/1"
	ours := secrets(t, "test", key(1))
	for _, c := range []struct {
		what  string
		cred  *Secrets
		proto string
		why   string // "": none
	}{
		{"one of us", secrets(t, "test", key(1)), proto, ""},
		{"another protocol", ours, "rocl/1", "does not speak"},
		{"another secret", secrets(t, "test", key(2)), proto, "another secret"},
		{"another cluster", secrets(t, "tost", key(1)), proto, "another cluster"},
		{"no longer one of us", secrets(t, "test", key(1)), proto, "another secret"},
		{"one of us again", ours, proto, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			if strings.HasPrefix(c.what, "no longer") {
				try.OK(t, ours.Set(key(3)))
			}
			ln := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
			defer ln.Close()
			served := make(chan error, 1)
			go func() {
				nc, err := ln.Accept()
				if err != nil {
					served <- err
					return
				}
				defer nc.Close()
				_ = nc.SetDeadline(time.Now().Add(testTimeout))
				s, err := Server(t.Context(), nc, ours, proto, nil)
				if err == nil {
					_, err = io.CopyN(s, s, 5)
				}
				served <- err
			}()
			nc := try.Get(net.Dial("tcp", ln.Addr().String()))(t)
			defer nc.Close()
			_ = nc.SetDeadline(time.Now().Add(testTimeout))
			heard := &counting{Conn: nc, n: atomic.Int64{}}
			s, err := Client(t.Context(), heard, c.cred, c.proto, nil)
			if c.why != "" {
				if err == nil || heard.n.Load() > 0 {
					t.Errorf("was answered %d bytes: %v", heard.n.Load(), err)
				}
				if err := <-served; !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), c.why) {
					t.Errorf("refused because of %v, want %q", err, c.why)
				}
				return
			}
			try.OK(t, err)
			b := make([]byte, 5)
			_, err = s.Write([]byte("hello"))
			if err == nil {
				_, err = io.ReadFull(s, b)
			}
			if err != nil || string(b) != "hello" {
				t.Errorf("%q: %v", b, err)
			}
			try.Check(t, <-served)
		})
	}
}
