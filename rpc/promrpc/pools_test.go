// SPDX-License-Identifier: Apache-2.0

package promrpc_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/pool"
	"github.com/rocl-go/rocl/rpc/promrpc"
)

// TestPools checks the figures of two sets in one registry, and of a pool that was added later.
func TestPools(t *testing.T) {
	ctx := context.Background()
	quiet := pool.OnPanic(func(pool.Panic) {})
	one := try.Get(pool.Load([]byte(`{"pools": [{"name": "a", "workers": 1, "queue": 1}]}`), quiet))(t)
	two := pool.New()
	r := prometheus.NewPedanticRegistry()
	for name, s := range map[string]*pool.Set{"one": one, "two": two} {
		try.OK(t, r.Register(promrpc.NewPools(name, s)))
	}
	later := try.Get(two.AddPool(pool.PoolConfig{Name: "later", Workers: pool.NoWorkers}))(t)
	began, end := make(chan struct{}), make(chan struct{})
	try.OK(t, one.Default().Submit(ctx, pool.Unit{Run: func(context.Context) { close(began); <-end; panic("x") }}))
	<-began
	nothing := pool.Unit{Run: func(context.Context) {}}
	waits := try.Get(one.Default().SubmitTicket(ctx, nothing))(t)
	try.Fails(one.Default().Submit(ctx, nothing))(t, pool.ErrFull)
	try.Check(t, waits.Move(later))
	cancelled, err := later.SubmitTicket(ctx, nothing)
	if err != nil || !cancelled.Cancel() {
		t.Error(err)
	}
	check := func(want map[string]float64) {
		t.Helper()
		got := gather(t, r)
		for name, v := range want {
			try.Equal(t, got[name], v, "%s", name)
			delete(got, name)
		}
		for name, v := range got {
			try.Equal(t, v, 0, "%s", name)
		}
	}
	check(map[string]float64{
		"rocl_pool_running one a": 1, "rocl_pool_rejected_total one a": 1, "rocl_pool_moved_out_total one a": 1,
		"rocl_pool_moved_in_total two later": 1, "rocl_pool_queued two later": 1, "rocl_pool_cancelled_total two later": 1,
	})
	close(end)
	for _, s := range []*pool.Set{one, two} {
		try.Check(t, s.Close(ctx))
	}
	got := gather(t, r)
	if got["rocl_pool_done_total one a"] != 1 || got["rocl_pool_panicked_total one a"] != 1 || got["rocl_pool_run_seconds_total one a"] <= 0 ||
		got["rocl_pool_done_total two later"] != 1 || got["rocl_pool_wait_seconds_total two later"] <= 0 || len(got) != 3*11 {
		t.Errorf("%v", got)
	}
}

// gather returns the values by the names of metric, set and pool.
func gather(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families := try.Get(r.Gather())(t)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			got[f.GetName()+" "+labels["set"]+" "+labels["pool"]] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return got
}
