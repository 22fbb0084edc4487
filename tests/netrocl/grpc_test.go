// SPDX-License-Identifier: Apache-2.0

// Package netrocl_test runs grpc-go over package netrocl.
package netrocl_test

import (
	"context"
	"net"
	"testing"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/netrocl"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
)

var calculator = rocl.Attrs{"type": "calculator"}

// The tests of grpc-go for interoperability pass over connections that were found by attributes. (A
// failed test ends the program, and prints the reason. CancelAfterBegin is left out: it wants to
// see that the call was cancelled, but grpc-go may return the answer, if that is there at once.)
func TestGRPC(t *testing.T) {
	for name, transport := range map[string]rocl.Option{
		"inproc": rocl.WithTransports(inproc.New()),
		"shm":    rocl.WithTransports(shm.New()),
		"tcp":    rocl.WithTransports(tcp.New()),
	} {
		t.Run(name, func(t *testing.T) {
			dir := directory.NewServer()
			t.Cleanup(func() { dir.Close() })
			open := func() *rocl.Context {
				c := try.Get(rocl.Open(t.Context(), icontext.WithDirectory(dir.Dialer()), transport))(t)
				t.Cleanup(func() { c.Close() })
				return c
			}
			serve(t, open())
			client := call(t, open())
			for name, test := range map[string]func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption){
				"EmptyUnaryCall":           interop.DoEmptyUnaryCall,
				"LargeUnaryCall":           interop.DoLargeUnaryCall,
				"ClientStreaming":          interop.DoClientStreaming,
				"ServerStreaming":          interop.DoServerStreaming,
				"PingPong":                 interop.DoPingPong,
				"EmptyStream":              interop.DoEmptyStream,
				"TimeoutOnSleepingServer":  interop.DoTimeoutOnSleepingServer,
				"CancelAfterFirstResponse": interop.DoCancelAfterFirstResponse,
				"CustomMetadata":           interop.DoCustomMetadata,
				"StatusCodeAndMessage":     interop.DoStatusCodeAndMessage,
				"SpecialStatusMessage":     interop.DoSpecialStatusMessage,
			} {
				t.Run(name, func(t *testing.T) { test(t.Context(), client) })
			}
		})
	}
}

func serve(t *testing.T, c *rocl.Context) {
	ln := try.Get(netrocl.Listen(t.Context(), c, calculator))(t)
	s := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(s, interop.NewTestServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.GracefulStop()
		try.Check(t, <-served)
	})
}

func call(t *testing.T, c *rocl.Context) testgrpc.TestServiceClient {
	cc := try.Get(grpc.NewClient("passthrough:///calculator", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return netrocl.Dial(ctx, c, rocl.Match(calculator))
		})))(t)
	t.Cleanup(func() {
		try.Check(t, cc.Close())
	})
	return testgrpc.NewTestServiceClient(cc)
}
