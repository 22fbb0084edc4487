// SPDX-License-Identifier: Apache-2.0

// Command farm shares work among processes, any of which may be killed. Start any number of workers
// with "farm work", at any time and on any node. Then "farm sum N" adds the squares of 1 to N on
// them. The farm monitors its workers: as soon as one has ended, another worker does its part.
package main

import (
	"context"
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
	part          // to a worker: the bounds of a part
	result        // from a worker: a sum
	ended         // from a monitor: a worker has ended
)

type bounds struct{ From, To uint64 }

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

// work sends a greeting to each farm that appears, and answers each part with its sum.
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
	return me.Handle(ctx, func(m *rocl.Message) {
		p, err := rocl.Value[bounds](m)
		var total uint64
		for i := p.From; i < p.To; i++ {
			total += i * i
		}
		if err == nil {
			err = rocl.SendValue(ctx, me, m.From(), result, total)
		}
		if err != nil {
			log.Print(err)
		}
	})
}

// sum gives each worker one part at a time, and prints the sum.
func sum(ctx context.Context, c *rocl.Context, n uint64) error {
	me, err := c.Register(ctx, rocl.Attrs{"type": "farm"})
	if err != nil {
		return err
	}
	const size = 1 << 16
	var left []bounds // parts that no worker has
	for i := uint64(1); i <= n; i += size {
		left = append(left, bounds{i, min(i+size, n+1)})
	}
	workers := map[rocl.GID]bounds{} // and their parts; zero bounds mean that a worker has none
	var total uint64
	for todo := len(left); todo > 0; {
		m, err := me.Recv(ctx)
		if err != nil {
			return err
		}
		switch worker := m.From(); m.Tag() {
		case hello:
			workers[worker] = bounds{}
			_, err = me.Monitor(ctx, worker, ended)
		case result:
			var r uint64
			r, err = rocl.Value[uint64](m)
			total, todo, workers[worker] = total+r, todo-1, bounds{}
		case ended: // behind the worker's last result
			if p := workers[worker]; p != (bounds{}) {
				left = append(left, p)
			}
			delete(workers, worker)
		}
		m.Release()
		if err != nil {
			return err
		}
		for worker, p := range workers {
			if last := len(left) - 1; last >= 0 && p == (bounds{}) {
				if err := rocl.SendValue(ctx, me, worker, part, left[last]); err != nil {
					log.Print(err) // the monitor will report its end
					continue
				}
				workers[worker], left = left[last], left[:last]
			}
		}
	}
	fmt.Println(total)
	return nil
}
