// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net"
	"strings"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A stranger that makes invalid handshakes with a context, again and again, does not fill the log.
func TestStrangersFillNoLog(t *testing.T) {
	log := new(logged.Log)
	c := open(t, socket(t), lib.WithLogger(log.Logger()))
	var at string
	for _, a := range c.Addrs() {
		if s, ok := strings.CutPrefix(a, "tcp://"); ok {
			at = s
		}
	}
	hello := append([]byte{44, 0, 0, 0, 1}, make([]byte, 71)...) // of no context
	for range 200 {
		nc := try.Get(net.Dial("tcp", at))(t)
		_, _ = nc.Write(hello)
		_, _ = nc.Read(make([]byte, 1)) // it has been refused by now
		nc.Close()
	}
	c.Close()
	const most = 2 * ratelog.Burst // of two kinds of log line
	if n := log.Count("level=INFO", "dispatch: "); n == 0 || n > most {
		t.Errorf("%d lines for 200 strangers, want some and at most %d", n, most)
	}
}
