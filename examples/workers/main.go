// SPDX-License-Identifier: Apache-2.0

// Command workers shares work among whatever workers there are. Start any
// number of workers with "workers work", at any time, then "workers sum N"
// adds the squares of 1 to N on them; a worker that dies has its part done by
// another.
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
	"time"

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

// work answers each pair of bounds with the sum of the squares between.
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
		if err := me.SendBytes(ctx, m.From(), m.Tag(), binary.LittleEndian.AppendUint64(nil, total)); err != nil {
			log.Print(err)
		}
		m.Release()
	}
	return nil
}

// sum keeps each worker busy with one part at a time.
func sum(ctx context.Context, c *rocl.Context, n uint64) error {
	me, err := c.Register(ctx, rocl.Attrs{"type": "boss"})
	if err != nil {
		return err
	}
	const part = 1 << 16
	left := []uint64{} // beginnings of parts not yet begun
	for i := uint64(1); i <= n; i += part {
		left = append(left, i)
	}
	busy := map[rocl.GID]uint64{}
	var total uint64
	for len(left)+len(busy) > 0 {
		for w, err := range c.FindAll(ctx, rocl.Match{"type": "worker", "does": "squares"}) {
			if err != nil {
				return err
			}
			if _, ok := busy[w.ID]; ok || len(left) == 0 {
				continue
			}
			from := left[len(left)-1]
			b := binary.LittleEndian.AppendUint64(nil, from)
			b = binary.LittleEndian.AppendUint64(b, min(from+part, n+1))
			if err := me.SendBytes(ctx, w.ID, from, b); err != nil {
				log.Printf("worker %v: %v", w.ID, err)
				continue
			}
			left, busy[w.ID] = left[:len(left)-1], from
		}
		if len(busy) == 0 {
			return errors.New("no workers: start some with \"workers work\"")
		}
		wait, cancel := context.WithTimeout(ctx, time.Second)
		m, err := me.Recv(wait)
		cancel()
		if err == nil {
			if from, ok := busy[m.From()]; ok && from == m.Tag() && len(m.Bytes()) == 8 {
				total += binary.LittleEndian.Uint64(m.Bytes())
				delete(busy, m.From())
			}
			m.Release()
			continue
		}
		if ctx.Err() != nil {
			return err
		}
		for w, from := range busy { // who is gone has done nothing
			if _, err := c.Lookup(ctx, w); errors.Is(err, rocl.ErrNotFound) {
				delete(busy, w)
				left = append(left, from)
			}
		}
	}
	fmt.Println(total)
	return nil
}
