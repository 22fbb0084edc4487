// SPDX-License-Identifier: Apache-2.0

// Command bandwidth sends vectors to another process, in each encoding:
//
//	go run ./examples/tpvm/bandwidth
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// The tags of messages.
const (
	data = iota // a vector
	last        // requests an answer
	end         // ends the receiving process
)

var each = flag.Int("mb", 256, "megabytes to send for each size and encoding")

func main() {
	flag.Parse()
	if err := tpvm.Run(context.Background(), run); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, t *tpvm.Task) error {
	if !t.Parent().IsZero() {
		return receive(ctx, t)
	}
	ids, err := t.Spawn(ctx, tpvm.Self, 1, tpvm.EndWithParent())
	if err != nil {
		return err
	}
	fmt.Println("   bytes  encoding       MB/s")
	for size := 1 << 10; size <= 1<<20; size *= 32 {
		for _, enc := range []pack.Encoding{pack.Default, pack.Raw, pack.InPlace} {
			rate, err := measure(ctx, t, ids[0], enc, make([]float64, size/8))
			if err != nil {
				return err
			}
			fmt.Printf("%8d  %-8v %10.0f\n", size, enc, rate)
		}
	}
	return t.Send(ctx, ids[0], end, nil)
}

// measure packs and sends v again and again, and returns megabytes per second.
func measure(ctx context.Context, t *tpvm.Task, to tpvm.TID, enc pack.Encoding, v []float64) (float64, error) {
	n := *each * 1e6 / (8 * len(v))
	b := t.Buffer(enc)
	began := time.Now()
	for range n {
		b.Reset(enc)
		if err := pack.Pack(b, v, 1); err != nil {
			return 0, err
		}
		if err := t.Send(ctx, to, data, b); err != nil {
			return 0, err
		}
	}
	if err := t.Send(ctx, to, last, nil); err != nil {
		return 0, err
	}
	_, err := t.RecvInto(ctx, to, last)
	return float64(n*8*len(v)) / 1e6 / time.Since(began).Seconds(), err
}

// receive unpacks every vector. In encodings Raw and InPlace, it reads the vector in the message.
func receive(ctx context.Context, t *tpvm.Task) error {
	for {
		m, err := t.Recv(ctx, t.Parent(), tpvm.AnyTag)
		if err != nil || m.Tag() == end {
			return err
		}
		if m.Tag() == last {
			err = t.Send(ctx, m.From(), last, nil)
		} else {
			_, err = pack.View[float64](&m.Reader, m.Len()/8)
		}
		m.Release()
		if err != nil {
			return err
		}
	}
}
