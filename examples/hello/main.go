// SPDX-License-Identifier: Apache-2.0

// Command hello finds itself by its attributes and sends itself a message.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/rocl-go/rocl"
)

func main() {
	ctx := context.Background()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close() // further errors are left out here; example_test.go has them
	pid := fmt.Sprint(os.Getpid())
	me, _ := c.Register(ctx, rocl.Attrs{"type": "greeter", "pid": pid})
	peer, _ := c.Find(ctx, rocl.Match{"type": "greeter", "pid": pid}) // any other process finds it likewise
	_ = me.SendBytes(ctx, peer.ID, 7, []byte("hello"))
	m, _ := me.Recv(ctx, rocl.Tag(7))
	fmt.Printf("%s from %v\n", m.Bytes(), m.From())
	m.Release()
}
