// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
)

// A buffer is written to, and a message read from, by whatever writes and reads.
func ExampleBuffer_write() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	c := node.open()
	me := register(c, "me")

	b, err := c.BufferWait(ctx, 1000)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(b).Encode(map[string]int{"answer": 42}); err != nil {
		b.Release()
		log.Fatal(err)
	}
	if err := me.Send(ctx, me.ID(), 0, b); err != nil { // what was written, not 1000 bytes
		b.Release()
		log.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	var v map[string]int
	if err := json.NewDecoder(m).Decode(&v); err != nil {
		log.Fatal(err)
	}
	fmt.Println(v["answer"], m.Len())
	// Output: 42 14
}

// What Read has not read, WriteTo writes.
func ExampleMessage_reader() {
	ctx := context.Background()
	node := newNode()
	defer node.close()
	me := register(node.open(), "me")
	if err := me.SendBytes(ctx, me.ID(), 0, []byte("HEADpayload\n")); err != nil {
		log.Fatal(err)
	}
	m, err := me.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	head := make([]byte, 4)
	if _, err := m.Read(head); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: ", head)
	if _, err := m.WriteTo(os.Stdout); err != nil {
		log.Fatal(err)
	}
	// Output: HEAD: payload
}
