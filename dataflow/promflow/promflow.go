// SPDX-License-Identifier: Apache-2.0

// Package promflow shows the figures of graphs of package dataflow in a program's own Prometheus
// registry.
//
//	registry.MustRegister(promflow.New("words", g))
//
// The metrics have the labels "graph", as given, "group", "edge", the edge's number, and "from" and
// "to", the names of its nodes:
//
//	rocl_flow_sent_items_total        items that have left the sender
//	rocl_flow_sent_bytes_total        of these, encoded for another group
//	rocl_flow_batches_total           batches in which they left
//	rocl_flow_waits_total             how often the sender has waited for credit, on any of its edges
//	rocl_flow_received_items_total    items that have come
//	rocl_flow_waiting_items           items that the receiver has not taken
//	rocl_flow_oldest_seconds          how long the oldest of these has waited at least
//	rocl_flow_dropped_items_total     items for the receiver after it had ended, on any of its edges
//
// The metrics are those of the runs under way. They end with the run.
package promflow

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rocl-go/rocl/dataflow"
)

// metric is one figure of an edge.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	value      func(*dataflow.EdgeStats) float64
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

var metrics = []metric{
	{"sent_items_total", "Items that have left the sender.", counter, func(s *dataflow.EdgeStats) float64 { return float64(s.Sent) }},
	{"sent_bytes_total", "Encoded bytes that have left the sender for another group.", counter, func(s *dataflow.EdgeStats) float64 { return float64(s.Bytes) }},
	{"batches_total", "Batches that have left the sender.", counter, func(s *dataflow.EdgeStats) float64 { return float64(s.Batches) }},
	{"waits_total", "How often the sender has waited for credit.", counter, func(s *dataflow.EdgeStats) float64 { return float64(s.Waits) }},
	{"received_items_total", "Items that have come.", counter, func(s *dataflow.EdgeStats) float64 { return float64(s.Received) }},
	{"waiting_items", "Items that the receiver has not taken.", gauge, func(s *dataflow.EdgeStats) float64 { return float64(s.Waiting) }},
	{"oldest_seconds", "How long the oldest waiting item has waited at least.", gauge, func(s *dataflow.EdgeStats) float64 { return s.Oldest.Seconds() }},
	{"dropped_items_total", "Items for the receiver after it had ended.", counter, func(s *dataflow.EdgeStats) float64 { return float64(s.Dropped) }},
}

// New returns a collector of the figures of a graph's runs in this process, as they are when they
// are collected. name distinguishes the graphs of a registry. Figures of runs at the same time are
// added.
func New(name string, g *dataflow.Graph) prometheus.Collector {
	c := &collector{graph: g}
	for _, m := range metrics {
		c.descs = append(c.descs, prometheus.NewDesc("rocl_flow_"+m.name, m.help, []string{"group", "edge", "from", "to"}, prometheus.Labels{"graph": name}))
	}
	return c
}

type collector struct {
	graph *dataflow.Graph
	descs []*prometheus.Desc // of metrics
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	type key struct {
		group string
		edge  int
	}
	first := map[key]dataflow.EdgeStats{}
	sums := map[key][]float64{}
	for _, s := range c.graph.Stats() {
		k := key{s.Group, s.Edge}
		if sums[k] == nil {
			first[k], sums[k] = s, make([]float64, len(metrics))
		}
		for i, m := range metrics {
			sums[k][i] += m.value(&s)
		}
	}
	for k, s := range first {
		for i, m := range metrics {
			ch <- prometheus.MustNewConstMetric(c.descs[i], m.kind, sums[k][i], s.Group, strconv.Itoa(s.Edge), s.From, s.To)
		}
	}
}
