// SPDX-License-Identifier: Apache-2.0

// Command farm shares work among processes, any of which may be killed. Start any number of
// workers with "farm work", at any time and on any node, then "farm sum N" adds the squares of
// 1 to N on them. The farm monitors its workers: another worker does the part of one that is
// gone, as soon as it is.
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

// Tags of messages.
const (
	hello  = iota // from a worker that wants work
	part          // to a worker: two bounds
	result        // from a worker: a sum
	ended         // of monitors
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
		err = errors.New("usage: farm work | farm sum N")
	}
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// work greets each farm that there is, and answers each part with its sum.
func work(ctx context.Context, c *rocl.Context) error {
	me, err := c.Register(ctx, rocl.Attrs{"type": "worker"})
	if err != nil {
		return err
	}
	go func() {
		for ev, err := range c.Watch(ctx, rocl.Match{"type": "farm"}) {
			if err == nil && ev.Kind == rocl.Appeared {
				err = me.SendBytes(ctx, ev.ID, hello, nil)
			}
			if err != nil && ctx.Err() == nil {
				log.Print(err)
			}
		}
	}()
	for m, err := range me.Messages(ctx) {
		if err != nil {
			return err
		}
		var total uint64
		for i := binary.LittleEndian.Uint64(m.Bytes()); i < binary.LittleEndian.Uint64(m.Bytes()[8:]); i++ {
			total += i * i
		}
		if err := me.SendBytes(ctx, m.From(), result, binary.LittleEndian.AppendUint64(nil, total)); err != nil {
			log.Print(err)
		}
		m.Release()
	}
	return nil
}

// sum keeps each worker busy with one part at a time.
func sum(ctx context.Context, c *rocl.Context, n uint64) error {
	me, err := c.Register(ctx, rocl.Attrs{"type": "farm"})
	if err != nil {
		return err
	}
	const size = 1 << 16
	var left []uint64 // beginnings of parts that are not done by anybody
	for i := uint64(1); i <= n; i += size {
		left = append(left, i)
	}
	idle, busy := map[rocl.GID]bool{}, map[rocl.GID]uint64{} // workers
	var total uint64
	for len(left)+len(busy) > 0 {
		m, err := me.Recv(ctx)
		if err != nil {
			return err
		}
		worker := m.From()
		switch m.Tag() {
		case hello:
			if _, err = me.Monitor(ctx, worker, ended); err != nil {
				return err
			}
			idle[worker] = true
		case result:
			total += binary.LittleEndian.Uint64(m.Bytes())
			delete(busy, worker)
			idle[worker] = true
		case ended: // behind the worker's last result
			if from, ok := busy[worker]; ok {
				left = append(left, from)
			}
			delete(busy, worker)
			delete(idle, worker)
		}
		m.Release()
		for worker := range idle {
			if len(left) == 0 {
				break
			}
			from := left[len(left)-1]
			b := binary.LittleEndian.AppendUint64(nil, from)
			b = binary.LittleEndian.AppendUint64(b, min(from+size, n+1))
			if err := me.SendBytes(ctx, worker, part, b); err != nil { // its end will be told
				log.Print(err)
			} else {
				left, busy[worker] = left[:len(left)-1], from
			}
			delete(idle, worker)
		}
	}
	fmt.Println(total)
	return nil
}
