// SPDX-License-Identifier: Apache-2.0

package promflow_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/dataflow/promflow"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The collector has the figures of each edge while a graph runs, those of two runs added, and none
// afterwards.
func TestGraphCollector(t *testing.T) {
	sent, release := make(chan struct{}), make(chan struct{})
	src := dataflow.From(func(ctx context.Context, out dataflow.Out[int]) error {
		for i := range 5 {
			if err := out.Send(ctx, i); err != nil {
				return err
			}
		}
		sent <- struct{}{}
		<-release
		return nil
	}, dataflow.Name("S"))
	sink := dataflow.To(func(context.Context, dataflow.Item[int]) error { return nil }, dataflow.Name("K"))
	g := try.Get(dataflow.New("g", dataflow.Pipeline(src, sink)))(t)
	r := prometheus.NewPedanticRegistry()
	try.OK(t, r.Register(promflow.New("words", g)))
	gather := func() map[string]float64 {
		got := map[string]float64{}
		for _, f := range try.Get(r.Gather())(t) {
			for _, m := range f.Metric {
				got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				for _, l := range m.Label {
					want := map[string]string{"graph": "words", "group": "", "edge": "0", "from": "S", "to": "K"}[l.GetName()]
					try.Equal(t, l.GetValue(), want, l.GetName())
				}
			}
		}
		return got
	}
	try.Equal(t, len(gather()), 0)
	done := make(chan error)
	for range 2 {
		go func() { done <- g.Run(t.Context()) }()
	}
	<-sent
	<-sent
	got := gather()
	if len(got) != 8 || got["rocl_flow_sent_items_total"] != 10 || got["rocl_flow_received_items_total"] != 10 || got["rocl_flow_batches_total"] != 10 {
		t.Errorf("%v", got)
	}
	close(release)
	try.OK(t, <-done)
	try.OK(t, <-done)
	try.Equal(t, len(gather()), 0)
}
