// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/short"
)

// descriptors returns the kinds of the open descriptors, sorted, as the kernel names them. Pipes
// are left out: the Go runtime keeps those it uses for splice until a garbage collection.
func descriptors(t testing.TB) (kinds []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(all) == 0 {
		t.Skip("no /proc: descriptors cannot be counted")
	}
	for _, fd := range all {
		to, err := os.Readlink(fd)
		if err != nil {
			continue // the descriptor of the listing itself
		}
		if kind, _, _ := strings.Cut(to, "["); kind != "pipe:" {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// isWithin reports whether before has all of now. It may have more: a descriptor that an earlier
// test has left may go meanwhile.
func isWithin(now, before []string) bool {
	before = slices.Clone(before)
	for _, kind := range now {
		i := slices.Index(before, kind)
		if i < 0 {
			return false
		}
		before = slices.Delete(before, i, i+1)
	}
	return true
}

// Close may be called at any moment, and concurrently. It returns, no callback is called
// afterwards, and no descriptor is left.
//
// Promise (Keys): A port may be closed at any moment, and leaves nothing open.
func TestCloseDuringEverything(t *testing.T) {
	rounds := 1000
	if short.Form(t) {
		rounds = 50
	}
	sec := mutual(t)
	{ // opens what the Go runtime opens once
		n := start(t, 1, nil)
		n.Close()
	}
	before := descriptors(t)
	for round := range rounds {
		change := func(c *Config) {
			keyed("k")(c)
			if round%4 == 0 {
				c.TLS = sec
			}
			if round%2 == 0 {
				c.Spin = 50 * time.Microsecond
			}
			if round%8 < 4 {
				c.Group = "127.255.255.255:17946"
			}
		}
		a, b := start(t, 1, change), start(t, 2, change)
		know(a, b)
		stop := make(chan struct{})
		var busy sync.WaitGroup
		for i, f := range []func(x, y *node){
			func(x, y *node) {
				x.Send(Out{To: y.cfg.Self, Payload: []byte("hello")}, Out{To: y.cfg.Self, Payload: []byte("you")})
			},
			func(x, y *node) {
				x.Ask(50*time.Microsecond, func() bool { return false }, nothing, Out{To: y.cfg.Self})
			},
			func(x, y *node) {
				x.Cast([]byte("all"))
				x.Beacon()
				x.Part(y.cfg.Self)
				x.Meet(y.cfg.Self, y.Epoch(), y.Addr())
			},
			func(x, y *node) { x.Send(Out{To: y.cfg.Self, Payload: make([]byte, 5000)}) },
			func(x, y *node) {
				if c, err := x.Dial(t.Context(), y.cfg.Self); err == nil {
					_, _ = c.Write([]byte("x"))
					c.Close()
				}
			},
			func(x, y *node) {
				_, _ = x.Gossip().WriteTo([]byte{gossipByte}, y.Addr().String())
				if c, err := net.Dial("tcp", y.Addr().String()); err == nil {
					_, _ = c.Write([]byte{gossipByte}) // there is no memberlist that takes it
					c.Close()
				}
			},
		} {
			busy.Go(func() {
				for x, y := a, b; ; x, y = y, x {
					select {
					case <-stop:
						return
					default:
						f(x, y)
						time.Sleep(time.Duration(i*50) * time.Microsecond) // the load of a round varies
					}
				}
			})
		}
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) // the moment of Close varies
		var closing sync.WaitGroup
		for range 2 {
			closing.Go(func() { a.Close() })
		}
		closing.Wait()
		heard := a.count.Received.Load()
		b.Send(Out{To: 1, Payload: []byte("dead?")})
		if _, err := a.Dial(t.Context(), 2); err == nil {
			t.Fatal("dialled")
		}
		b.Close()
		close(stop)
		busy.Wait()
		if a.count.Received.Load() != heard {
			t.Fatal("heard after Close")
		}
	}
	var now []string
	defer func() { t.Logf("descriptors before %v, now %v", before, now) }()
	eventually.True(t, "all descriptors are back", func() bool { now = descriptors(t); return isWithin(now, before) })
}
