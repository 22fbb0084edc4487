// SPDX-License-Identifier: Apache-2.0

// Command pingpong sends a message to and fro between two contexts that know only an attribute of
// each other. Start it in one shell, then again in another.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
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
	pong, err := c.Find(ctx, rocl.Match{"game": "pong"})
	switch {
	case errors.Is(err, rocl.ErrNotFound):
		err = serve(ctx, c)
	case err == nil:
		err = play(ctx, c, pong.ID)
	}
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// serve sends every message back to its sender, in the memory in which it came.
func serve(ctx context.Context, c *rocl.Context) error {
	me, err := c.Register(ctx, rocl.Attrs{"game": "pong"})
	if err != nil {
		return err
	}
	fmt.Println("waiting for ping; start me again in another shell")
	for m, err := range me.Messages(ctx) {
		if err != nil {
			return err
		}
		b := m.Buffer()
		err = me.Send(ctx, m.From(), m.Tag(), b)
		m.Release()
		if err != nil {
			b.Release()
			log.Print(err) // the player has ended: wait for another one
		}
	}
	return nil
}

func play(ctx context.Context, c *rocl.Context, pong rocl.GID) error {
	me, err := c.Register(ctx, rocl.Attrs{"game": "ping"})
	if err != nil {
		return err
	}
	const rounds = 10_000
	start := time.Now()
	for i := range uint64(rounds) {
		if err := me.SendBytes(ctx, pong, i, []byte("ball")); err != nil {
			return err
		}
		m, err := me.Recv(ctx, rocl.From(pong), rocl.Tag(i))
		if err != nil {
			return err
		}
		m.Release()
	}
	fmt.Printf("%d round trips, %v each\n", rounds, time.Since(start)/rounds)
	return nil
}
