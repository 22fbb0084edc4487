// SPDX-License-Identifier: Apache-2.0

package promrocl

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rocl-go/rocl"
)

// The kinds of families say how the values of rows with the same labels become one.
type kind int

const (
	sum       kind = iota // a gauge: their sum
	longest               // a gauge: the largest
	counter               // the sum of what each has grown by, so that it does not fall when a row ends
	histogram             // likewise, with a value for each bucket and one for the sum
)

// A family is a metric with all its series.
type family struct {
	name, help string
	kind       kind
	labels     []string
	ofResource bool // it has the labels of Options, too
}

var families []*family

func newFamily(name, help string, k kind, labels ...string) *family {
	f := &family{name: "rocl_" + name, help: help, kind: k, labels: labels}
	families = append(families, f)
	return f
}

func ofContext(name, help string, k kind, labels ...string) *family {
	return newFamily(name, help, k, append([]string{"program", "pid"}, labels...)...)
}

func ofResource(name, help string, k kind, labels ...string) *family {
	f := ofContext(name, help, k, labels...)
	f.ofResource = true
	return f
}

var (
	contextsTotal = newFamily("contexts", "Contexts, by whether they answer.", sum, "state")
	leftOut       = newFamily("series_left_out", "Series that were added to those whose labels are other, because there are too many.", sum)

	silentSeconds = ofContext("context_silent_seconds", "How long a silent context has not answered, as far as was seen.", longest)
	memoryBytes   = ofContext("context_memory_bytes", "Memory that is mapped for messages and buffers.", sum)
	memoryLimit   = ofContext("context_memory_limit_bytes", "The most memory that may be mapped, if it is limited.", sum)
	sendsWaiting  = ofContext("context_sends_waiting", "Sends that wait for room in a mailbox.", sum)
	callsWaiting  = ofContext("context_calls_waiting", "Calls that wait for their reply.", sum)
	callWait      = ofContext("context_call_wait_seconds", "How long the longest call has waited for its reply, as far as was seen.", longest)
	undelivered   = ofContext("context_undelivered_total", "Messages that were accepted and not delivered.", counter)
	links         = ofContext("links", "Links to other contexts.", sum, "transport", "state")
	linkMessages  = ofContext("link_messages_total", "Messages over links.", counter, "transport", "direction")
	linkBytes     = ofContext("link_bytes_total", "Payload over links.", counter, "transport", "direction")
	linkChanges   = ofContext("link_changes_total", "Links that moved to another transport, or resumed after a broken connection.", counter, "change")
	linkFrames    = ofContext("link_unacknowledged_frames", "Frames that were sent and not acknowledged yet.", sum)

	mailboxMessages = ofResource("mailbox_messages", "Messages that wait to be received.", sum)
	mailboxBytes    = ofResource("mailbox_bytes", "Bytes of waiting messages, as they count against the limit.", sum)
	mailboxLimit    = ofResource("mailbox_limit_bytes", "Limits of the mailboxes.", sum)
	mailboxReceived = ofResource("mailbox_received_bytes_total", "Bytes that were received.", counter)
	mailboxStanding = ofResource("mailbox_standing_seconds", "How long messages have waited with none received, as far as was seen.", longest)
	mailboxReceives = ofResource("mailbox_receives_waiting", "Receives that wait for a message.", sum)
	mailboxSenders  = ofResource("mailbox_senders_waiting", "Contexts that wait for room in a mailbox.", sum)

	handlerCalls    = ofResource("handler_calls_total", "Handlers that have returned.", counter, "call")
	handlerErrors   = ofResource("handler_errors_total", "Handlers that have returned an error, or panicked.", counter, "call")
	handlerRunning  = ofResource("handler_running", "Handlers that run.", sum, "call")
	handlerOldest   = ofResource("handler_oldest_seconds", "How long the first of the running handlers has run.", longest, "call")
	handlerDuration = ofResource("handler_duration_seconds", "Time from the arrival of a request to the return of its handler.", histogram, "call")
)

// A collection has the figures of one moment, and what the next one needs of them. What a later
// collection does not find again is forgotten.
type collection struct {
	old *collection // nil when the collection is finished
	o   *Options
	now time.Time

	told     map[rocl.GID]*rocl.Snapshot // the last one of each context, also of silent ones
	silent   map[rocl.GID]time.Time      // since when a context has been silent
	standing map[rocl.GID]standing       // of mailboxes with messages
	calls    map[call]time.Time          // when each waiting call was seen first
	rows     map[row][]float64           // the values of counters and histograms
	series   map[string]*series
	left     map[string]bool // series that were left out
}

