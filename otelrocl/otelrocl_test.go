// SPDX-License-Identifier: Apache-2.0

package otelrocl_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/dataflow/otelflow"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/otelrocl"
	"github.com/rocl-go/rocl/tpvm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One trace crosses a message, a message to several targets, a call, a transfer in that call, a
// message of a virtual machine, and a graph.
//
// Promise (Observing): The trace of a program crosses messages, calls, transfers, messages of
// virtual machines and graphs.
func TestTraceCrosses(t *testing.T) {
	ctx := eventually.Context(t)
	spans := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(spans))
	tracer := provider.Tracer("test")
	opts := []rocl.Option{rocl.WithSocket(filepath.Join(t.TempDir(), "s")), rocl.WithTrace(otelrocl.Trace)}
	a, b := try.Get(rocl.Open(ctx, opts...))(t), try.Get(rocl.Open(ctx, opts...))(t)
	defer a.Close()
	defer b.Close()
	from, to := try.Get(a.Register(ctx, nil))(t), try.Get(b.Register(ctx, nil))(t)
	ep := try.Get(bulk.Open(ctx, a, bulk.OnTransfer(otelrocl.Transfer)))(t)
	defer ep.Close(context.Background())
	remote := try.Get(bulk.Open(ctx, b, bulk.OnTransfer(otelrocl.Transfer)))(t)
	defer remote.Close(context.Background())
	region := try.Get(ep.Expose(bulk.ReadOnly, bulk.Bytes([]byte("memory"))))(t)
	defer region.Close()
	tasks := [2]*tpvm.Task{}
	for i := range tasks {
		tasks[i] = try.Get(tpvm.Enrol(ctx, tpvm.WithRocl(opts...), tpvm.WithoutLaunch()))(t)
		defer tasks[i].Exit(context.Background())
	}

	ctx, root := tracer.Start(ctx, "root")
	receive := func(name string, of rocl.Trace, do func(context.Context)) {
		ctx, span := tracer.Start(otelrocl.Extract(context.Background(), of), name, trace.WithSpanKind(trace.SpanKindConsumer))
		defer span.End()
		if do != nil {
			do(ctx)
		}
	}
	try.OK(t, from.SendBytes(ctx, to.ID(), 0, []byte("x")))
	m := try.Get(to.Recv(ctx))(t)
	receive("message", m.Trace(), nil)
	m.Release()
	try.OK(t, from.SendAll(ctx, []rocl.GID{to.ID()}, 0, try.Get(a.Buffer(1))(t)))
	m = try.Get(to.Recv(ctx))(t)
	receive("message to all", m.Trace(), nil)
	m.Release()

	pending := try.Get(from.StartCallBytes(ctx, to.ID(), 0, nil))(t)
	m = try.Get(to.Recv(ctx))(t)
	receive("call", m.Trace(), func(ctx context.Context) {
		try.Works(remote.Pull(ctx, region.Handle(), 0, make([]byte, 6)))(t)
		try.Fails(remote.Pull(ctx, region.Handle(), 6, make([]byte, 6)))(t, bulk.ErrRange)
		g := try.Get(dataflow.New("g", dataflow.Pipeline(
			dataflow.From(func(_ context.Context, out dataflow.Out[int]) error { return out.Send(ctx, 1) }, dataflow.Name("S")),
			dataflow.To(func(context.Context, dataflow.Item[int]) error { return nil }, dataflow.Name("K")))))(t)
		try.OK(t, g.Run(ctx, dataflow.Trace(otelflow.New(provider), 1)))
	})
	try.OK(t, to.ReplyBytes(ctx, m, nil))
	m.Release()
	reply := try.Get(pending.Wait(ctx))(t)
	reply.Release()

	try.OK(t, tasks[0].Send(ctx, tasks[1].ID(), 3, nil))
	tm := try.Get(tasks[1].Recv(ctx, tpvm.AnyTask, 3))(t)
	receive("task", tm.Trace(), nil)
	tm.Release()
	root.End()

	parents := map[string]string{}
	names := map[trace.SpanID]string{}
	for _, s := range spans.GetSpans() {
		names[s.SpanContext.SpanID()] = s.Name
	}
	for _, s := range spans.GetSpans() {
		if s.SpanContext.TraceID() != root.SpanContext().TraceID() {
			t.Errorf("%s is of another trace", s.Name)
		}
		parents[s.Name] = names[s.Parent.SpanID()]
		if s.Name != "call" {
			continue
		}
		var events []string
		for _, e := range s.Events {
			set := attribute.NewSet(e.Attributes...)
			n, _ := set.Value("rocl.bytes")
			failed := set.HasValue("exception.message")
			events = append(events, fmt.Sprint(e.Name, " ", n.AsInt64(), " ", failed))
		}
		try.Equal(t, fmt.Sprint(events), "[bulk pull 6 false bulk pull 0 true]")
	}
	try.Equal(t, fmt.Sprint(parents), "map[call:root message:root message to all:root process K:send S root: send S:call task:root]")
}

// Without a span, and with a trace that names none, there is no trace.
func TestNoTrace(t *testing.T) {
	ctx := t.Context()
	try.Equal(t, otelrocl.Trace(ctx), rocl.Trace{})
	try.Equal(t, otelrocl.Extract(ctx, rocl.Trace{ID: [16]byte{1}}), ctx)
	otelrocl.Transfer(ctx, bulk.Transferred{})
	x := rocl.Trace{ID: [16]byte{1}, Span: [8]byte{2}, Flags: 1}
	try.Equal(t, otelrocl.Trace(otelrocl.Extract(ctx, x)), x)
	try.Equal(t, x.String(), "00-01000000000000000000000000000000-0200000000000000-01")
}
