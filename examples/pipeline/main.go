// SPDX-License-Identifier: Apache-2.0

// Command pipeline makes other processes turn the lines of its input into capitals, and prints them
// in the order of the input. Start some workers with "pipeline work PAUSE" on any nodes, each with
// its own pause such as 2ms. Then "pipeline run N <FILE" passes the lines through N of them.
// Mailboxes are bounded: a slow reader of the output, or a slow worker, stops the reading of the
// input, and the lines on their way take little memory. A worker that is killed ends the run.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/rocl-go/rocl"
)

const depth = 4 // messages that wait in the mailbox of a worker

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	err = errors.New("usage: pipeline work PAUSE | pipeline run N")
	if len(os.Args) == 3 {
		if pause, perr := time.ParseDuration(os.Args[2]); os.Args[1] == "work" && perr == nil {
			err = work(ctx, c, pause)
		} else if n, nerr := strconv.Atoi(os.Args[2]); os.Args[1] == "run" && nerr == nil {
			err = run(ctx, c, n, os.Stdin, os.Stdout)
		}
	}
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// work sends each message back in capitals, with its number.
func work(ctx context.Context, c *rocl.Context, pause time.Duration) error {
	me, err := c.Register(ctx, rocl.Attrs{"type": "capitals"}, rocl.MailboxMessages(depth))
	if err != nil {
		return err
	}
	return me.Handle(ctx, func(m *rocl.Message) {
		time.Sleep(pause)
		if err := me.SendBytes(ctx, m.From(), m.Tag(), bytes.ToUpper(m.Bytes())); err != nil {
			log.Print(err)
		}
	})
}

// run passes lines from in through n workers to out. The mailbox of the sink has room for all
// results.
func run(ctx context.Context, c *rocl.Context, n int, in io.Reader, out io.Writer) error {
	workers, err := c.Await(ctx, rocl.Match{"type": "capitals"}, n)
	if err != nil {
		return err
	}
	me, err := c.Register(ctx, nil, rocl.MailboxMessages(n*(depth+2)))
	if err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	go func() { // the source: line i goes to worker i%n; an empty message, which no line is, is the end
		lines := bufio.NewReader(in)
		for i, size := 0, 1; size > 0 && ctx.Err() == nil; i++ {
			line, err := lines.ReadBytes('\n')
			if size = len(line); err == nil || err == io.EOF {
				err = me.SendBytes(ctx, workers[i%n].ID, uint64(i), line)
			}
			if err != nil {
				fail(err)
			}
		}
	}()
	for i := 0; ; i++ { // the sink: result i comes from worker i%n, in any order
		m, err := me.Recv(ctx, rocl.From(workers[i%n].ID), rocl.Tag(uint64(i)))
		if err != nil {
			return err
		}
		size, err := m.WriteTo(out)
		m.Release()
		if err != nil || size == 0 {
			return err
		}
	}
}
