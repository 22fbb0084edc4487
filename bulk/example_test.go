// SPDX-License-Identifier: Apache-2.0

package bulk_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
)

// A client sends a message that says where its data is. The server pulls the part of the data that
// it needs.
func Example() {
	ctx := context.Background()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	client, server := open(c), open(c) // in other programs: each in a process of its own
	defer client.Close(ctx)
	defer server.Close(ctx)
	inbox, err := c.Register(ctx, rocl.Attrs{"type": "server"})
	if err != nil {
		log.Fatal(err)
	}

	// The client: memory in two places, which nothing may write.
	region, err := client.Expose(bulk.ReadOnly, bulk.Bytes([]byte("scattered ")), bulk.Bytes([]byte("memory")))
	if err != nil {
		log.Fatal(err)
	}
	if err := rocl.SendValue(ctx, inbox, inbox.ID(), 0, region.Handle()); err != nil {
		log.Fatal(err)
	}

	// The server.
	m, err := inbox.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	h, err := rocl.Value[bulk.Handle](m)
	if err != nil {
		log.Fatal(err)
	}
	m.Release()
	p := make([]byte, 9)
	if _, err := server.Pull(ctx, h, 5, p); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q of %d bytes\n", p, h.Len())

	// The client has its memory back.
	if err := region.Revoke(ctx); err != nil {
		log.Fatal(err)
	}
	_, err = server.Pull(ctx, h, 0, p)
	fmt.Println(err != nil)
	// Output:
	// "ered memo" of 16 bytes
	// true
}

// The pieces of large memory come in order, while the next ones are on their way.
func ExamplePipeline() {
	ctx := context.Background()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ep := open(c)
	defer ep.Close(ctx)
	region, err := ep.Expose(bulk.ReadOnly, bulk.Bytes(make([]byte, 10_000_000)))
	if err != nil {
		log.Fatal(err)
	}
	for p, err := range bulk.Pipeline(ctx, ep, region.Handle(), bulk.PieceSize(4<<20), bulk.Depth(2)) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(p.Off, len(p.Bytes()))
	}
	// Output:
	// 0 4194304
	// 4194304 4194304
	// 8388608 1611392
}

func open(c *rocl.Context) *bulk.Endpoint {
	ep, err := bulk.Open(context.Background(), c)
	if err != nil {
		log.Fatal(err)
	}
	return ep
}
