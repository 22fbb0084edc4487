// SPDX-License-Identifier: Apache-2.0

package otelrpc_test

import (
	"context"
	"io/fs"
	"path/filepath"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/rpc/otelrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Nil options and options that are given nil have their defaults.
func TestNilOptions(t *testing.T) {
	ctx := t.Context()
	c := try.Get(rocl.Open(ctx, rocl.WithSocket(filepath.Join(t.TempDir(), "s"))))(t)
	defer c.Close()
	for _, o := range []otelrpc.Option{otelrpc.WithTracerProvider(nil), otelrpc.WithPropagator(nil), nil} {
		s := try.Get(rpc.NewServer(ctx, c, nil, rpc.WithInterceptors(otelrpc.Server(o))))(t)
		defer s.Close(context.Background())
		client := try.Get(rpc.NewClient(ctx, c, rpc.CallInterceptors(otelrpc.Client(o))))(t)
		defer client.Close()
		try.OK(t, rpc.Register(s, "f", func(_ context.Context, in string) (string, error) { return in, nil }))
		try.Gives(rpc.Call[string, string](ctx, client, s.ID(), "f", "x"))(t, "x")
	}
}

// The span of a server is a child of the caller's span, and both record an error.
//
// Promise (Package rpc): Spans of caller and server join. Figures are those of the server and its
// pools. See also TestCollector.
func TestSpansJoin(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
	opts := []otelrpc.Option{otelrpc.WithTracerProvider(provider), otelrpc.WithPropagator(propagation.TraceContext{})}
	c := try.Get(rocl.Open(t.Context(), rocl.WithSocket(filepath.Join(t.TempDir(), "s"))))(t)
	defer c.Close()
	s := try.Get(rpc.NewServer(t.Context(), c, nil, rpc.WithInterceptors(otelrpc.Server(opts...))))(t)
	defer s.Close(context.Background())
	client := try.Get(rpc.NewClient(t.Context(), c, rpc.CallInterceptors(otelrpc.Client(opts...))))(t)
	defer client.Close()
	try.OK(t, rpc.Register(s, "read", func(ctx context.Context, name string) (string, error) {
		if who := rpc.InfoFrom(ctx).Metadata["who"]; who != "me" {
			t.Errorf("the metadata has %q", who)
		}
		return "", fs.ErrNotExist
	}))
	ctx, root := provider.Tracer("test").Start(t.Context(), "root")
	try.Fails(rpc.Call[string, string](ctx, client, s.ID(), "read", "x", rpc.WithMetadata(rpc.Metadata{"who": "me"})))(t, fs.ErrNotExist)
	root.End()
	ended := spans.Ended()
	if len(ended) != 3 {
		t.Fatalf("%d spans", len(ended))
	}
	of, at := ended[0], ended[1] // the server's ends first
	if of.Parent().SpanID() != at.SpanContext().SpanID() || at.Parent().SpanID() != root.SpanContext().SpanID() || of.SpanContext().TraceID() != root.SpanContext().TraceID() {
		t.Errorf("the spans do not join: %v, %v", of.Parent(), at.Parent())
	}
	for _, s := range ended[:2] {
		if s.Name() != "read" || s.Status().Description == "" || len(s.Events()) != 1 {
			t.Errorf("%v: %v", s.Name(), s.Status())
		}
	}
}
