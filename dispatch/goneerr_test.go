// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A context that cannot be dialled: the message of a monitor and the errors of Flush, of a resource
// and of the context, have the reason and the address, after GiveUp has passed.
func TestUnreachableHasReason(t *testing.T) {
	inSimulation(t, func(t *testing.T, n *simulated) {
		w, addr, nobody := newWorld(), n.nowhere(), resource.MakeGID(1, 2, 0)
		d := w.node(t, 1, n.transport(), func(c *Config) { c.Undelivered = func(Undelivered) {} })
		w.setAddrs(nobody, addr)
		mine := box(t, d, 1, 0)
		monitorOf(t, mine, nobody.WithSerial(7), 99)
		f := try.Get(d.Flow(nobody, 7))(t)
		for range 3 {
			try.OK(t, f.try(soon(t), 1, 10))
		}
		m := try.Get(mine.Recv(soon(t)))(t)
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
	})
}
