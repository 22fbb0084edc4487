// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A context joins again while the end of its last connection deletes its resources. What it
// registers from then on stays.
func TestJoinsWhileItEnds(t *testing.T) {
	s := NewServer()
	defer s.Close()
	self := resource.MakeGID(s.id.Node, 7, 0)
	for i := range 10_000 {
		old, again := new(registrationServer), new(registrationServer)
		s.enter(self, old)
		for serial := range uint32(10) {
			try.Get(s.db.Put(self.WithSerial(serial), self, new(resource.List)))(t)
		}
		id := self.WithSerial(20)
		var begun atomic.Int32
		atOnce := func(f func()) func() {
			return func() {
				for begun.Add(1); begun.Load() < 2; {
					runtime.Gosched()
				}
				f()
			}
		}
		var both sync.WaitGroup
		both.Go(atOnce(func() { s.leave(self, old) }))
		both.Go(atOnce(func() {
			s.enter(self, again)
			try.Get(s.db.Put(id, self, new(resource.List)))(t)
		}))
		both.Wait()
		if _, ok := s.db.Get(id); !ok {
			t.Fatalf("round %d: what was registered is gone", i)
		}
		if !s.hasJoined(self) {
			t.Fatalf("round %d: the context is gone", i)
		}
		s.leave(self, again)
	}
}
