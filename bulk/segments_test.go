// SPDX-License-Identifier: Apache-2.0

package bulk_test

import (
	"bytes"
	"testing"

	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// scattered is the size of a transfer between many segments: those of Mercury's users have 512 KiB.
const scattered = 512 << 10

// A transfer between many segments makes as many requests as one between contiguous memory, and
// copies each byte once on either side at most.
func TestSegmentsCostNoRequests(t *testing.T) {
	overEach(t, func(t *testing.T, origin, target side) {
		want := counting(scattered)
		least := map[string]uint64{}
		most := uint64(2*scattered + scattered/8) // and what the transport copies of headers
		if origin == target {
			most *= 2 // copied counts it twice
		}
		for _, k := range []int{1, 256, 1024} {
			mem := bytes.Clone(want)
			segs, _ := segments(t, origin.c, cut(mem, k), false)
			r := expose(t, origin, bulk.ReadWrite, segs...)
			got := make([]byte, scattered)
			for name, do := range map[string]func() (int64, error){
				"pull": func() (int64, error) { return target.Pull(deadline(t), r.Handle(), 0, cut(got, k)...) },
				"push": func() (int64, error) { return target.Push(deadline(t), r.Handle(), 0, cut(want, k)...) },
			} {
				copies, requests := copied(origin, target), target.Stats().Transfers
				try.Get(do())(t)
				requests = target.Stats().Transfers - requests
				if k == 1 {
					least[name] = requests
				} else if requests > least[name]+1 { // the request that finds the memory too scattered to be read in place
					t.Errorf("%s: %d requests for %d segments, %d for one", name, requests, k, least[name])
				}
				if copies = copied(origin, target) - copies; copies > most {
					t.Errorf("%s: %d bytes of %d were copied for %d segments", name, copies, scattered, k)
				}
			}
			if err := r.Revoke(deadline(t)); err != nil || !bytes.Equal(mem, want) || !bytes.Equal(got, want) {
				t.Errorf("%d segments: other bytes: %v", k, err)
			}
		}
	})
}