type standing struct {
	received uint64
	since    time.Time
}

type call struct {
	of     rocl.GID
	number uint64
}

// A row is where a counter comes from: a context, a resource or a part of one.
type row struct {
	family *family
	of     rocl.GID
	part   string
}

// A series has the values of all rows with the same labels.
type series struct {
	family *family
	labels []string
	values []float64
}

func newCollection(old *collection, o *Options, now time.Time) *collection {
	return &collection{
		old: old, o: o, now: now, told: map[rocl.GID]*rocl.Snapshot{}, silent: map[rocl.GID]time.Time{}, standing: map[rocl.GID]standing{},
		calls: map[call]time.Time{}, rows: map[row][]float64{}, series: map[string]*series{}, left: map[string]bool{},
	}
}

// finish adds what all contexts have in common. After it, nothing is added.
func (n *collection) finish() {
	n.put(contextsTotal, nil, float64(len(n.told)-len(n.silent)), "answering")
	n.put(contextsTotal, nil, float64(len(n.silent)), "silent")
	n.put(leftOut, nil, float64(len(n.left)))
	n.old, n.left = nil, nil
}

// firstOf returns when key was seen first.
func firstOf[K comparable](old, now map[K]time.Time, key K, t time.Time) time.Time {
	if first, ok := old[key]; ok {
		t = first
	}
	now[key] = t
	return t
}

// add adds a context. A silent one has the figures that it told last.
func (n *collection) add(c *Context) {
	id, s := c.Context, &c.Snapshot
	if c.Silent {
		if s = n.old.told[id]; s == nil {
			s = &rocl.Snapshot{Context: id, PID: c.PID, Program: c.Program}
		}
	}
	if n.told[id] != nil {
		return
	}
	n.told[id] = s
	own := []string{s.Program, strconv.Itoa(s.PID)}
	put := func(f *family, v float64, labels ...string) { n.put(f, own, v, labels...) }
	count := func(f *family, part string, v uint64, labels ...string) {
		n.count(f, row{f, id, part}, own, []float64{float64(v)}, labels...)
	}
	if c.Silent {
		put(silentSeconds, n.now.Sub(firstOf(n.old.silent, n.silent, id, n.now)).Seconds())
		if s.Version == 0 {
			return
		}
	}
	put(memoryBytes, float64(s.Memory))
	if limit := s.Stats.Buffers.Limit; limit > 0 && limit < math.MaxInt64 {
		put(memoryLimit, float64(limit))
	}
	put(sendsWaiting, float64(len(s.Sends)+s.Cut["sends"]))
	put(callsWaiting, float64(len(s.Calls)+s.Cut["calls"]))
	put(callWait, 0)
	for i := range s.Calls {
		put(callWait, n.now.Sub(firstOf(n.old.calls, n.calls, call{id, s.Calls[i].Number}, n.now)).Seconds())
	}
	count(undelivered, "", s.Stats.Undelivered)
	count(linkChanges, "moved", s.Stats.Moved, "moved")
	count(linkChanges, "resumed", s.Stats.Resumed, "resumed")
	for i := range s.Links {
		l := &s.Links[i]
		put(links, 1, l.Transport, l.State)
		part := l.Peer.String() + " " + string(l.Lane)
		if l.State == "local" {
			part += " local"
		}
		for _, d := range []struct {
			direction       string
			messages, bytes uint64
		}{{"sent", l.Sent, l.SentBytes}, {"received", l.Received, l.ReceivedBytes}} {
			count(linkMessages, d.direction+part, d.messages, l.Transport, d.direction)
			count(linkBytes, d.direction+part, d.bytes, l.Transport, d.direction)
		}
		put(linkFrames, float64(l.Unacknowledged))
	}
	for i := range s.Resources {
		n.addResource(&s.Resources[i], own)
	}
}

