package tcp_test

import (
	"net"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/subsys/subsystest"
	"github.com/rocl-go/rocl/subsys/tcp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	subsystest.Test(t, subsystest.Options{New: tcp.New, Garbage: func(addr string, b []byte) error {
		c, err := net.Dial("tcp", strings.TrimPrefix(addr, "tcp://"))
		if err != nil {
			return err
		}
		defer c.Close()
		_, _ = c.Write(b) // it may be cut before all is written
		return nil
	}})
}
