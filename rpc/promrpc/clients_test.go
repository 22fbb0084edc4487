// SPDX-License-Identifier: Apache-2.0

package promrpc_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/rpc/promrpc"
)

// TestClients checks the figures of two clients with one Clients: of calls that succeed, fail, run
// and panic before they are sent.
//
// The figures of clients count each call once, however it ends.
func TestClients(t *testing.T) {
	ctx := t.Context()
	c := try.Get(rocl.Open(ctx, rocl.WithSocket(filepath.Join(t.TempDir(), "s"))))(t)
	defer c.Close()
	s := try.Get(rpc.NewServer(ctx, c, nil))(t)
	defer s.Close(context.Background())
	counts := promrpc.NewClients()
	r := prometheus.NewPedanticRegistry()
	try.OK(t, r.Register(counts))
	var during map[string]uint64
	try.OK(t, rpc.Register(s, "works", func(context.Context, struct{}) (struct{}, error) {
		during = clientFigures(t, r)
		return struct{}{}, nil
	}))
	try.OK(t, rpc.Register(s, "fails", func(context.Context, struct{}) (struct{}, error) { return struct{}{}, rocl.ErrFull }))
	panics := func(context.Context, *rpc.Invocation, func(context.Context) error) error { panic("x") }
	var clients [3]*rpc.Client
	for i := range clients {
		around := []rpc.Interceptor{counts.Interceptor()}
		if i == 2 {
			around = append(around, panics)
		}
		clients[i] = try.Get(rpc.NewClient(ctx, c, rpc.CallInterceptors(around...)))(t)
		defer clients[i].Close()
	}
	call := func(cl *rpc.Client, name string) (err error) {
		_, err = rpc.Call[struct{}, struct{}](ctx, cl, s.ID(), name, struct{}{})
		return err
	}
	for _, cl := range clients[:2] {
		try.OK(t, call(cl, "works"))
		if call(cl, "fails") == nil {
			t.Error("the call has not failed")
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_ = call(clients[2], "panics")
	}()
	try.Equal(t, during["rocl_rpc_client_running works"], 1, "running")
	got := clientFigures(t, r)
	for name, want := range map[string][3]uint64{"works": {0, 0, 2}, "fails": {0, 2, 2}, "panics": {0, 1, 1}} {
		for i, metric := range []string{"running", "errors_total", "duration_seconds"} {
			try.Equal(t, got["rocl_rpc_client_"+metric+" "+name], want[i], "%s of %s", metric, name)
		}
	}
	try.Equal(t, len(got), 9, "series")
}

// clientFigures returns the values, of histograms the counts, by the names of metric and call.
func clientFigures(t *testing.T, r *prometheus.Registry) map[string]uint64 {
	got := map[string]uint64{}
	for _, f := range try.Get(r.Gather())(t) {
		for _, m := range f.Metric {
			got[f.GetName()+" "+m.Label[0].GetValue()] = uint64(m.GetCounter().GetValue()+m.GetGauge().GetValue()) + m.GetHistogram().GetSampleCount()
		}
	}
	return got
}
