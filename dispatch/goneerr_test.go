// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A context that cannot be dialled: the message of a monitor and the errors of Flush, of a resource
// and of the context, have the reason and the address, after GiveUp has passed.
func TestUnreachableHasReason(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := ln.Addr().String()
	ln.Close()
	w := newWorld()
	d := w.node(t, 1, tcp.New(), func(c *Config) {
		c.GiveUp, c.Undelivered = 200*time.Millisecond, func(Undelivered) {}
	})
	nobody := resource.MakeGID(1, 2, 0)
	w.setAddrs(nobody, "tcp://"+addr)
	mine := box(t, d, 1, 0)
	stop, err := mine.Monitor(soon(t), nobody.WithSerial(7), 99)
	must(t, err)
	defer stop()
	f, err := d.Flow(nobody, 7)
	must(t, err)
	for range 3 {
		must(t, f.try(soon(t), 1, 10))
	}
	m, err := mine.Recv(soon(t))
	must(t, err)
	defer m.Release()
	for what, err := range map[string]error{"monitor": m.GoneErr(), "resource": mine.Flush(soon(t)), "context": d.Flush(soon(t))} {
		var none *NoConnectionError
		if !errors.Is(err, ErrUnreachable) || !errors.As(err, &none) || !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !m.IsGone() {
		t.Error("the message is not that of the monitor")
	}
}
