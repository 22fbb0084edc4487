// SPDX-License-Identifier: Apache-2.0

package promrpc

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rocl-go/rocl/pool"
)

// poolMetric is one figure of a pool.
type poolMetric struct {
	name, help string
	kind       prometheus.ValueType
	value      func(*pool.PoolStats) float64
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

var poolMetrics = []poolMetric{
	{"queued", "Units in the queue.", gauge, func(s *pool.PoolStats) float64 { return float64(s.Queued) }},
	{"waiting", "Calls of Submit that wait until the queue has room.", gauge, func(s *pool.PoolStats) float64 { return float64(s.Waiting) }},
	{"running", "Units that run.", gauge, func(s *pool.PoolStats) float64 { return float64(s.Running) }},
	{"done_total", "Units that have ended.", counter, func(s *pool.PoolStats) float64 { return float64(s.Done) }},
	{"rejected_total", "Units that were refused because the queue was full.", counter, func(s *pool.PoolStats) float64 { return float64(s.Rejected) }},
	{"panicked_total", "Units that ended with a panic.", counter, func(s *pool.PoolStats) float64 { return float64(s.Panicked) }},
	{"cancelled_total", "Units that were cancelled while they waited.", counter, func(s *pool.PoolStats) float64 { return float64(s.Cancelled) }},
	{"moved_in_total", "Units that came from other pools.", counter, func(s *pool.PoolStats) float64 { return float64(s.MovedIn) }},
	{"moved_out_total", "Units that went to other pools.", counter, func(s *pool.PoolStats) float64 { return float64(s.MovedOut) }},
	{"wait_seconds_total", "Time that the units which have ended had waited.", counter, func(s *pool.PoolStats) float64 { return s.WaitTime.Seconds() }},
	{"run_seconds_total", "Time that the units which have ended had run.", counter, func(s *pool.PoolStats) float64 { return s.RunTime.Seconds() }},
}

// NewPools returns a collector of the figures of a set's pools, including pools that are added
// later. The figures are collected as they are at the time. name distinguishes the sets of a
// registry.
func NewPools(name string, s *pool.Set) prometheus.Collector {
	c := &poolCollector{set: s}
	for _, m := range poolMetrics {
		c.descs = append(c.descs, prometheus.NewDesc("rocl_pool_"+m.name, m.help, []string{"pool"}, prometheus.Labels{"set": name}))
	}
	return c
}

type poolCollector struct {
	set   *pool.Set
	descs []*prometheus.Desc // of poolMetrics
}

func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	for _, st := range c.set.Stats() {
		for i, m := range poolMetrics {
			ch <- prometheus.MustNewConstMetric(c.descs[i], m.kind, m.value(&st), st.Name)
		}
	}
}
