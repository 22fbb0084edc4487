// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"time"

	"github.com/rocl-go/rocl"
)

// A client calls one server after another, until one lives.
func ExampleIsEnd() {
	ctx := context.Background()
	n := newNode()
	defer n.close()
	c, first, second := n.open(), n.open(), n.open()
	client := register(c, "client")
	var ids []rocl.GID
	for _, c := range []*rocl.Context{first, second} {
		server := register(c, "echo")
		ids = append(ids, server.ID())
		go server.Handle(ctx, func(m *rocl.Message) { // until the context is closed
			if err := server.ReplyBytes(ctx, m, m.Bytes()); err != nil {
				log.Print(err)
			}
		})
	}
	first.Close() // or kill -9 of its process

	for i, id := range ids {
		reply, err := client.CallBytes(ctx, id, 0, []byte("hello"))
		if rocl.IsEnd(err) {
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("server %d: %s\n", i+1, reply.Bytes())
		reply.Release()
	}
	// Output: server 2: hello
}

// A server replies to each request in a goroutine of its own. A client calls the server, and gets
// an error as soon as the server has ended.
func ExampleResource_call() {
	ctx := context.Background()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	server, client := register(c, "upper"), register(c, "client")

	go func() {
		for m, err := range server.Messages(ctx) {
			if err != nil {
				log.Fatal(err)
			}
			go func() {
				defer m.Release() // without a reply, this ends the call with ErrNoReply
				if err := server.ReplyBytes(ctx, m, bytes.ToUpper(m.Bytes())); err != nil {
					log.Print(err)
				}
			}()
		}
	}()

	reply, err := client.CallBytes(ctx, server.ID(), 0, []byte("hello"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(reply.Bytes()))
	reply.Release()

	server.Close()
	_, err = client.CallBytes(ctx, server.ID(), 0, []byte("are you there?"))
	fmt.Println(rocl.IsEnd(err))
	// Output:
	// HELLO
	// true
}

// A request and its reply travel in buffers, and are not copied. The server distinguishes requests,
// whose senders wait, from other messages by IsCall.
func ExampleResource_reply() {
	ctx := context.Background()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	server, client := register(c, "echo"), register(c, "client")

	go func() {
		m, err := server.Recv(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer m.Release()
		if m.IsCall() {
			b := m.Buffer() // the payload itself, not a copy
			if err := server.Reply(ctx, m, b); err != nil {
				b.Release()
				log.Fatal(err)
			}
		}
	}()

	b, err := c.Buffer(5)
	if err != nil {
		log.Fatal(err)
	}
	copy(b.Bytes(), "hello")
	reply, err := client.Call(ctx, server.ID(), 7, b)
	if err != nil {
		b.Release() // Reply has failed, so the buffer is still ours
		log.Fatal(err)
	}
	fmt.Println(reply.From() == server.ID(), reply.Tag(), string(reply.Bytes()))
	reply.Release()
	// Output: true 7 hello
}

// One goroutine has three calls in flight. It takes the replies in the order of its calls, whatever
// the order in which they arrive.
func ExamplePending() {
	ctx := context.Background()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	server, client := register(c, "upper"), register(c, "client")
	go server.Handle(ctx, func(m *rocl.Message) { // until the context is closed
		if err := server.ReplyBytes(ctx, m, bytes.ToUpper(m.Bytes())); err != nil {
			log.Print(err)
		}
	})

	var calls []rocl.Pending
	for _, word := range []string{"one", "two", "three"} {
		b, err := c.Buffer(len(word))
		if err != nil {
			log.Fatal(err)
		}
		copy(b.Bytes(), word)
		p, err := client.StartCall(ctx, server.ID(), 0, b)
		if err != nil {
			b.Release() // StartCall has failed, so the buffer is still ours
			log.Fatal(err)
		}
		calls = append(calls, p)
	}
	for _, p := range calls {
		reply, err := p.Wait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(reply.Bytes()))
		reply.Release()
	}
	// Output:
	// ONE
	// TWO
	// THREE
}

// A client fetches a large block into its own memory. Over TCP the payload of the reply is read
// right into that memory, without a copy.
func ExampleResource_callInto() {
	ctx := context.Background()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	server, client := register(c, "blocks"), register(c, "client")

	go func() {
		for m, err := range server.Messages(ctx) {
			if err == nil {
				err = server.ReplyBytes(ctx, m, bytes.Repeat(m.Bytes(), 100_000))
			}
			if err != nil {
				log.Fatal(err)
			}
			m.Release()
		}
	}()

	block := make([]byte, 1<<20)
	reply, err := client.CallInto(ctx, server.ID(), 0, []byte("abc"), block)
	if err != nil {
		log.Fatal(err)
	}
	n := reply.Len()
	reply.Release() // the block stays ours
	fmt.Println(n, string(block[n-3:n]))
	// Output: 300000 abc
}

// A server works on a request in steps, and stops when the caller gives up the call.
func ExampleMessage_onCancel() {
	ctx := context.Background()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	server, client := register(c, "steps"), register(c, "client")
	p, err := client.StartCallBytes(ctx, server.ID(), 0, []byte("work"))
	if err != nil {
		log.Fatal(err)
	}

	m, err := server.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if m.Waited() > time.Minute {
		fmt.Println("the request is old")
	}
	work, end := context.WithCancelCause(ctx)
	stop := m.OnCancel(end)
	p.Cancel(nil) // the caller gives up the call
	for work.Err() == nil {
		c.Poll() // a step of the work; a program whose other goroutines wait need not call Poll
	}
	fmt.Println(context.Cause(work))
	stop()
	m.Release()
	// Output: context canceled
}
