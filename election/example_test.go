// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/election"
)

// Two processes want to be the leader. When the first one gives up the name, the second one has it,
// with a greater number.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	open := func() *rocl.Context { // a program needs no WithSocket
		c, err := rocl.Open(ctx, rocl.WithSocket(filepath.Join(dir, "socket")))
		if err != nil {
			panic(err)
		}
		return c
	}
	a, b := open(), open()
	defer b.Close()
	defer a.Close()

	leader := rocl.Attrs{"role": "leader"}
	first, err := election.Hold(ctx, a, leader)
	if err != nil {
		panic(err)
	}
	taken := make(chan *election.Term)
	go func() { // the second process
		term, err := election.Hold(ctx, b, leader) // waits
		if err != nil {
			panic(err)
		}
		taken <- term
	}()
	found, err := b.Find(ctx, rocl.Match(leader)) // as a client does
	fmt.Println(found.ID == first.Resource().ID(), err)

	if err := first.Close(); err != nil { // or its process is killed
		panic(err)
	}
	second := <-taken
	defer second.Close()
	fmt.Println(first.Err(), second.Err())
	fmt.Println(second.Number() > first.Number())
	// Output: true <nil> election: the term was closed <nil> true
}
