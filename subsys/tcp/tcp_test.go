// SPDX-License-Identifier: Apache-2.0

package tcp_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/subsystest"
	"github.com/rocl-go/rocl/subsys/tcp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apart listens at an address that no other process on this machine has used. A context of another
// test may still dial the port that its peer had, and this test could get that port. Without a
// handshake the two could not be told apart.
type apart struct{ subsys.Transport }

func (a apart) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	if addr == "" {
		pid := os.Getpid()
		addr = fmt.Sprintf("tcp://127.%d.%d.%d:0", 1+pid>>16&0x7f, pid>>8&0xff, pid&0xff)
	}
	return a.Transport.Listen(addr, cfg)
}

func TestConformance(t *testing.T) {
	subsystest.Test(t, subsystest.Options{New: func() subsys.Transport { return apart{tcp.New()} }, Garbage: func(addr string, b []byte) error {
		c, err := net.Dial("tcp", strings.TrimPrefix(addr, "tcp://"))
		if err != nil {
			return err
		}
		defer c.Close()
		_, _ = c.Write(b) // the connection may be cut before all is written
		return nil
	}})
}
