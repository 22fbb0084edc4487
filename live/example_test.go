// SPDX-License-Identifier: Apache-2.0

package live_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/live"
)

// A client spreads requests over the workers by their load, and by a key over the workers that have
// the key's data.
func ExampleFollow() {
	ctx := context.Background()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	me, err := c.Register(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	workers := map[string]*rocl.Resource{}
	for name, load := range map[string]string{"a": "0", "b": "0", "c": "7"} {
		w, err := c.Register(ctx, rocl.Attrs{"type": "worker", "name": name, "load": load})
		if err != nil {
			log.Fatal(err)
		}
		workers[name] = w
	}

	s, err := live.Follow(ctx, c, rocl.Match{"type": "worker"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	picked := map[string]int{}
	for range 8 { // eight requests that are in flight at once
		m, err := s.Pick(live.Least("load"))
		if err != nil {
			log.Fatal(err)
		}
		picked[m.Attrs.GetString("name")]++
		defer m.Done(nil) // when the request is over
	}
	fmt.Println(picked)

	key := live.Hash("user:42")
	m, err := s.Pick(key)
	if err != nil {
		log.Fatal(err)
	}
	workers[m.Attrs.GetString("name")].Close() // or kill -9 of its process
	_, err = me.CallBytes(ctx, m.ID, 0, nil)
	m.Done(err) // from now on, the member is not picked
	next, err := s.Pick(key)
	fmt.Println(next.ID != m.ID, err)
	// Output:
	// map[a:4 b:4]
	// true <nil>
}
