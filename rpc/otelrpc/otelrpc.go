// SPDX-License-Identifier: Apache-2.0

// Package otelrpc traces calls of package rpc with OpenTelemetry. The spans of caller and server
// are connected, because their identifiers travel in the metadata of the call.
//
//	cl, err := rpc.NewClient(ctx, c, rpc.CallInterceptors(otelrpc.Client()))
//	s, err := rpc.NewServer(ctx, c, attrs, rpc.WithInterceptors(otelrpc.Server()))
//
// Spans are named after the call. Their attributes are rpc.system ("rocl"), rpc.method, and the
// identifier of the provider. The error of a failed call is recorded. Without options the tracer
// provider and the propagator are the global ones of package otel.
package otelrpc

import (
	"context"
	"maps"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/rocl-go/rocl/rpc"
)

// An Option changes one default of [Client] and [Server].
type Option func(*config)

type config struct {
	provider   trace.TracerProvider
	propagator propagation.TextMapPropagator
}

// WithTracerProvider sets the provider that makes the spans. A nil p is the global one.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) {
		if p != nil {
			c.provider = p
		}
	}
}

// WithPropagator sets the propagator that writes identifiers to metadata, by default the global
// one. A program that has not set the global propagator should give propagation.TraceContext{}.
func WithPropagator(p propagation.TextMapPropagator) Option {
	return func(c *config) {
		if p != nil {
			c.propagator = p
		}
	}
}

func newConfig(opts []Option) *config {
	c := &config{provider: otel.GetTracerProvider(), propagator: otel.GetTextMapPropagator()}
	for _, o := range opts {
		if o != nil {
			o(c)
		}
	}
	return c
}

const scope = "github.com/rocl-go/rocl/rpc/otelrpc"

// span runs next within a span.
func (c *config) span(ctx context.Context, i *rpc.Invocation, kind trace.SpanKind, next func(context.Context) error) error {
	ctx, span := c.provider.Tracer(scope).Start(ctx, i.Name, trace.WithSpanKind(kind), trace.WithAttributes(
		attribute.String("rpc.system", "rocl"), attribute.String("rpc.method", i.Name), attribute.Stringer("rocl.provider", i.Provider)))
	defer span.End() // also after a panic
	err := next(ctx)
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

// Client returns an interceptor for rpc.CallInterceptors.
func Client(opts ...Option) rpc.Interceptor {
	c := newConfig(opts)
	return func(ctx context.Context, i *rpc.Invocation, next func(context.Context) error) error {
		return c.span(ctx, i, trace.SpanKindClient, func(ctx context.Context) error {
			meta := rpc.Metadata{} // a copy: the caller may use its metadata for other calls
			maps.Copy(meta, i.Metadata)
			c.propagator.Inject(ctx, propagation.MapCarrier(meta))
			i.Metadata = meta
			return next(ctx)
		})
	}
}

// Server returns an interceptor for rpc.WithInterceptors.
func Server(opts ...Option) rpc.Interceptor {
	c := newConfig(opts)
	return func(ctx context.Context, i *rpc.Invocation, next func(context.Context) error) error {
		ctx = c.propagator.Extract(ctx, propagation.MapCarrier(i.Metadata))
		return c.span(ctx, i, trace.SpanKindServer, next)
	}
}
