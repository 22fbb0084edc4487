// SPDX-License-Identifier: Apache-2.0

// Command timing measures round trips between two processes, and the share of packing in them, for
// messages of several sizes:
//
//	go run ./examples/tpvm/timing
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
	ping = iota // sent back by the receiver
	end         // ends the process that sends back
)

var trips = flag.Int("trips", 1000, "round trips for each size")

func main() {
	flag.Parse()
	if err := tpvm.Run(context.Background(), run); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, t *tpvm.Task) error {
	if !t.Parent().IsZero() {
		return sendBack(ctx, t)
	}
	ids, err := t.Spawn(ctx, tpvm.Self, 1, tpvm.EndWithParent())
	if err != nil {
		return err
	}
	fmt.Println("   bytes   round trip         pack")
	for size := 8; size <= 1<<20; size *= 8 {
		v := make([]float64, size/8)
		b := t.Buffer(pack.Raw)
		var packing time.Duration
		began := time.Now()
		for range *trips {
			begin := time.Now()
			b.Reset(pack.Raw)
			if err := pack.Pack(b, v, 1); err != nil {
				return err
			}
			packing += time.Since(begin)
			if err := t.Send(ctx, ids[0], ping, b); err != nil {
				return err
			}
			if _, err := t.RecvInto(ctx, ids[0], ping, v); err != nil {
				return err
			}
		}
		all := time.Since(began)
		fmt.Printf("%8d %12v %12v\n", size, all/time.Duration(*trips), packing/time.Duration(*trips))
	}
	return t.Send(ctx, ids[0], end, nil)
}

func sendBack(ctx context.Context, t *tpvm.Task) error {
	for {
		m, err := t.Recv(ctx, t.Parent(), tpvm.AnyTag)
		if err != nil || m.Tag() == end {
			return err
		}
		b := t.Buffer(m.Encoding())
		if err = b.PackMessageBody(&m.Reader); err == nil {
			err = t.Send(ctx, m.From(), ping, b)
		}
		m.Release()
		if err != nil {
			return err
		}
	}
}
