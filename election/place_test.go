// SPDX-License-Identifier: Apache-2.0

package election

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A process stands still between registering its claim and giving it a place. Another one does not
// take the name meanwhile. If it could, it could also end before the first one goes on, with a
// greater number.
func TestUnplacedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := rocltest.Cluster(t, 2)
		name := rocl.Attrs{"role": "leader"}
		slow := &Term{c: cluster.Open(0)}
		try.OK(t, name.AppendAttrs(&slow.name))
		slow.text = try.Get(nameText(&slow.name))(t)
		try.OK(t, slow.register(t.Context(), nil))

		terms, other := make(chan *Term, 1), cluster.Open(1)
		go func() { terms <- try.Get(Hold(t.Context(), other, name))(t) }()
		time.Sleep(time.Second) // of virtual time
		synctest.Wait()
		if len(terms) != 0 {
			t.Error("the name was taken beside a claim without a place")
		}
		try.OK(t, slow.place(t.Context(), 0))
		numbers := make(chan uint64, 2)
		go func() {
			try.OK(t, slow.queue(t.Context(), nil))
			numbers <- slow.Number()
			try.OK(t, slow.r.Close())
		}()
		go func() {
			term := <-terms
			numbers <- term.Number()
			try.OK(t, term.Close())
		}()
		if first, second := <-numbers, <-numbers; second <= first {
			t.Errorf("number %d follows %d", second, first)
		}
		synctest.Wait() // until both have ended
	})
}
