// SPDX-License-Identifier: Apache-2.0

// Package otelrocl carries OpenTelemetry traces in messages, requests, messages of package tpvm and
// transfers of package bulk.
//
//	c, err := rocl.Open(ctx, rocl.WithTrace(otelrocl.Trace))
//	err = r.SendBytes(ctx, to, tag, data) // the message carries the span in ctx
//
//	m, err := r.Recv(ctx)
//	ctx, span := tracer.Start(otelrocl.Extract(ctx, m.Trace()), "handle", trace.WithSpanKind(trace.SpanKindConsumer))
//	defer span.End()
//
// A task of package tpvm gets the option by tpvm.WithRocl; the trace of its message is
// tpvm.Message.Trace. An endpoint with bulk.OnTransfer(otelrocl.Transfer) adds an event for each
// transfer to the span in its ctx. Calls of package rpc and items of package dataflow have packages
// of their own, otelrpc and otelflow, whose spans join with these.
//
// Trace state and baggage are not carried.
package otelrocl

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
)

// Trace returns the trace of the span in ctx, for rocl.WithTrace. It is the zero Trace if ctx has
// no span.
func Trace(ctx context.Context) rocl.Trace {
	s := trace.SpanContextFromContext(ctx)
	return rocl.Trace{ID: s.TraceID(), Span: s.SpanID(), Flags: byte(s.TraceFlags())}
}

// Extract returns ctx with the trace of a message: a span that is started with it is a child of the
// sender's. Without a trace it returns ctx.
func Extract(ctx context.Context, t rocl.Trace) context.Context {
	if !t.IsValid() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: t.ID, SpanID: t.Span, TraceFlags: trace.TraceFlags(t.Flags), Remote: true,
	}))
}

// Transfer adds an event to the span in ctx, for bulk.OnTransfer. The event is named "bulk pull" or
// "bulk push", and has the attributes rocl.origin, rocl.bytes and, after a failure,
// exception.message.
func Transfer(ctx context.Context, t bulk.Transferred) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	as := []attribute.KeyValue{attribute.Stringer("rocl.origin", t.Origin), attribute.Int64("rocl.bytes", t.Bytes)}
	if t.Err != nil {
		as = append(as, attribute.String("exception.message", t.Err.Error()))
	}
	span.AddEvent("bulk "+t.Operation, trace.WithAttributes(as...))
}
