// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mapped(t *testing.T, n int) []byte {
	t.Helper()
	b, err := Map(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Unmap(b) })
	return b
}

// A message and a read between two endpoints, of each provider that this machine has.
func TestEndpoints(t *testing.T) {
	for _, provider := range []string{"tcp;ofi_rxm", "shm", "sockets", "udp;ofi_rxd"} {
		t.Run(provider, func(t *testing.T) {
			host := "127.0.0.1"
			if provider == "shm" {
				host = ""
			}
			var e [2]*Endpoint
			var at [2]Address
			for i := range e {
				var err error
				if e[i], err = Open(provider, host, 16); errors.Is(err, ErrUnavailable) {
					t.Skip(err)
				} else if err != nil {
					t.Fatal(err)
				}
				defer e[i].Close()
			}
			for i := range e {
				var err error
				if at[i], err = e[i].Insert(e[1-i].Name()); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("name %q, wait %d, local %v", e[0].Name(), e[0].WaitFD(), e[0].NeedsLocal())
			in, out := mapped(t, 4096), mapped(t, 4096)
			r, err := e[0].Register(out, 0x1234567)
			if err != nil {
				t.Fatal(err)
			}
			defer e[0].Unregister(r)
			copy(out, "hello")
			if err := e[1].Recv(3, in, 0); err != nil {
				t.Fatal(err)
			}
			again := func(f func() error) {
				t.Helper()
				for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
					err := f()
					if err == nil {
						return
					}
					if err != ErrAgain {
						t.Fatal(err)
					}
					var c [4]Completion
					_, _ = e[0].Poll(c[:])
					_, _ = e[1].Poll(c[:])
				}
				t.Fatal("the provider takes nothing")
			}
			until := func(e0, e1 *Endpoint, op int) Completion {
				t.Helper()
				for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
					var c [4]Completion
					if _, err := e1.Poll(c[:]); err != nil {
						t.Fatal(err)
					}
					n, err := e0.Poll(c[:])
					if err != nil {
						t.Fatal(err)
					}
					for _, c := range c[:n] {
						if c.Op == op {
							return c
						}
					}
				}
				t.Fatal("no completion")
				return Completion{}
			}
			again(func() error { return e[0].Send(5, out[:5], r.Desc, at[0]) })
			if c := until(e[1], e[0], 3); c.Err != nil || c.Len != 5 || string(in[:5]) != "hello" {
				t.Fatalf("%+v %q", c, in[:5])
			}
			copy(out, "world")
			again(func() error { return e[1].Read(7, in, 0, at[1], r.Base, r.Key) })
			if c := until(e[1], e[0], 7); c.Err != nil || string(in[:5]) != "world" {
				t.Fatalf("%+v %q", c, in[:5])
			}
		})
	}
}
