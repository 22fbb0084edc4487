// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/histogram"
	"github.com/rocl-go/rocl/internal/version"
)

// newRegistry returns a registry of the metrics of w, the node's programs, the Go runtime and the
// process.
func newRegistry(w *watched) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{w})
	if w.programs != nil {
		reg.MustRegister(w.programs)
	}
	return reg
}

// A collector reads the values of all metrics when it is asked for them. The server, the cluster
// and the port count them. It implements prometheus.Collector.
type collector struct{ *watched }

// Describe sends nothing: Collect has the description of each metric beside its values.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the present values of all metrics. Without a cluster it leaves out those of the
// cluster.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	m := metrics(ch)
	m.gauge("build_info", "The build that runs; always 1.", 1, "version", version.String(), "goversion", runtime.Version())
	m.gauge("node_info", "The node that is served, and its cluster; always 1.", 1, "node", c.node(), "cluster", c.name)
	m.gauge("ready", "1 if /readyz says so.", map[bool]float64{true: 1}[c.served().OK && c.member().OK])
	m.directory(c.watched)
	if c.cluster != nil {
		if member := c.cluster(); member != nil {
			m.cluster(member.Stats())
		}
	}
}

// metrics receives metrics. The methods get the name without "rocl_", the help, and the labels,
// each as a name and a value.
type metrics chan<- prometheus.Metric

// pairs returns the description of a metric, and the values of its labels.
func pairs(name, help string, labels []string) (d *prometheus.Desc, values []string) {
	var names []string
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	return prometheus.NewDesc("rocl_"+name, help, names, nil), values
}

func (m metrics) gauge(name, help string, v float64, labels ...string) {
	d, values := pairs(name, help, labels)
	m <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, values...)
}

func (m metrics) count(name, help string, v uint64, labels ...string) {
	d, values := pairs(name, help, labels)
	m <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), values...)
}

// counts sends a count for each value of a label. The other labels are the same for all.
func (m metrics) counts(name, help, label string, of map[string]uint64, labels ...string) {
	for value, v := range of {
		m.count(name, help, v, append([]string{label, value}, labels...)...)
	}
}

// sizes sends a histogram, whose values are divided by unit.
func (m metrics) sizes(name, help string, h *histogram.Snapshot, unit float64, labels ...string) {
	below := make(map[float64]uint64, len(h.Bounds))
	for i, b := range h.Bounds {
		below[float64(b)/unit] = h.Below[i]
	}
	d, values := pairs(name, help, labels)
	m <- prometheus.MustNewConstHistogram(d, h.Count, float64(h.Sum)/unit, below, values...)
}

// seconds is the unit of histograms of durations.
const seconds = float64(time.Second)

// directory sends the metrics of the server.
func (m metrics) directory(w *watched) {
	s := w.server.Stats()
	m.gauge("directory_resources", "Resources that are registered, the node itself among them.", float64(s.Resources))
	m.gauge("directory_attribute_bytes", "Bytes of the attributes of all resources.", float64(s.AttributeBytes))
	m.gauge("directory_dead_bytes", "Bytes that resources have left behind, until they are compacted.", float64(s.DeadBytes))
	m.gauge("directory_image_bytes", "Memory of the index that contexts read in place; 0 if none has asked for it.", float64(s.IndexBytes))
	m.gauge("directory_contexts", "Contexts that are joined.", float64(s.Contexts))
	m.gauge("directory_connections", "Connections of contexts.", float64(s.Connections))
	m.gauge("directory_watches", "Watches there are, a member's own for its summary among them.", float64(s.Watches))
	m.count("directory_contexts_joined_total", "Contexts that have joined.", s.Joined)
	m.count("directory_contexts_ended_total", "Contexts that have ended.", s.Ended)
	m.counts("directory_changes_total", "What contexts did with their resources: registered, changed, deleted; refused: was not carried out.",
		"change", map[string]uint64{"registered": s.Registered, "changed": s.Changed, "deleted": s.Deleted, "refused": s.Refused})
	m.count("directory_lapsed_total", "Resources deleted because their context had ended.", s.Lapsed)
	m.count("directory_watches_begun_total", "Watches that were begun.", s.Watched)
	for i := range s.Questions {
		q := &s.Questions[i]
		m.counts("directory_questions_total", "Questions of contexts that came to the server, by kind (find, lookup, all, next) and outcome (found, none, partial, failed).",
			"outcome", map[string]uint64{"found": q.Found, "none": q.None, "partial": q.Partial, "failed": q.Failed}, "kind", q.Kind)
		m.sizes("directory_question_seconds", "How long contexts waited for the server's answer.", &q.Took, seconds, "kind", q.Kind)
	}
}