func (n *collection) addResource(r *rocl.ResourceSnapshot, context []string) {
	var further []string
	if n.o.Values != nil {
		further = make([]string, len(n.o.Labels))
		copy(further, n.o.Values(r))
	}
	put := func(f *family, v float64, labels ...string) { n.put(f, context, v, append(labels, further...)...) }
	count := func(f *family, part string, values []float64, labels ...string) {
		n.count(f, row{f, r.Resource, part}, context, values, append(labels, further...)...)
	}
	put(mailboxMessages, float64(r.Messages))
	put(mailboxBytes, float64(r.Bytes))
	put(mailboxLimit, float64(r.Limit))
	received := []float64{float64(r.Received)}
	if old := n.old.rows[row{mailboxReceived, r.Resource, ""}]; old != nil {
		received[0] = max(received[0], old[0]) // PutBack lets it fall
	}
	count(mailboxReceived, "", received)
	stands := standing{r.Received, n.now}
	if old := n.old.standing[r.Resource]; old.received == r.Received && !old.since.IsZero() {
		stands = old
	}
	if r.Messages > 0 {
		n.standing[r.Resource] = stands
		put(mailboxStanding, n.now.Sub(stands.since).Seconds())
	} else {
		put(mailboxStanding, 0)
	}
	put(mailboxReceives, float64(r.ReceivesWaiting()))
	put(mailboxSenders, float64(r.SendersWaiting()))
	for i := range r.Handlers {
		h := &r.Handlers[i]
		count(handlerCalls, h.Name, []float64{float64(h.Ended)}, h.Name)
		count(handlerErrors, h.Name, []float64{float64(h.Errors)}, h.Name)
		put(handlerRunning, float64(h.Running), h.Name)
		put(handlerOldest, h.Oldest.Seconds(), h.Name)
		if len(h.Took) > 0 {
			values := make([]float64, buckets+1)
			for i, v := range h.Took {
				values[min(i, buckets-1)] += float64(v)
			}
			values[buckets] = h.Total.Seconds()
			count(handlerDuration, h.Name, values, h.Name)
		}
	}
}

// buckets is the number of buckets of a histogram. The last one has no bound.
const buckets = 24

// of returns the series of a family with labels, those of its context first. If there are too many
// series it returns the one for all others.
func (n *collection) of(f *family, context, labels []string) *series {
	all := make([]string, 0, len(context)+len(labels))
	key := f.name
	for _, l := range append(append(all, context...), labels...) {
		if len(l) > maxLabel {
			l = l[:maxLabel]
		}
		l = strings.ToValidUTF8(l, "\uFFFD")
		all = append(all, l)
		key += "\xff" + l // which no valid text has
	}
	s := n.series[key]
	if s == nil && len(n.series) >= n.o.Series && context != nil {
		n.left[key] = true
		key = f.name
		for i := range all {
			all[i] = "other"
		}
		s = n.series[key]
	}
	if s == nil {
		s = &series{family: f, labels: all, values: make([]float64, 1)}
		if f.kind == histogram {
			s.values = make([]float64, buckets+1)
		}
		if old := n.old.series[key]; old != nil && f.kind >= counter {
			s.values = old.values
		}
		n.series[key] = s
	}
	return s
}

// maxLabel is the most bytes of a label's value.
const maxLabel = 256

// put adds a value of a gauge.
func (n *collection) put(f *family, context []string, v float64, labels ...string) {
	s := n.of(f, context, labels)
	if f.kind == longest {
		v = max(v, s.values[0])
	} else {
		v += s.values[0]
	}
	s.values[0] = v
}

// count adds by how much the values of a row have grown. Values that have fallen began anew. A row
// counts once.
func (n *collection) count(f *family, r row, context []string, values []float64, labels ...string) {
	if n.rows[r] != nil {
		return
	}
	s, old := n.of(f, context, labels), n.old.rows[r]
	for i, v := range values {
		if old != nil && v >= old[i] {
			v -= old[i]
		}
		s.values[i] += v
	}
	n.rows[r] = values
}

// send sends the series.
func (s *series) send(ch chan<- prometheus.Metric, d *prometheus.Desc) {
	switch s.family.kind {
	case sum, longest:
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, s.values[0], s.labels...)
	case counter:
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, s.values[0], s.labels...)
	case histogram:
		var n uint64
		below := make(map[float64]uint64, buckets-1)
		for i, v := range s.values[:buckets] {
			n += uint64(min(v, 1<<56))
			if i < buckets-1 {
				below[(time.Duration(1<<10) << i).Seconds()] = n
			}
		}
		ch <- prometheus.MustNewConstHistogram(d, n, s.values[buckets], below, s.labels...)
	}
}
