// SPDX-License-Identifier: Apache-2.0

package netrocl_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/netrocl"
)

// here returns the option of a node in memory, so that an example needs no daemon. A program calls
// rocl.Open without it.
func here() (node rocl.Option, stop func()) {
	s := directory.NewServer()
	return icontext.WithDirectory(s.Dialer()), func() { s.Close() }
}

func open(opts ...rocl.Option) *rocl.Context {
	c, err := rocl.Open(context.Background(), opts...)
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// An HTTP server and its client need no address: the client finds the server by attributes.
func Example() {
	node, stop := here()
	defer stop()
	server, client := open(node), open(node)
	defer client.Close()
	defer server.Close()

	ln, err := netrocl.Listen(context.Background(), server, rocl.Attrs{"type": "web"})
	if err != nil {
		log.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "you asked for %s", r.URL.Path)
	})}
	defer s.Close()
	go s.Serve(ln)

	web := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return netrocl.Dial(ctx, client, rocl.Match{"type": "web"})
		},
	}}
	defer web.CloseIdleConnections()
	resp, err := web.Get("http://web/a/page")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	fmt.Printf("%s, %v\n", text, err)
	// Output: you asked for /a/page, <nil>
}

// The client closes one half of the connection. The server reads everything, and then answers.
func ExampleDial() {
	node, stop := here()
	defer stop()
	c := open(node)
	defer c.Close()
	ctx := context.Background()

	ln, err := netrocl.Listen(ctx, c, rocl.Attrs{"type": "counter"})
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			log.Fatal(err)
		}
		defer conn.Close()
		n, _ := io.Copy(io.Discard, conn)
		fmt.Fprintf(conn, "%d bytes", n)
	}()

	conn, err := netrocl.Dial(ctx, c, rocl.Match{"type": "counter"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "hello")
	if err := conn.(*netrocl.Conn).CloseWrite(); err != nil {
		log.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	fmt.Printf("%s, %v\n", text, err)
	// Output: 5 bytes, <nil>
}
