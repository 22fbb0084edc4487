// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rocl-go/rocl"
)

// A program posts memory for two blocks before it asks for them. Over TCP the blocks are read right
// into that memory, without a copy.
func ExamplePosted() {
	ctx := context.Background()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	source, client := register(c, "blocks"), register(c, "client")

	file := make([]byte, 2<<20)
	const size = 1 << 20
	var blocks []*rocl.Posted
	for i := range uint64(2) {
		p, err := client.Post(ctx, source.ID(), i, file[i*size:(i+1)*size])
		if err != nil {
			log.Fatal(err)
		}
		blocks = append(blocks, p)
	}

	for i := range uint64(2) {
		block := make([]byte, size)
		copy(block, fmt.Sprint("block ", i))
		if err := source.SendBytes(ctx, client.ID(), i, block); err != nil {
			log.Fatal(err)
		}
	}

	for _, p := range blocks {
		m, err := p.Wait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		m.Release()
	}
	fmt.Printf("%s, %s\n", file[:7], file[size:size+7])
	// Output: block 0, block 1
}
