// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/rocl-go/rocl"
)

// A receive takes a message that matches one of several conditions.
func ExampleAny() {
	const request, reply, stop = 1, 2, 3
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	a, b, me := register(c, "a"), register(c, "b"), register(c, "me")
	_ = a.SendBytes(ctx, me.ID(), request, []byte("request of a"))
	_ = a.SendBytes(ctx, me.ID(), reply, []byte("reply of a"))
	_ = b.SendBytes(ctx, me.ID(), reply, []byte("reply of b"))

	awaited := rocl.Any(rocl.All(rocl.From(b.ID()), rocl.Tag(reply)), rocl.Tag(stop))
	m, err := me.Recv(ctx, awaited)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", m.Bytes())
	m.Release()

	_, err = me.Recv(ctx, rocl.Tag(request), rocl.Tag(reply)) // no message has both tags
	fmt.Println(errors.Is(err, rocl.ErrSelect))
	// Output:
	// reply of b
	// true
}

// Ranges of tags separate messages: tags below 100 are control, the others are data.
func ExampleTags() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")
	for _, tag := range []uint64{100, 7, 2000} {
		_ = me.SendBytes(ctx, me.ID(), tag, nil)
	}
	m, err := me.Recv(ctx, rocl.Tags(0, 99))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Tag())
	m.Release()
	// Output: 7
}

// The upper 32 bits of a tag name a job, and the lower 32 bits a part of the job.
func ExampleTagMask() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")
	for _, tag := range []uint64{1<<32 | 5, 2<<32 | 8} {
		_ = me.SendBytes(ctx, me.ID(), tag, nil)
	}
	m, err := me.Recv(ctx, rocl.TagMask(0xffffffff<<32, 2<<32))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Tag() & 0xffffffff)
	m.Release()
	// Output: 8
}

// All makes a conjunction within the alternatives of Any.
func ExampleAll() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	a, b, me := register(c, "a"), register(c, "b"), register(c, "me")
	for tag := range uint64(3) {
		_ = a.SendBytes(ctx, me.ID(), tag, []byte("a"))
		_ = b.SendBytes(ctx, me.ID(), tag, []byte("b"))
	}
	sel := rocl.Any(rocl.All(rocl.From(a.ID()), rocl.Tag(2)), rocl.All(rocl.From(b.ID()), rocl.Tag(1)))
	for m, err := me.TryRecv(sel); err == nil; m, err = me.TryRecv(sel) {
		fmt.Printf("%s %d\n", m.Bytes(), m.Tag())
		m.Release()
	}
	// Output:
	// b 1
	// a 2
}

// Peek tells the length of the next message before it is received.
func ExampleEnvelope() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")
	_ = me.SendBytes(ctx, me.ID(), 4, []byte("hello"))
	for range 2 { // Peek leaves the message in the mailbox
		e, err := me.Peek(rocl.Tag(4))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.From == me.ID(), e.Tag, e.Len)
	}
	_, err := me.Peek(rocl.Tag(5))
	fmt.Println(errors.Is(err, rocl.ErrEmpty))
	// Output:
	// true 4 5
	// true 4 5
	// true
}

// A receiver that cannot handle a message yet puts it back.
func ExampleResource_putBack() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")
	_ = me.SendBytes(ctx, me.ID(), 1, []byte("first"))
	_ = me.SendBytes(ctx, me.ID(), 2, []byte("second"))
	m, err := me.Recv(ctx)
	if err == nil {
		err = me.PutBack(m) // from here on the library owns m
	}
	for range 2 {
		if m, err = me.Recv(ctx); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", m.Bytes())
		m.Release()
	}
	// Output:
	// first
	// second
}

// A goroutine serves two resources: one for requests, and one for orders of an operator.
func ExampleRecvAny() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	requests, orders := register(c, "requests"), register(c, "orders")
	_ = orders.SendBytes(ctx, orders.ID(), 0, []byte("stop"))
	r, m, err := rocl.RecvAny(ctx, []*rocl.Resource{requests, orders})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v: %s\n", r == orders, m.Bytes())
	m.Release()
	// Output: true: stop
}
