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

// newRegistry returns a registry of the metrics of w, the Go runtime and the process.
func newRegistry(w *watched) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{w})
	return reg
}

// The metrics: name without "rocl_", help and labels. Their values are counted by the server, the
// cluster and the port, and read when the metrics are collected.
var (
	mBuild = describe("build_info", "The build that runs; always 1.", "version", "goversion")
	mNode  = describe("node_info", "The node that is served, and its cluster; always 1.", "node", "cluster")
	mReady = describe("ready", "1 if /readyz says so.")

	mResources  = describe("directory_resources", "Resources that are registered, the node itself among them.")
	mAttributes = describe("directory_attribute_bytes", "Bytes of the attributes of all resources.")
	mDead       = describe("directory_dead_bytes", "Bytes that resources have left behind, until they are compacted.")
	mImage      = describe("directory_image_bytes", "Memory of the index that contexts read in place; 0 if none has asked for it.")
	mContexts   = describe("directory_contexts", "Contexts that are joined.")
	mConns      = describe("directory_connections", "Connections of contexts.")
	mWatches    = describe("directory_watches", "Watches there are, a member's own for its summary among them.")
	mJoined     = describe("directory_contexts_joined_total", "Contexts that have joined.")
	mEnded      = describe("directory_contexts_ended_total", "Contexts that have ended.")
	mChanges    = describe("directory_changes_total", "What contexts did with their resources: registered, changed, deleted; refused: was not carried out.", "change")
	mLapsed     = describe("directory_lapsed_total", "Resources deleted because their context had ended.")
	mWatched    = describe("directory_watches_begun_total", "Watches that were begun.")
	mQuestions  = describe("directory_questions_total", "Questions of contexts that came to the server, by kind (find, lookup, all, next) and outcome (found, none, partial, failed).", "kind", "outcome")
	mQuestionS  = describe("directory_question_seconds", "How long contexts waited for the server's answer.", "kind")

	mMembers    = describe("cluster_members", "Members as this one sees them: alive (itself among them), away for a moment, or dead and looked for.", "state")
	mRefused    = describe("cluster_refused", "Addresses at which a program refuses this member: it has another key, another name of the cluster or other certificates, or a firewall is between them.")
	mEvents     = describe("cluster_member_events_total", "Other members that came (join), left, or died, as seen here.", "event")
	mAttempts   = describe("cluster_join_failures_total", "Attempts to join that led nowhere: the name did not resolve, or no member answered.", "reason")
	mHealth     = describe("cluster_health_score", "How much the member doubts its own view; 0 is well.")
	mSilence    = describe("cluster_silence_seconds", "The longest for which a living member has not answered a probe over UDP.")
	mPing       = describe("cluster_probe_seconds", "Round trips of the probes that were answered.")
	mKeys       = describe("cluster_keys", "Keys of the cluster; 0: nothing is sealed. More than 1: a rotation is under way.")
	mPlaces     = describe("cluster_places", "Cursors kept for other members' questions with several answers.")
	mSearches   = describe("cluster_searches_total", "Searches of this member, by the widest way they went (nobody, direct, summary, unicast, tree, broadcast) and outcome (found, none, partial, failed).", "way", "outcome")
	mSearchS    = describe("cluster_search_seconds", "How long searches took.", "way")
	mMessages   = describe("cluster_search_messages", "Packets that this member sent for each of its searches.", "way")
	mSearchSent = describe("cluster_search_packets_sent_total", "Packets of searches sent, for other members' searches too.")
	mAnswered   = describe("cluster_asked_total", "Questions of other members, by what this one had to say: found or none.", "outcome")

	mFilterHeld   = describe("filter_held_bytes", "Memory of all summaries that are held.")
	mFilterKnown  = describe("filter_members", "Members whose summary is held.")
	mFilterBytes  = describe("filter_bytes_total", "Bytes of summaries sent and received.", "direction")
	mFilterMsgs   = describe("filter_messages_total", "Messages of summaries sent and received.", "direction")
	mFilterAsked  = describe("filter_asked_total", "Members asked because of their summary.")
	mFilterWrong  = describe("filter_wrong_total", "Members asked because of their summary that said no.")
	mFilterSpared = describe("filter_spared_total", "Members that were not asked because one with a fitting summary had the answer.")

	mDatagrams = describe("port_datagrams_total", "Datagrams: the directory's own (kind data; those received are those that opened) and memberlist's (gossip).", "kind", "direction")
	mBytes     = describe("port_bytes_total", "Bytes of these datagrams, and of what was too large for one.", "kind", "direction")
	mDropped   = describe("port_dropped_total", "What came and was dropped: foreign (of unknown senders, or forged), replayed, or gossip that came too fast.", "reason")
	mStreams   = describe("port_streams_total", "Streams of members, taken and refused.", "outcome")
	mPeers     = describe("port_members", "Members the port can talk to.")
)

// all are the metrics of this package, in the order in which they are described.
var all []*prometheus.Desc

// describe adds a metric to all.
func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("rocl_"+name, help, labels, nil)
	all = append(all, d)
	return d
}

