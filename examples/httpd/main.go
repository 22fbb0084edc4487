// SPDX-License-Identifier: Apache-2.0

// Command httpd is an HTTP server that is found by attributes, and its client. Start "httpd serve"
// in one shell or in several, and "httpd get /PATH" in another. No address is needed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/netrocl"
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
	case len(os.Args) == 2 && os.Args[1] == "serve":
		err = serve(ctx, c)
	case len(os.Args) == 3 && os.Args[1] == "get":
		err = get(ctx, c, os.Args[2])
	default:
		err = errors.New("usage: httpd serve | httpd get /PATH")
	}
	if err != nil && ctx.Err() == nil {
		c.Close()
		log.Fatal(err)
	}
}

// serve answers requests until ctx ends. Then it completes those that have begun.
func serve(ctx context.Context, c *rocl.Context) error {
	ln, err := netrocl.Listen(ctx, c, rocl.Attrs{"type": "web"})
	if err != nil {
		return err
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "process %d serves %s to %s\n", os.Getpid(), r.URL.Path, r.RemoteAddr)
	})
	var s http.Server
	shut := make(chan error)
	go func() {
		<-ctx.Done()
		shut <- s.Shutdown(context.Background())
	}()
	if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-shut
}

// get prints a server's answer for path.
func get(ctx context.Context, c *rocl.Context, path string) error {
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return netrocl.Dial(ctx, c, rocl.Match{"type": "web"})
		},
	}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://web"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}
