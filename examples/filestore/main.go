// SPDX-License-Identifier: Apache-2.0

// Command filestore keeps files on servers, by calls of package rpc and transfers of package bulk.
// "filestore serve DIR" serves the files of a folder. Start it any number of times, on any node,
// each with its own folder. Then
//
//	filestore put FILE...     stores files, each on one server
//	filestore get NAME [FILE] fetches a file
//	filestore list            lists the files
//
// Only servers move data: they pull the bytes of a put from the memory of the client, and push the
// bytes of a get into it. If a put was interrupted, or its server was killed, the same command goes
// on where the put ended; so does a get.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"

	"github.com/rocl-go/rocl"
)

func main() {
	window := flag.Int64("window", 32<<20, "bytes of a file that are in memory at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	err = run(ctx, c, *window, flag.Args())
	if e := c.Close(); err == nil {
		err = e
	}
	if err != nil {
		log.Fatal(err)
	}
}

var errUsage = errors.New("usage: filestore serve DIR | put FILE... | get NAME [FILE] | list")

func run(ctx context.Context, c *rocl.Context, window int64, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	verb, args := args[0], args[1:]
	if verb == "serve" && len(args) == 1 {
		return serve(ctx, c, args[0])
	}
	cl, err := newClient(ctx, c, window)
	if err != nil {
		return err
	}
	defer cl.close()
	switch {
	case verb == "put" && len(args) > 0:
		for _, name := range args {
			if err := cl.put(ctx, name); err != nil {
				return err
			}
		}
		return nil
	case verb == "get" && len(args) == 1:
		return cl.get(ctx, args[0], args[0])
	case verb == "get" && len(args) == 2:
		return cl.get(ctx, args[0], args[1])
	case verb == "list" && len(args) == 0:
		return cl.list(ctx)
	}
	return errUsage
}
