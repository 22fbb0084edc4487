// SPDX-License-Identifier: Apache-2.0

package promrpc

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rocl-go/rocl/rpc"
)

// Clients counts the calls that clients make. It is a prometheus.Collector. One Clients serves any
// number of clients, whose figures are added. Its methods may be called concurrently.
type Clients struct {
	running  *prometheus.GaugeVec
	errors   *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewClients returns a Clients without calls.
func NewClients() *Clients {
	labels := []string{"call"}
	return &Clients{
		running:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rocl_rpc_client_running", Help: "Calls that wait for their result."}, labels),
		errors:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rocl_rpc_client_errors_total", Help: "Calls that have failed."}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "rocl_rpc_client_duration_seconds", Help: "Time from a call to its return.", Buckets: prometheus.ExponentialBuckets(least.Seconds(), 2, 23)}, labels),
	}
}

// Interceptor returns an interceptor for rpc.CallInterceptors. It reads the clock twice in each
// call. Each attempt of a call with a policy counts as a call. The program must bound the number of
// different names of calls, since their series are kept.
func (c *Clients) Interceptor() rpc.Interceptor {
	return func(ctx context.Context, i *rpc.Invocation, next func(context.Context) error) error {
		running, errors, began, isOK := c.running.WithLabelValues(i.Name), c.errors.WithLabelValues(i.Name), time.Now(), false
		running.Inc()
		defer func() { // also after a panic
			running.Dec()
			c.duration.WithLabelValues(i.Name).Observe(time.Since(began).Seconds())
			if !isOK {
				errors.Inc()
			}
		}()
		err := next(ctx)
		isOK = err == nil
		return err
	}
}

// Describe sends the descriptions of the metrics.
func (c *Clients) Describe(ch chan<- *prometheus.Desc) {
	c.running.Describe(ch)
	c.errors.Describe(ch)
	c.duration.Describe(ch)
}

// Collect sends the metrics as they are.
func (c *Clients) Collect(ch chan<- prometheus.Metric) {
	c.running.Collect(ch)
	c.errors.Collect(ch)
	c.duration.Collect(ch)
}
