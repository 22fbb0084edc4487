// SPDX-License-Identifier: Apache-2.0

package promrpc_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/rpc/promrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCollector(t *testing.T) {
	c := try.Get(rocl.Open(t.Context(), rocl.WithSocket(filepath.Join(t.TempDir(), "s"))))(t)
	defer c.Close()
	s := try.Get(rpc.NewServer(t.Context(), c, nil))(t)
	defer s.Close(context.Background())
	cl := try.Get(rpc.NewClient(t.Context(), c))(t)
	defer cl.Close()
	try.OK(t, rpc.Register(s, "full", func(context.Context, struct{}) (struct{}, error) { return struct{}{}, rocl.ErrFull }))
	for range 3 {
		if _, err := rpc.Call[struct{}, struct{}](t.Context(), cl, s.ID(), "full", struct{}{}); err == nil {
			t.Fatal("no error")
		}
	}
	r := prometheus.NewPedanticRegistry()
	try.OK(t, r.Register(promrpc.New(s, nil)))
	families := try.Get(r.Gather())(t)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				switch l.GetName() {
				case "server":
					try.Equal(t, l.GetValue(), s.ID().String(), "server")
				case "call":
					try.Equal(t, l.GetValue(), "full", "call")
				}
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if h := m.GetHistogram(); h != nil {
				got[name] = h.GetSampleSum()
				n, last := uint64(0), len(h.Bucket)-1
				for i, b := range h.Bucket {
					if i > 0 && b.GetUpperBound() != 2*h.Bucket[i-1].GetUpperBound() || b.GetCumulativeCount() < n {
						t.Errorf("bucket %d: %v", i, h.Bucket)
					}
					n = b.GetCumulativeCount()
				}
				if h.GetSampleCount() != 3 || n > 3 || last != 22 || h.Bucket[last].GetUpperBound() < 4 {
					t.Errorf("%v", h)
				}
			}
		}
	}
	if got["rocl_rpc_calls_total"] != 3 || got["rocl_rpc_errors_total"] != 3 || got["rocl_rpc_running"] != 0 ||
		got["rocl_rpc_duration_seconds"] <= 0 || len(got) != 4 {
		t.Errorf("%v", got)
	}
}
