// SPDX-License-Identifier: Apache-2.0

// Package promrocl shows the figures of contexts in Prometheus.
//
//	registry.MustRegister(promrocl.New(c))
//
// The daemon dirserver exports the same metrics of all contexts of its node. A program whose node
// is scraped needs this package only if nothing may ask its contexts.
//
// The metrics have the labels "program", the name of the executable, and "pid", except for
// rocl_contexts and rocl_series_left_out. The figures of a process's contexts are added, and of
// seconds the longest counts:
//
//	rocl_contexts{state}                            contexts that answer, and that are silent
//	rocl_context_silent_seconds                     how long a silent context has not answered, as far as was seen
//	rocl_context_memory_bytes                       memory that is mapped for messages and buffers
//	rocl_context_memory_limit_bytes                 the most that it may be, if it is limited
//	rocl_context_sends_waiting                      sends that wait for room in a mailbox
//	rocl_context_calls_waiting                      calls that wait for their reply
//	rocl_context_call_wait_seconds                  how long the longest has waited, as far as was seen
//	rocl_context_undelivered_total                  messages that were accepted and not delivered
//	rocl_links{transport,state}                     links to other contexts
//	rocl_link_messages_total{transport,direction}   messages over links
//	rocl_link_bytes_total{transport,direction}      payload over links
//	rocl_link_changes_total{change}                 links that moved to another transport, or resumed after a broken connection
//	rocl_link_unacknowledged_frames                 frames that were sent and not acknowledged yet
//
// The metrics of mailboxes and handlers also have the labels of [Options]:
//
//	rocl_mailbox_messages                           messages that wait to be received
//	rocl_mailbox_bytes                              their bytes, as they count against the limit
//	rocl_mailbox_limit_bytes                        the limits of the mailboxes
//	rocl_mailbox_received_bytes_total               bytes that were received
//	rocl_mailbox_standing_seconds                   how long messages have waited with none received, as far as was seen
//	rocl_mailbox_receives_waiting                   receives that wait for a message
//	rocl_mailbox_senders_waiting                    contexts that wait for room
//	rocl_handler_calls_total{call}                  handlers that have returned
//	rocl_handler_errors_total{call}                 handlers that have returned an error, or panicked
//	rocl_handler_running{call}                      handlers that run
//	rocl_handler_oldest_seconds{call}               how long the first of them has run
//	rocl_handler_duration_seconds{call}             histogram of package rpc: from the request's arrival to the handler's return
//
// The histogram has a bucket for each power of two from 1.024 µs to 4.3 s.
//
// What is longer than Options.Series would allow is added to series whose labels are all "other":
//
//	rocl_series_left_out                            series that were added to others
package promrocl

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rocl-go/rocl"
)

// A Context is what a collector shows of one context.
type Context struct {
	rocl.Snapshot
	Silent bool // the context does not answer: of the snapshot only Context, PID and Program count
}

// Options are the options of [NewOf]. The zero value has the defaults.
type Options struct {
	// Labels are the names of further labels of mailboxes and handlers, and Values returns their
	// values for a resource. Figures of resources with the same values are added.
	Labels []string
	Values func(*rocl.ResourceSnapshot) []string

	Series int // limit of series with labels of contexts and resources; 0: 10,000
}

// New returns a collector of the figures of contexts of this program, as they are when they are
// collected. It leaves out contexts that are nil.
func New(contexts ...*rocl.Context) prometheus.Collector {
	own := slices.DeleteFunc(slices.Clone(contexts), func(c *rocl.Context) bool { return c == nil })
	return NewOf(func() (all []Context, err error) {
		for _, c := range own {
			all = append(all, Context{Snapshot: c.Snapshot()})
		}
		return all, nil
	}, Options{})
}

// NewOf returns a collector of the figures of the contexts that gather returns, such as all those
// of a node. The collector calls gather, one call at a time, when the metrics are collected. It
// passes on an error of gather, and then has no figures. Texts in snapshots become the values of
// labels: gather must make them safe to show if they come from other programs.
func NewOf(gather func() ([]Context, error), o Options) prometheus.Collector {
	if o.Series <= 0 {
		o.Series = 10_000
	}
	if o.Values == nil {
		o.Labels = nil
	}
	c := &collector{gather: gather, o: o, descs: map[*family]*prometheus.Desc{}}
	for _, f := range families {
		labels := slices.Clone(f.labels)
		if f.ofResource {
			labels = append(labels, o.Labels...)
		}
		c.descs[f] = prometheus.NewDesc(f.name, f.help, labels, nil)
	}
	return c
}

// A collector implements prometheus.Collector.
type collector struct {
	gather func() ([]Context, error)
	o      Options
	descs  map[*family]*prometheus.Desc

	mu   sync.Mutex
	last collection // guarded by mu
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	contexts, err := c.gather()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.descs[contextsTotal], err)
		return
	}
	n := newCollection(&c.last, &c.o, time.Now())
	for i := range contexts {
		n.add(&contexts[i])
	}
	n.finish()
	c.last = *n
	for _, s := range n.series {
		s.send(ch, c.descs[s.family])
	}
}
