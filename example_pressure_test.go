// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/rocl-go/rocl"
)

// Send returns when a message is accepted. Flush returns when all messages are delivered, and says
// how many were not. A program calls Flush before os.Exit.
func ExampleResource_flush() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me, you := register(node.open(), "me"), register(node.open(), "you")
	for range 100 {
		if err := me.SendBytes(ctx, you.ID(), 0, []byte("hello")); err != nil {
			log.Fatal(err)
		}
	}
	err := me.Flush(ctx)
	var lost *rocl.FlushError
	switch {
	case err == nil:
		fmt.Println("all are delivered")
	case errors.As(err, &lost):
		fmt.Println(lost.Undelivered, "are not")
	default:
		log.Fatal(err)
	}
	// Output: all are delivered
}

// A program that is about to end waits for the messages of all its resources.
func ExampleContext_flush() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me, you := register(c, "me"), register(node.open(), "you")
	if err := me.SendBytes(ctx, you.ID(), 0, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Flush(ctx))
	n, _ := you.Waiting()
	fmt.Println(n, "message is in the mailbox")
	// Output:
	// <nil>
	// 1 message is in the mailbox
}

// A resource is deleted with messages unread. The sender's Flush counts them.
func ExampleFlushError() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me, you := register(node.open(), "me"), register(node.open(), "you")
	for range 3 {
		if err := me.SendBytes(ctx, you.ID(), 0, []byte("hello")); err != nil {
			log.Fatal(err)
		}
	}
	if err := you.Close(); err != nil {
		log.Fatal(err)
	}
	var lost *rocl.FlushError
	if errors.As(me.Flush(ctx), &lost) {
		fmt.Println(lost.Undelivered, "messages, gone:", errors.Is(lost, rocl.ErrGone))
	}
	// Output: 3 messages, gone: true
}

// A sender that must not wait drops the messages for which the receiver has no room.
func ExampleResource_trySend() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me := register(c, "me")
	you, err := node.open().Register(ctx, rocl.Attrs{"name": "you"}, rocl.MailboxLimit(100_000))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Find(ctx, rocl.Match{"name": "you"}); err != nil {
		log.Fatal(err)
	}
	try := func() error {
		b, err := c.Buffer(40_000)
		if err != nil {
			log.Fatal(err)
		}
		if err = me.TrySend(you.ID(), 0, b); err != nil {
			b.Release() // or keep it, and try again later
		}
		return err
	}
	// The first call may fail because the directory has to be asked.
	for errors.Is(try(), rocl.ErrFull) {
		time.Sleep(time.Millisecond) // a program has something else to do meanwhile
	}
	fmt.Println(try(), try())

	m, err := you.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	m.Release()
	fmt.Println("room again:", try() == nil)
	// Output:
	// <nil> rocl: the mailbox has no room now
	// room again: true
}

// A stage of a pipeline keeps few messages waiting, so that a fast sender is slowed to its pace.
func ExampleMailboxMessages() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me := register(c, "me")
	stage, err := node.open().Register(ctx, rocl.Attrs{"name": "stage"}, rocl.MailboxMessages(10))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Find(ctx, rocl.Match{"name": "stage"}); err != nil { // the sends need not ask the directory then
		log.Fatal(err)
	}
	sent := 0
	for {
		soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		err := me.SendBytes(soon, stage.ID(), 0, []byte("a part"))
		cancel()
		if err != nil {
			break
		}
		sent++
	}
	waiting, _ := stage.Waiting()
	fmt.Println(sent, "are sent and", waiting, "wait")
	// Output: 10 are sent and 10 wait
}

// A receive that waits behind messages it does not select fails when the mailbox is full of them.
// No message is lost: after some of them are received, the receive succeeds.
func ExampleWithGiveUp_stuck() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")
	you, err := node.open(rocl.WithGiveUp(100*time.Millisecond)).Register(ctx, rocl.Attrs{"name": "you"}, rocl.MailboxMessages(10))
	if err != nil {
		log.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		var err error
		for range 25 {
			err = errors.Join(err, me.SendBytes(ctx, you.ID(), 1, []byte("data")))
		}
		sent <- errors.Join(err, me.SendBytes(ctx, you.ID(), 2, []byte("the end")))
	}()
	for {
		m, err := you.Recv(ctx, rocl.Tag(2))
		if errors.Is(err, rocl.ErrStuck) {
			fmt.Println("stuck: receiving what is there")
			for range 20 {
				if m, err = you.Recv(ctx, rocl.Tag(1)); err != nil {
					log.Fatal(err)
				}
				m.Release()
			}
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", m.Bytes())
		m.Release()
		break
	}
	if err := <-sent; err != nil {
		log.Fatal(err)
	}
	// Output:
	// stuck: receiving what is there
	// the end
}

// A sender retains a buffer, and writes to it again when the library has finished with it.
func ExampleBuffer_wait() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me, you := register(c, "me"), register(node.open(), "you")
	b, err := c.Buffer(8)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Release()
	for i := range 3 {
		copy(b.Bytes(), fmt.Sprintf("message%d", i))
		if err := me.Send(ctx, you.ID(), 0, b.Retain()); err != nil {
			log.Fatal(err) // the reference of Retain is still ours, too
		}
		m, err := you.Recv(ctx) // within a process the receiver reads the sender's memory
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", m.Bytes())
		m.Release()
		if err := b.Wait(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// message0
	// message1
	// message2
}

// The library sends memory of the program from where it lies. The program may change the memory
// when the library has given it back.
func ExampleContext_lend() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me, you := register(c, "me"), register(node.open(), "you")
	table, returned := []byte("a large table"), make(chan struct{})
	b := c.Lend(table, func() { close(returned) })
	if err := me.Send(ctx, you.ID(), 0, b); err != nil {
		b.Release()
		log.Fatal(err)
	}
	m, err := you.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", m.Bytes())
	m.Release()
	<-returned
	table[0] = 'A'
	// Output: a large table
}

// A worker tells a dispatcher that it is free. If the dispatcher has ended, nothing is lost: the
// worker's Flush does not count the message.
func ExampleResource_sendAndForget() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	worker, dispatcher := register(node.open(), "worker"), register(node.open(), "dispatcher")
	if err := worker.SendAndForget(ctx, dispatcher.ID(), 0, []byte("free")); err != nil {
		log.Fatal(err)
	}
	if err := dispatcher.Close(); err != nil { // with the message unread
		log.Fatal(err)
	}
	fmt.Println(worker.Flush(ctx))
	// Output: <nil>
}
