// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rocl-go/rocl"
)

// A boss waits for the result of a worker, or for its end, whichever comes first.
func ExampleResource_monitor() {
	ctx := context.Background()
	n := newNode()
	defer n.close()
	here, there := n.open(), n.open()
	boss, worker := register(here, "boss"), register(there, "worker")

	const result, ended = 1, 2
	stop, err := boss.Monitor(ctx, worker.ID(), ended)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()

	if err := worker.SendBytes(ctx, boss.ID(), result, []byte("42")); err != nil {
		log.Fatal(err)
	}
	there.Close() // or kill -9 of its process

	for m, err := range boss.Messages(ctx, rocl.From(worker.ID())) {
		if err != nil {
			log.Fatal(err)
		}
		gone := m.IsGone()
		fmt.Printf("tag %d: %q, gone: %v\n", m.Tag(), m.Bytes(), rocl.IsEnd(m.GoneErr()))
		m.Release()
		if gone {
			break
		}
	}
	// Output:
	// tag 1: "42", gone: false
	// tag 2: "", gone: true
}

// A program watches resources whose identifiers it knows, over one connection.
func ExampleContext_watchIDs() {
	ctx := context.Background()
	n := newNode()
	defer n.close()
	here, there := n.open(), n.open()
	a, b := register(there, "a"), register(there, "b")
	register(there, "another")

	for ev, err := range here.WatchIDs(ctx, a.ID(), b.ID()) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(ev.Kind)
		if ev.Kind == rocl.Synced {
			there.Close()
		}
		if ev.Kind == rocl.Gone {
			break
		}
	}
	// Output:
	// appeared
	// appeared
	// synced
	// gone
}