// collector reads the values of all metrics when it is asked for them. It implements
// prometheus.Collector.
type collector struct{ *watched }

// Describe sends the descriptions of all metrics.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range all {
		ch <- d
	}
}

// Collect sends the present values of all metrics. Without a cluster it leaves out those of the
// cluster.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	sizes := func(d *prometheus.Desc, h *histogram.Snapshot, unit float64, labels ...string) {
		below := make(map[float64]uint64, len(h.Bounds))
		for i, b := range h.Bounds {
			below[float64(b)/unit] = h.Below[i]
		}
		ch <- prometheus.MustNewConstHistogram(d, h.Count, float64(h.Sum)/unit, below, labels...)
	}
	const seconds = float64(time.Second)
	outcomes := func(d *prometheus.Desc, label string, found, none, partial, failed uint64) {
		count(d, found, label, "found")
		count(d, none, label, "none")
		count(d, partial, label, "partial")
		count(d, failed, label, "failed")
	}

	gauge(mBuild, 1, version.String(), runtime.Version())
	gauge(mNode, 1, c.node(), c.name)
	gauge(mReady, map[bool]float64{true: 1}[c.served().OK && c.member().OK])
	s := c.server.Stats()
	gauge(mResources, float64(s.Resources))
	gauge(mAttributes, float64(s.AttributeBytes))
	gauge(mDead, float64(s.DeadBytes))
	gauge(mImage, float64(s.IndexBytes))
	gauge(mContexts, float64(s.Contexts))
	gauge(mConns, float64(s.Connections))
	gauge(mWatches, float64(s.Watches))
	count(mJoined, s.Joined)
	count(mEnded, s.Ended)
	count(mChanges, s.Registered, "registered")
	count(mChanges, s.Changed, "changed")
	count(mChanges, s.Deleted, "deleted")
	count(mChanges, s.Refused, "refused")
	count(mLapsed, s.Lapsed)
	count(mWatched, s.Watched)
	for i := range s.Questions {
		q := &s.Questions[i]
		outcomes(mQuestions, q.Kind, q.Found, q.None, q.Partial, q.Failed)
		sizes(mQuestionS, &q.Took, seconds, q.Kind)
	}

	if c.cluster == nil {
		return
	}
	member := c.cluster()
	if member == nil {
		return
	}
	m := member.Stats()
	gauge(mMembers, float64(m.Alive), "alive")
	gauge(mMembers, float64(m.Away), "away")
	gauge(mMembers, float64(m.Dead), "dead")
	gauge(mRefused, float64(m.Refused))
	count(mEvents, m.Joins, "join")
	count(mEvents, m.Leaves, "leave")
	count(mEvents, m.Deaths, "death")
	count(mAttempts, m.Unresolved, "unresolved")
	count(mAttempts, m.NotJoined, "silent")
	gauge(mHealth, float64(m.Health))
	gauge(mSilence, m.Silence.Seconds())
	sizes(mPing, &m.Ping, seconds)
	gauge(mKeys, float64(m.Keys))
	gauge(mPlaces, float64(m.Cursors))
	for i := range m.Searches {
		q := &m.Searches[i]
		outcomes(mSearches, q.Strategy, q.Found, q.None, q.Partial, q.Failed)
		sizes(mSearchS, &q.Took, seconds, q.Strategy)
		sizes(mMessages, &q.Messages, 1, q.Strategy)
	}
	count(mSearchSent, m.Sent)
	count(mAnswered, m.Answered, "found")
	count(mAnswered, m.Denied, "none")
	f := &m.Filters
	gauge(mFilterHeld, float64(f.Held))
	gauge(mFilterKnown, float64(f.Known))
	count(mFilterBytes, f.SentBytes, "sent")
	count(mFilterBytes, f.ReceivedBytes, "received")
	count(mFilterMsgs, f.Sent, "sent")
	count(mFilterMsgs, f.Received, "received")
	count(mFilterAsked, f.Asked)
	count(mFilterWrong, f.Wrong)
	count(mFilterSpared, f.Spared)
	c.port(count, &m)
	gauge(mPeers, float64(m.Port.Members))
}

// port sends the metrics of the cluster's port.
func (c collector) port(count func(*prometheus.Desc, uint64, ...string), s *cluster.Stats) {
	p := &s.Port
	count(mDatagrams, p.Sent, "data", "sent")
	count(mDatagrams, p.Received, "data", "received")
	count(mDatagrams, p.GossipSent, "gossip", "sent")
	count(mDatagrams, p.GossipReceived, "gossip", "received")
	count(mBytes, p.SentBytes, "data", "sent")
	count(mBytes, p.ReceivedBytes, "data", "received")
	count(mBytes, p.GossipSentBytes, "gossip", "sent")
	count(mBytes, p.GossipReceivedBytes, "gossip", "received")
	count(mDropped, p.Foreign, "foreign")
	count(mDropped, p.Replayed, "replayed")
	count(mDropped, p.GossipDropped, "gossip")
	count(mStreams, p.Streams, "taken")
	count(mStreams, p.StreamsRefused, "refused")
}