// cluster sends the metrics of the cluster and of the port.
func (m metrics) cluster(s cluster.Stats) {
	for state, n := range map[string]int{"alive": s.Alive, "away": s.Away, "dead": s.Dead} {
		m.gauge("cluster_members", "Members as this one sees them: alive (itself among them), away for a moment, or dead and looked for.", float64(n), "state", state)
	}
	m.gauge("cluster_refused", "Addresses at which a program refuses this member: it has another key, another name of the cluster or other certificates, or a firewall is between them.", float64(s.Refused))
	m.counts("cluster_member_events_total", "Other members that came (join), left, or died, as seen here.",
		"event", map[string]uint64{"join": s.Joins, "leave": s.Leaves, "death": s.Deaths})
	m.counts("cluster_join_failures_total", "Attempts to join that led nowhere: the name did not resolve, or no member answered.",
		"reason", map[string]uint64{"unresolved": s.Unresolved, "silent": s.NotJoined})
	m.gauge("cluster_health_score", "How much the member doubts its own view; 0 is well.", float64(s.Health))
	m.gauge("cluster_silence_seconds", "The longest for which a living member has not answered a probe over UDP.", s.Silence.Seconds())
	m.sizes("cluster_probe_seconds", "Round trips of the probes that were answered.", &s.Ping, seconds)
	m.gauge("cluster_keys", "Keys of the cluster; 0: nothing is sealed. More than 1: a rotation is under way.", float64(s.Keys))
	m.gauge("cluster_places", "Cursors kept for other members' questions with several answers.", float64(s.Cursors))
	for i := range s.Searches {
		q := &s.Searches[i]
		m.counts("cluster_searches_total", "Searches of this member, by the widest way they went (nobody, direct, summary, unicast, tree, broadcast) and outcome (found, none, partial, failed).",
			"outcome", map[string]uint64{"found": q.Found, "none": q.None, "partial": q.Partial, "failed": q.Failed}, "way", q.Strategy)
		m.sizes("cluster_search_seconds", "How long searches took.", &q.Took, seconds, "way", q.Strategy)
		m.sizes("cluster_search_messages", "Packets that this member sent for each of its searches.", &q.Messages, 1, "way", q.Strategy)
	}
	m.count("cluster_search_packets_sent_total", "Packets of searches sent, for other members' searches too.", s.Sent)
	m.counts("cluster_asked_total", "Questions of other members, by what this one had to say: found or none.",
		"outcome", map[string]uint64{"found": s.Answered, "none": s.Denied})

	f := &s.Filters
	m.gauge("filter_held_bytes", "Memory of all summaries that are held.", float64(f.Held))
	m.gauge("filter_members", "Members whose summary is held.", float64(f.Known))
	m.counts("filter_bytes_total", "Bytes of summaries sent and received.", "direction", map[string]uint64{"sent": f.SentBytes, "received": f.ReceivedBytes})
	m.counts("filter_messages_total", "Messages of summaries sent and received.", "direction", map[string]uint64{"sent": f.Sent, "received": f.Received})
	m.count("filter_asked_total", "Members asked because of their summary.", f.Asked)
	m.count("filter_wrong_total", "Members asked because of their summary that said no.", f.Wrong)
	m.count("filter_spared_total", "Members that were not asked because one with a fitting summary had the answer.", f.Spared)

	p := &s.Port
	const datagrams = "Datagrams: the directory's own (kind data; those received are those that opened) and memberlist's (gossip)."
	m.counts("port_datagrams_total", datagrams, "direction", map[string]uint64{"sent": p.Sent, "received": p.Received}, "kind", "data")
	m.counts("port_datagrams_total", datagrams, "direction", map[string]uint64{"sent": p.GossipSent, "received": p.GossipReceived}, "kind", "gossip")
	const bytes = "Bytes of these datagrams, and of what was too large for one."
	m.counts("port_bytes_total", bytes, "direction", map[string]uint64{"sent": p.SentBytes, "received": p.ReceivedBytes}, "kind", "data")
	m.counts("port_bytes_total", bytes, "direction", map[string]uint64{"sent": p.GossipSentBytes, "received": p.GossipReceivedBytes}, "kind", "gossip")
	m.counts("port_dropped_total", "What came and was dropped: foreign (of unknown senders, or forged), replayed, or gossip that came too fast.",
		"reason", map[string]uint64{"foreign": p.Foreign, "replayed": p.Replayed, "gossip": p.GossipDropped})
	m.counts("port_streams_total", "Streams of members, taken and refused.", "outcome", map[string]uint64{"taken": p.Streams, "refused": p.StreamsRefused})
	m.gauge("port_members", "Members the port can talk to.", float64(p.Members))
}
