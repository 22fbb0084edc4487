// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A member that has the key sends answers to questions that were not asked, invalid packets, and
// packets about a wrong range or node. No answer changes by that.
//
// Promise (Cluster searches): A member that lies changes no answer of other members.
func TestLiar(t *testing.T) { inMemory(t, testLiar) }

func testLiar(t *testing.T) {
	a := member(t, 1, nil)
	b, liar := member(t, 2, nil, a), member(t, 3, nil, a)
	together(t, a, b, liar)
	id := put(t, b, 1, resource.Attrs{"at": "b"})
	const found, none = 2, 3 // those of package search
	rnd := rand.New(rand.NewPCG(3, 4))
	stop := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() {
		for n := uint64(0); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			var out []mux.Out
			say := func(b []byte) { out = append(out, mux.Out{To: 1, Payload: b}) }
			for _, at := range []search.ID{{Asker: 1, N: n}, {Asker: 1, N: rnd.Uint64()}, {Asker: 2, N: n}, {Asker: 3, N: n}} {
				for _, from := range []resource.NodeID{1, 2, 3} {
					for _, kind := range []byte{found, none} {
						p := search.Packet{Type: kind, Fan: 16, ID: at, Lo: from, Hi: from, Body: []byte("lie"), Covered: uint32(n), Sum: n}
						say(p.Append(nil))
						p.Lo, p.Hi, p.Covered, p.Failed = 0, 1<<64-1, 1<<32-1, make([]resource.NodeID, 50)
						say(p.Append(nil))
					}
				}
			}
			junk := make([]byte, rnd.IntN(200))
			for i := range junk {
				junk[i] = byte(rnd.Uint32())
			}
			say(junk)
			say(append([]byte{byte(16 + n%8)}, junk...)) // messages about summaries
			ask := search.Packet{Type: 1, Fan: 2, ID: search.ID{Asker: 3, N: n}, Hi: 1<<64 - 1, Body: junk}
			say(ask.Append(nil))
			liar.mux.Send(out...)
			time.Sleep(time.Millisecond) // lies come beside answers, and do not crowd them out
		}
	})
	for range 50 {
		finds(t, a, resource.Match{"at": "b"}, id)
		denies(t, a, resource.Match{"at": "nowhere"})
		denies(t, b, resource.Match{"at": "nowhere"})
	}
	close(stop)
	busy.Wait()
	try.Equal(t, len(a.Members()), 3, "members")
}
