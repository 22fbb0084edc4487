// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/resource"
)

// The circuits of providers do what the drawing above circuits says, whatever calls overlap.
//
// Promise (Package rpc): A circuit opens after as many failures in a row as its policy says, lets
// no call pass until its rest is over, and then one at a time until one succeeds.
func TestCircuitModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &Circuit{Failures: rapid.IntRange(1, 4).Draw(t, "failures"), Rest: time.Second}
		type state struct { // of the model
			isOpen   bool
			failures int
			opened   time.Time
			isTried  bool
		}
		type call struct {
			of      int
			isTrial bool
		}
		var c circuits
		var model [2]state
		var calls []call
		id := func(i int) rocl.GID { return resource.MakeGID(1, 2, uint32(i+1)) }
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "provider")
				m := &model[i]
				isOver := m.isOpen && time.Since(m.opened) >= p.Rest
				want := !m.isOpen || isOver && !m.isTried
				may, isTrial := c.enter(id(i))
				if may != want || isTrial != (m.isOpen && want) {
					t.Fatalf("enter is %v, %v for %+v", may, isTrial, *m)
				}
				if may {
					m.isTried = m.isTried || isTrial
					calls = append(calls, call{i, isTrial})
				}
			},
			"end": func(t *rapid.T) {
				if len(calls) == 0 {
					t.Skip("no call")
				}
				k := rapid.IntRange(0, len(calls)-1).Draw(t, "call")
				how := outcome(rapid.IntRange(0, 2).Draw(t, "outcome"))
				e := calls[k]
				calls = append(calls[:k], calls[k+1:]...)
				c.leave(id(e.of), p, e.isTrial, how)
				m := &model[e.of]
				if e.isTrial {
					m.isTried = false
				}
				switch {
				case m.isOpen && !e.isTrial || how == outcomeNone:
				case how == outcomeWorked:
					*m = state{}
				case m.isOpen || m.failures+1 == p.Failures:
					*m = state{isOpen: true, opened: time.Now()}
				default:
					m.failures++
				}
			},
			"time": func(t *rapid.T) { // passes: all that was is longer ago
				d := time.Duration(rapid.IntRange(1, 700).Draw(t, "ms")) * time.Millisecond
				for i := range model {
					model[i].opened = model[i].opened.Add(-d)
				}
				for _, e := range c.of {
					if !e.until.IsZero() {
						e.until = e.until.Add(-d)
					}
				}
			},
			"": func(t *rapid.T) {
				n := 0
				for _, m := range model {
					if m.isOpen || m.failures > 0 {
						n++
					}
				}
				if int(c.n.Load()) != n || len(c.of) != n {
					t.Fatalf("%d entries, %d in the map, want %d", c.n.Load(), len(c.of), n)
				}
			},
		})
	})
}

// The circuits of providers that failed long ago are dropped.
func TestOldCircuits(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		var c circuits
		p := &Circuit{Failures: 1, Rest: time.Second}
		for i := range 3 * circuitsMost {
			c.leave(resource.MakeGID(1, 2, uint32(i+1)), p, false, outcomeFailed)
			time.Sleep(2 * time.Second) // virtual
		}
		if n := len(c.of); n > circuitsMost {
			t.Errorf("%d circuits", n)
		}
	})
}
