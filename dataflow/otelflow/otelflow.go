// SPDX-License-Identifier: Apache-2.0

// Package otelflow makes OpenTelemetry spans of sampled items of graphs of package dataflow.
//
//	err := g.Run(ctx, dataflow.Trace(otelflow.New(nil), 1000))
//
// A sampled item has a span where its source sends it, and a child of that at each node that it
// comes to, in any group. The span at the source is a child of the span in the ctx that the source
// gives to Send. Each item that a node sends while it processes a sampled one is sampled too, and
// its span is a child of the node's.
//
// Spans follow the conventions for messaging: they are named "send NODE" at a source, of kind
// producer, and otherwise "process NODE", of kind consumer. Their attributes are
//
//	messaging.system                    "rocl"
//	messaging.operation.name, .type     "send" or "process"
//	messaging.destination.name          the node
//	messaging.destination.partition.id  the number of the input channel, for feedback behind "back "
//	rocl.graph, rocl.run, rocl.group    as given to package dataflow
//
// The error of a node is recorded.
package otelflow

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/rocl-go/rocl/dataflow"
)

const scope = "github.com/rocl-go/rocl/dataflow/otelflow"

// propagator writes what travels with items.
var propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// New returns a tracer for [dataflow.Trace], whose spans p makes. A nil p is the global provider of
// package otel. Trace context and baggage of the W3C travel with the items.
func New(p trace.TracerProvider) dataflow.Tracer {
	return func(ctx context.Context, v *dataflow.Visit, next func(context.Context) error) error {
		provider := p
		if provider == nil {
			provider = otel.GetTracerProvider()
		}
		operation, kind := "process", trace.SpanKindConsumer
		if v.IsSource {
			operation, kind = "send", trace.SpanKindProducer
		}
		attributes := []attribute.KeyValue{
			attribute.String("messaging.system", "rocl"),
			attribute.String("messaging.operation.name", operation),
			attribute.String("messaging.operation.type", operation),
			attribute.String("messaging.destination.name", v.Node),
			attribute.String("rocl.graph", v.Graph),
			attribute.String("rocl.run", v.Run),
		}
		if v.Group != "" {
			attributes = append(attributes, attribute.String("rocl.group", v.Group))
		}
		if !v.IsSource {
			channel := fmt.Sprint(v.From)
			if v.Back {
				channel = "back " + channel
			}
			attributes = append(attributes, attribute.String("messaging.destination.partition.id", channel))
			ctx = propagator.Extract(ctx, propagation.MapCarrier(v.Meta))
		}
		ctx, span := provider.Tracer(scope).Start(ctx, operation+" "+v.Node, trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
		defer span.End() // also after a panic
		meta := propagation.MapCarrier{}
		propagator.Inject(ctx, meta)
		v.Meta = meta
		err := next(ctx)
		if err != nil && !errors.Is(err, dataflow.Done) {
			span.RecordError(err)
			span.SetStatus(codes.Error, err.Error())
		}
		return err
	}
}
