// SPDX-License-Identifier: Apache-2.0

// Package promrpc shows the figures of servers and clients of package rpc in a program's own
// Prometheus registry.
//
//	registry.MustRegister(promrpc.New(s))
//
// The metrics have the labels "server", the identifier of the server's resource, and "call", the
// name of the call:
//
//	rocl_rpc_calls_total            handlers that have returned
//	rocl_rpc_errors_total           handlers that have returned an error
//	rocl_rpc_running                handlers that run
//	rocl_rpc_duration_seconds       histogram: from the request's arrival to the handler's return
//
// The histogram has a bucket for each power of two from 1.024 µs to 4.3 s. Of the calls of an
// Inline handler it counts one in eight.
//
// [NewClients] counts the calls of clients:
//
//	calls := promrpc.NewClients()
//	registry.MustRegister(calls)
//	cl, err := rpc.NewClient(ctx, c, rpc.CallInterceptors(calls.Interceptor()))
//
// The metrics have the label "call":
//
//	rocl_rpc_client_running             calls that wait for their result
//	rocl_rpc_client_errors_total        calls that have failed
//	rocl_rpc_client_duration_seconds    histogram with the same buckets: from the call to its return
//
// [NewPools] does so with the pools in which handlers run:
//
//	registry.MustRegister(promrpc.NewPools("service", set))
//
// The metrics have the labels "set", as given, and "pool", the name of the pool:
//
//	rocl_pool_queued                units in the queue
//	rocl_pool_waiting               calls of Submit that wait until the queue has room
//	rocl_pool_running               units that run
//	rocl_pool_done_total            units that have ended
//	rocl_pool_rejected_total        units that were refused because the queue was full
//	rocl_pool_panicked_total        units that ended with a panic
//	rocl_pool_cancelled_total       units that were cancelled while they waited
//	rocl_pool_moved_in_total        units that came from other pools
//	rocl_pool_moved_out_total       units that went to other pools
//	rocl_pool_wait_seconds_total    how long the units that have ended had waited, in all
//	rocl_pool_run_seconds_total     how long they had run
package promrpc

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rocl-go/rocl/rpc"
)

var labels = []string{"server", "call"}

var (
	calls    = prometheus.NewDesc("rocl_rpc_calls_total", "Handlers that have returned.", labels, nil)
	errs     = prometheus.NewDesc("rocl_rpc_errors_total", "Handlers that have returned an error.", labels, nil)
	running  = prometheus.NewDesc("rocl_rpc_running", "Handlers that run.", labels, nil)
	duration = prometheus.NewDesc("rocl_rpc_duration_seconds", "Time from the arrival of a request to the return of its handler.", labels, nil)
)

// New returns a collector of the figures of servers, as they are when they are collected. It leaves
// out servers that are nil. It may be registered in several registries.
func New(servers ...*rpc.Server) prometheus.Collector {
	return collector(slices.DeleteFunc(slices.Clone(servers), func(s *rpc.Server) bool { return s == nil }))
}

type collector []*rpc.Server

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{calls, errs, running, duration} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c {
		id := s.ID().String()
		for _, st := range s.Stats() {
			ch <- prometheus.MustNewConstMetric(calls, prometheus.CounterValue, float64(st.Calls), id, st.Name)
			ch <- prometheus.MustNewConstMetric(errs, prometheus.CounterValue, float64(st.Errors), id, st.Name)
			ch <- prometheus.MustNewConstMetric(running, prometheus.GaugeValue, float64(st.Running), id, st.Name)
			count, below := buckets(st.Took)
			ch <- prometheus.MustNewConstHistogram(duration, count, st.Total.Seconds(), below, id, st.Name)
		}
	}
}

const least, most = 1 << 10 * time.Nanosecond, 1 << 32 * time.Nanosecond // bounds of the first bucket and the last but one

// buckets returns the number of calls, and for each bound in seconds, the number of calls that took
// at most as long.
func buckets(all []rpc.Took) (count uint64, below map[float64]uint64) {
	below = map[float64]uint64{}
	for bound := least; bound <= most; bound *= 2 {
		for ; len(all) > 0 && all[0].Most <= bound; all = all[1:] {
			count += all[0].Calls
		}
		below[bound.Seconds()] = count
	}
	for _, t := range all {
		count += t.Calls
	}
	return count, below
}
