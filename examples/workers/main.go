// SPDX-License-Identifier: Apache-2.0

// Command workers shares work among the workers that can be found. Start any number of workers with
// "workers work", at any time. Then "workers sum N" adds the squares of 1 to N on them. If a worker
// dies, another one does its part.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"

	"github.com/rocl-go/rocl"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	switch {
	case len(os.Args) == 2 && os.Args[1] == "work":
		err = work(ctx, c)
	case len(os.Args) == 3 && os.Args[1] == "sum":
		var n uint64
		if n, err = strconv.ParseUint(os.Args[2], 10, 32); err == nil {
			err = sum(ctx, c, n)
		}
	default:
		err = errors.New("usage: workers work | workers sum N")
	}
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// work replies to each pair of bounds with the sum of the squares between them.
func work(ctx context.Context, c *rocl.Context) error {
	me, err := c.Register(ctx, rocl.Attrs{"type": "worker", "does": "squares"})
	if err != nil {
		return err
	}
	for m, err := range me.Messages(ctx) {
		if err != nil {
			return err
		}
		var total uint64
		if b := m.Bytes(); len(b) == 16 {
			for i := binary.LittleEndian.Uint64(b); i < binary.LittleEndian.Uint64(b[8:]); i++ {
				total += i * i
			}
		}
		if err := me.ReplyBytes(ctx, m, binary.LittleEndian.AppendUint64(nil, total)); err != nil {
			log.Print(err)
		}
		m.Release()
	}
	return nil
}

const part = 1 << 16 // numbers in one part

// sum makes each worker do one part at a time, and prints the sum.
func sum(ctx context.Context, c *rocl.Context, n uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	me, err := c.Register(ctx, rocl.Attrs{"type": "boss"})
	if err != nil {
		return err
	}
	parts := n/part + 1
	left := make(chan uint64, parts) // beginnings of parts that no worker has
	for i := range parts {
		left <- 1 + i*part
	}
	sums, gone := make(chan uint64), make(chan error)
	known, alive := map[rocl.GID]bool{}, 0
	var total uint64
	for done := uint64(0); done < parts; {
		for w, err := range c.FindAll(ctx, rocl.Match{"type": "worker", "does": "squares"}) {
			if err != nil {
				return err
			}
			if known[w.ID] {
				continue
			}
			known[w.ID] = true
			alive++
			go func() {
				err := employ(ctx, me, w.ID, n, left, sums)
				select {
				case gone <- err:
				case <-ctx.Done():
				}
			}()
		}
		if alive == 0 {
			return errors.New("no workers: start some with \"workers work\"")
		}
		select {
		case s := <-sums:
			total += s
			done++
		case err := <-gone:
			alive--
			log.Print(err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	fmt.Println(total)
	return nil
}

// employ calls one worker with one part after another. If a call fails, because the worker has
// died, another worker gets the part.
func employ(ctx context.Context, me *rocl.Resource, worker rocl.GID, n uint64, left chan uint64, sums chan<- uint64) error {
	for {
		select {
		case from := <-left:
			b := binary.LittleEndian.AppendUint64(nil, from)
			b = binary.LittleEndian.AppendUint64(b, min(from+part, n+1))
			m, err := me.CallBytes(ctx, worker, 0, b)
			if err != nil {
				left <- from
				return err
			}
			s := binary.LittleEndian.Uint64(m.Bytes())
			m.Release()
			select {
			case sums <- s:
			case <-ctx.Done():
				return ctx.Err()
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
