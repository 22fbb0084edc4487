// SPDX-License-Identifier: Apache-2.0

// Command request is a server that replies to each request in a goroutine of its own, and its
// client. Start "request serve" any number of times, on any node. Then "request ask WORDS" gets
// each word in capitals from one of the servers, for all words at once. If a server is killed
// meanwhile, the client asks another one.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"

	"github.com/rocl-go/rocl"
)

var service = rocl.Attrs{"service": "capitals"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		err = serve(ctx, c)
	case len(os.Args) > 2 && os.Args[1] == "ask":
		err = askAll(ctx, c, os.Args[2:])
	default:
		err = errors.New("usage: request serve | request ask WORDS")
	}
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// serve replies to each request in a goroutine of its own.
func serve(ctx context.Context, c *rocl.Context) error {
	me, err := c.Register(ctx, service)
	if err != nil {
		return err
	}
	return me.Handle(ctx, func(m *rocl.Message) {
		if err := me.ReplyBytes(ctx, m, bytes.ToUpper(m.Bytes())); err != nil {
			log.Print(err)
		}
	}, rocl.EachInOwn())
}

// askAll prints the replies for all words, in order.
func askAll(ctx context.Context, c *rocl.Context, words []string) error {
	me, err := c.Register(ctx, nil)
	if err != nil {
		return err
	}
	replies, errs := make([]string, len(words)), make([]error, len(words))
	var wg sync.WaitGroup
	for i, word := range words {
		wg.Go(func() { replies[i], errs[i] = ask(ctx, c, me, word) })
	}
	wg.Wait()
	for _, reply := range replies {
		fmt.Println(reply)
	}
	return errors.Join(errs...)
}

// ask returns a server's reply. If the server has ended, ask asks another one.
func ask(ctx context.Context, c *rocl.Context, me *rocl.Resource, word string) (string, error) {
	for {
		server, err := c.Find(ctx, service)
		if err != nil {
			return "", err
		}
		reply, err := me.CallBytes(ctx, server.ID, 0, []byte(word))
		if errors.Is(err, rocl.ErrGone) {
			continue
		}
		if err != nil {
			return "", err
		}
		defer reply.Release()
		return string(reply.Bytes()), nil
	}
}
