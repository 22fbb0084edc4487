// SPDX-License-Identifier: Apache-2.0

// Command filestore keeps files on servers, by calls of package rpc and transfers of package bulk.
// "filestore serve DIR" serves the files of a folder. Start it any number of times, on any node,
// each with its own folder. Then
//
//	filestore [-copies N] put FILE...    stores files, each on N servers
//	filestore get NAME [FILE]            fetches a file
//	filestore cat NAME [OFFSET [LENGTH]] prints a range of it
//	filestore list                       lists the files
//
// Only servers move data: they pull the bytes of a put from the memory of the client, and push the
// bytes of a get into it. If a put was interrupted, or its server was killed, the same command goes
// on where the put ended; so does a get. When a server ends during a get, the client goes on with
// another server that has the file.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"

	"github.com/rocl-go/rocl"
)

func main() {
	copies := flag.Int("copies", 1, "servers that a file is put on")
	window := flag.Int64("window", 32<<20, "bytes of a file that are in memory at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	err = run(ctx, c, *copies, *window, flag.Args())
	if e := c.Close(); err == nil {
		err = e
	}
	if err != nil {
		log.Fatal(err)
	}
}

var errUsage = errors.New("usage: filestore serve DIR | [-copies N] put FILE... | get NAME [FILE] | cat NAME [OFFSET [LENGTH]] | list")

func run(ctx context.Context, c *rocl.Context, copies int, window int64, args []string) error {
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
			if err := cl.put(ctx, name, copies); err != nil {
				return err
			}
		}
		return nil
	case verb == "get" && len(args) == 1:
		return cl.get(ctx, args[0], args[0])
	case verb == "get" && len(args) == 2:
		return cl.get(ctx, args[0], args[1])
	case verb == "cat" && len(args) >= 1 && len(args) <= 3:
		var off, n int64 = 0, -1
		for i, to := range []*int64{&off, &n} {
			if len(args) > i+1 {
				if *to, err = strconv.ParseInt(args[i+1], 10, 64); err != nil || *to < 0 {
					return fmt.Errorf("%q is no number of bytes", args[i+1])
				}
			}
		}
		return cl.cat(ctx, args[0], off, n, os.Stdout)
	case verb == "list" && len(args) == 0:
		return cl.list(ctx)
	}
	return errUsage
}
