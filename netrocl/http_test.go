// SPDX-License-Identifier: Apache-2.0

package netrocl_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/netrocl"
)

// serveHTTP serves h until the test ends.
func serveHTTP(t *testing.T, c *rocl.Context, h http.Handler, ps *http.Protocols) {
	s := &http.Server{Handler: h, Protocols: ps}
	ln := listen(t, c)
	served := make(chan error)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		try.Check(t, s.Shutdown(context.Background()))
		try.Equal(t, <-served, http.ErrServerClosed)
	})
}

func clientHTTP(t *testing.T, c *rocl.Context, ps *http.Protocols) *http.Client {
	client := &http.Client{Transport: &http.Transport{
		Protocols: ps,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return netrocl.Dial(ctx, c, rocl.Match(web))
		},
	}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// net/http works over these connections as over any others: with both versions, kept connections,
// large bodies in both directions, and requests that are given up.
//
// Promise (Package netrocl): `net/http` and grpc-go run unchanged over `netrocl`. See also
// TestGRPC.
func TestHTTP(t *testing.T) {
	var one, two http.Protocols
	one.SetHTTP1(true)
	two.SetUnencryptedHTTP2(true)
	for name, ps := range map[string]*http.Protocols{"HTTP1": &one, "HTTP2": &two} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, opts ...rocl.Option) {
				cs := lossy(t, 2, opts...)
				stuck := make(chan struct{}, 1)
				mux := http.NewServeMux()
				mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body) // HTTP/1 drops what is not read before the answer
					if err != nil {
						t.Error(err)
					}
					_, _ = w.Write(body)
				})
				mux.HandleFunc("/stuck", func(_ http.ResponseWriter, r *http.Request) {
					stuck <- struct{}{}
					<-r.Context().Done() // the server sees that the client has gone
				})
				serveHTTP(t, cs[0], mux, ps)
				client := clientHTTP(t, cs[1], ps)

				var wg sync.WaitGroup
				for range 5 {
					wg.Go(func() {
						for i := range 10 {
							want := pattern(i * i * 3000)
							resp, err := client.Post("http://web/echo", "application/octet-stream", bytes.NewReader(want))
							if err != nil {
								t.Error(err)
								return
							}
							got, err := io.ReadAll(resp.Body)
							resp.Body.Close()
							if err != nil || !bytes.Equal(got, want) {
								t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
							}
						}
					})
				}
				wg.Wait()

				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					<-stuck
					cancel()
				}()
				req := try.Get(http.NewRequestWithContext(ctx, "GET", "http://web/stuck", nil))(t)
				try.Fails(client.Do(req))(t, context.Canceled) // a request that was given up
				resp, err := client.Get("http://web/none")
				if err != nil || resp.StatusCode != http.StatusNotFound {
					t.Errorf("%v, %v", resp, err)
					return
				}
				resp.Body.Close()
			})
		})
	}
}
