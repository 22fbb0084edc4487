// SPDX-License-Identifier: Apache-2.0

package otelflow_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/dataflow/otelflow"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// graph has a source and a sink in group G1, and a loop of two nodes in which each of n items turns
// once, the second of them in G2.
func graph(t *testing.T, n int, sink dataflow.Sink[int]) *dataflow.Graph {
	src := dataflow.From(func(ctx context.Context, out dataflow.Out[int]) error {
		for i := range n {
			if err := out.Send(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}, dataflow.Name("S"))
	returned := 0
	a := dataflow.Do(dataflow.Func[int, int](func(ctx context.Context, in dataflow.Item[int], out dataflow.Out[int]) error {
		if in.Back {
			returned++
		}
		err := out.Send(ctx, in.Value)
		if err == nil && returned == n {
			return dataflow.Done
		}
		return err
	}), dataflow.Name("A"))
	b := dataflow.Do(dataflow.Func[int, int](func(ctx context.Context, in dataflow.Item[int], out dataflow.Out[int]) error {
		if in.Value >= 0 {
			return out.SendBack(ctx, 0, -1-in.Value)
		}
		return out.Send(ctx, -1-in.Value)
	}), dataflow.Name("B"))
	k := dataflow.To(sink, dataflow.Name("K"))
	g := try.Get(dataflow.New("spans", dataflow.Pipeline3(src, dataflow.Loop(dataflow.Pipeline(a, b)), k)))(t)
	try.OK(t, errors.Join(g.Group("G1", src, a, k), g.Group("G2", b)))
	return g
}

// chain describes a span and those above it.
func chain(spans []sdk.ReadOnlySpan, s sdk.ReadOnlySpan) string {
	text := s.Name()
	for _, a := range s.Attributes() {
		switch a.Key {
		case "rocl.group", "messaging.destination.partition.id":
			text += "," + a.Value.AsString()
		}
	}
	for _, p := range spans {
		if p.SpanContext().SpanID() == s.Parent().SpanID() && p.SpanContext().TraceID() == s.SpanContext().TraceID() {
			return chain(spans, p) + "; " + text
		}
	}
	return text
}

// The spans of a sampled item join across groups.
func TestSpansJoin(t *testing.T) {
	var rs [2]*tracetest.SpanRecorder
	g := graph(t, 10, func(context.Context, dataflow.Item[int]) error { return nil })
	socket := filepath.Join(t.TempDir(), "s")
	var wg sync.WaitGroup
	for i, group := range []string{"G1", "G2"} {
		c := try.Get(rocl.Open(t.Context(), rocl.WithSocket(socket)))(t)
		defer c.Close()
		rs[i] = tracetest.NewSpanRecorder()
		provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(rs[i]))
		wg.Go(func() {
			try.Check(t, g.Run(t.Context(), dataflow.InGroup(c, group, dataflow.Config{}), dataflow.Trace(otelflow.New(provider), 4)))
		})
	}
	wg.Wait()
	try.Equal(t, len(rs[1].Ended()), 6, "spans of G2")
	spans := append(rs[0].Ended(), rs[1].Ended()...)
	try.Equal(t, len(spans), 18)
	want := "send S,G1; process A,G1,0; process B,G2,0; process A,G1,back 0; process B,G2,0; process K,G1,0"
	chains := 0
	for _, s := range spans {
		if s.Name() == "process K" {
			try.Equal(t, chain(spans, s), want)
			chains++
		}
	}
	try.Equal(t, chains, 3)
}

// A span has the attributes of its node and the error, but not Done. A nil provider is the global
// one.
func TestSpan(t *testing.T) {
	r := tracetest.NewSpanRecorder()
	broken := errors.New("broken")
	g := graph(t, 1, func(context.Context, dataflow.Item[int]) error { return broken })
	try.Fails(g.Run(t.Context(), dataflow.Trace(otelflow.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(r))), 0)))(t, broken)
	for _, s := range r.Ended() {
		switch s.Name() {
		case "process K":
			try.Equal(t, fmt.Sprint(s.SpanKind(), s.Status(), len(s.Events())), "consumer {Error broken} 1")
			var as []string
			for _, a := range s.Attributes() {
				as = append(as, fmt.Sprint(a.Key, "=", a.Value.AsString()))
			}
			slices.Sort(as)
			try.Equal(t, fmt.Sprint(as), "[messaging.destination.name=K messaging.destination.partition.id=0 messaging.operation.name=process messaging.operation.type=process messaging.system=rocl rocl.graph=spans rocl.run=spans]")
		case "send S":
			try.Equal(t, fmt.Sprint(s.SpanKind(), len(s.Events())), "producer 0")
		case "process A":
			try.Equal(t, len(s.Events()), 0, "Done is recorded")
		}
	}
	try.Equal(t, len(r.Ended()), 6)
	ok := graph(t, 1, func(context.Context, dataflow.Item[int]) error { return nil })
	try.OK(t, ok.Run(t.Context(), dataflow.Trace(otelflow.New(nil), 1)))
}
