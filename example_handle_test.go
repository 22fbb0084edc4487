// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"github.com/rocl-go/rocl"
)

// handled runs a server with these options, sends it one message of each tag, prints the answers,
// and ends the server.
func handled(f func(*rocl.Resource, *rocl.Message), tags []uint64, opts ...rocl.HandleOption) {
	n := newNode()
	defer n.close()
	server, client := register(n.open(), "server"), register(n.open(), "client")
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- server.Handle(ctx, func(m *rocl.Message) { f(server, m) }, opts...)
	}()
	for _, tag := range tags {
		if err := client.SendBytes(ctx, server.ID(), tag, []byte("louder")); err != nil {
			log.Fatal(err)
		}
		m, err := client.Recv(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d: %s\n", m.Tag(), m.Bytes())
		m.Release()
	}
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}

func shout(server *rocl.Resource, m *rocl.Message) {
	if err := server.SendBytes(context.Background(), m.From(), m.Tag(), bytes.ToUpper(m.Bytes())); err != nil {
		log.Print(err)
	}
}

// A server handles up to two messages at the same time. Without the option it answers one after
// another, which is faster if each answer takes little time.
func ExampleHandleOption() {
	atOnce := rocl.Workers(2)
	handled(shout, []uint64{1}, atOnce)
	// Output: 1: LOUDER
}

// A server handles up to four messages at the same time.
func ExampleWorkers() {
	handled(shout, []uint64{1, 2}, rocl.Workers(4))
	// Output:
	// 1: LOUDER
	// 2: LOUDER
}

// A server handles each message in a goroutine of its own, as package net/http does with requests.
func ExampleEachInOwn() {
	handled(shout, []uint64{1, 2}, rocl.EachInOwn())
	// Output:
	// 1: LOUDER
	// 2: LOUDER
}

// The function handles messages with tag 7. Other messages stay in the mailbox, for another Handle
// or Recv.
func ExampleHandling() {
	handled(shout, []uint64{7}, rocl.Handling(rocl.Tag(7)))
	// Output:
	// 7: LOUDER
}

// The server learns of a panic in its function, and answers the client.
func ExampleOnPanic() {
	var server *rocl.Resource
	divide := func(r *rocl.Resource, m *rocl.Message) {
		server = r
		fmt.Println(len(m.Bytes()) / int(m.Tag()))
		shout(r, m)
	}
	handled(divide, []uint64{0, 2}, rocl.OnPanic(func(m *rocl.Message, value any) {
		if err := server.SendBytes(context.Background(), m.From(), m.Tag(), fmt.Append(nil, value)); err != nil {
			log.Print(err)
		}
	}))
	// Output:
	// 0: runtime error: integer divide by zero
	// 3
	// 2: LOUDER
}
