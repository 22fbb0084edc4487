// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
)

// EdgeStats are the figures of one edge. For an edge between two groups, each has the figures of
// its end.
type EdgeStats struct {
	Group     string `json:"group,omitempty"` // that has these figures; empty without groups
	Edge      int    `json:"edge"`            // its number in declaration order
	From      string `json:"from"`            // names of the nodes
	To        string `json:"to"`
	Back      bool   `json:"back,omitempty"`      // a feedback edge
	Transport string `json:"transport,omitempty"` // "local", or that of the link; empty while there is none

	// Of the sender's end.

	Sent    uint64 `json:"sent"`            // items that have left the sender
	Bytes   uint64 `json:"bytes,omitempty"` // of these, encoded; 0 for a local edge
	Batches uint64 `json:"batches"`         // in which they left
	Waits   uint64 `json:"waits"`           // how often the sender has waited for credit, on any of its edges
	Size    int    `json:"size,omitempty"`  // how many items the sender, a source, will send, if [Size] says that

	// Of the receiver's end.

	Received uint64 `json:"received"` // items that have come
	// Waiting is how many of these the consumer has not taken. In the first call of Stats it may
	// count items that a busy consumer has taken since it last waited.
	Waiting uint64 `json:"waiting"`
	// Oldest is how long the oldest waiting item has waited at least. It is measured between calls
	// of Stats, so it is zero in the first one.
	Oldest  time.Duration `json:"oldest"`
	Dropped uint64        `json:"dropped,omitempty"` // items for the consumer, on any of its edges, after it had ended
	Ended   bool          `json:"ended,omitempty"`
}

// LogValue returns the figures for package slog.
func (s EdgeStats) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Int("edge", s.Edge), slog.String("from", s.From), slog.String("to", s.To), slog.String("transport", s.Transport),
		slog.Uint64("sent", s.Sent), slog.Uint64("received", s.Received), slog.Uint64("waiting", s.Waiting),
		slog.Uint64("batches", s.Batches), slog.Uint64("bytes", s.Bytes), slog.Uint64("waits", s.Waits), slog.Duration("oldest", s.Oldest))
}

// Stats returns the figures of the edges of the runs under way in this process, in declaration
// order. It takes no time of the nodes.
func (g *Graph) Stats() []EdgeStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []EdgeStats
	for r := range g.runs {
		all = append(all, r.stats()...)
	}
	return all
}

// stats returns the figures of the run's edges.
func (r *run) stats() []EdgeStats {
	es := make([]EdgeStats, len(r.plan.Edges))
	transports := r.transports()
	for i, e := range r.plan.Edges {
		es[i] = EdgeStats{Group: r.group, Edge: i, From: e.From.Name, To: e.To.Name, Back: e.IsBack, Transport: cmp.Or(transports[i], "local")}
	}
	for _, n := range r.nodes {
		if n != nil {
			n.receiver().stats(es)
			n.sender().stats(es)
		}
	}
	isElsewhere := func(s EdgeStats) bool {
		e := r.plan.Edges[s.Edge]
		return !r.isMine(e.From) && !r.isMine(e.To)
	}
	return slices.DeleteFunc(es, isElsewhere)
}

// transports returns the transports of the edges that lead to other groups, or "none".
func (r *run) transports() map[int]string {
	if r.remote == nil {
		return nil
	}
	byPeer := map[rocl.GID]string{}
	for _, route := range r.remote.c.Routes() {
		byPeer[route.Peer] = route.Transport
	}
	all := map[int]string{}
	for i, x := range r.remote.edges {
		if x != nil {
			all[i] = cmp.Or(byPeer[r.remote.peerOf(x).Context()], "none")
		}
	}
	return all
}

// A mark says when a channel had received so many items.
type mark struct {
	received uint64
	at       time.Time
}

// mostMarks limits the marks of a channel.
const mostMarks = 64

// oldest returns how long the oldest item has waited at least of those that were received and not
// taken. It is called with the inbox's mu held.
func (i *input) oldest(received, taken uint64, now time.Time) (d time.Duration) {
	i.marks = slices.DeleteFunc(i.marks, func(m mark) bool { return m.received <= taken })
	if len(i.marks) > 0 {
		d = now.Sub(i.marks[0].at)
	}
	if received > taken && len(i.marks) < mostMarks && (len(i.marks) == 0 || i.marks[len(i.marks)-1].received < received) {
		i.marks = append(i.marks, mark{received, now})
	}
	return d
}

// stats implements receiver.
func (in *inbox[T]) stats(es []EdgeStats) {
	now := time.Now()
	in.mu.Lock()
	defer in.mu.Unlock()
	for k, i := range in.inputs {
		s, ch := &es[i.edge.Index], &in.state.Ch[k]
		s.Received, s.Ended, s.Dropped = ch.Items, ch.Ended, in.dropped
		i.asked.Store(true)
		if taken := max(i.seen.Load(), i.told.Load()); !in.isClosed && ch.Items > taken {
			s.Waiting = ch.Items - taken
			s.Oldest = i.oldest(ch.Items, taken, now)
		}
		if s.Transport == "local" {
			s.Sent, s.Batches = ch.Items, i.batches
		}
	}
}

// A leaving counts what leaves the group on an edge.
type leaving struct{ items, batches atomic.Uint64 }

// count counts a batch.
func (l *leaving) count(items int) {
	l.items.Add(uint64(items))
	l.batches.Add(1)
}

// stats implements sender.
func (o *outbox[T]) stats(es []EdgeStats) {
	for _, out := range o.outputs {
		s := &es[out.edge.Index]
		s.Waits, s.Size = o.waits.Load(), o.items
		if out.wire != nil {
			s.Sent, s.Batches = out.left.items.Load(), out.left.batches.Load()
			if w, ok := out.wire.(interface{ sentBytes() uint64 }); ok {
				s.Bytes = w.sentBytes()
			}
		}
	}
}

// LogStats lets Run log the figures of each edge at level info, every so often and at the end.
func LogStats(l *slog.Logger, every time.Duration) RunOption {
	return func(o *runOptions) { o.log, o.every = l, every }
}

// logStats logs the figures until stop is called.
func (r *run) logStats(l *slog.Logger, every time.Duration) (stop func()) {
	log := func() {
		for _, s := range r.stats() {
			// Cause: the program asks for the figures of each edge by `LogStats`. Remedy: none is
			// needed. An edge whose `oldest` grows has a receiver that is too slow or stands
			// still.
			l.Info("dataflow: edge", "graph", r.plan.Name, "run", r.cfg.Run, "group", r.group, "stats", s)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(max(every, time.Millisecond))
		defer t.Stop()
		for {
			select {
			case <-t.C:
				log()
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
		log()
	}
}

// StatusMatch returns the attributes of the resources by which the groups of runs tell their
// figures. Their other attributes are "graph", "run" and "group". The reply to a call with tag 0 is
// a [Status] in JSON.
func StatusMatch() rocl.Match { return rocl.Match{"type": resourceType, "status": "json"} }

// A Status is what one group of a run tells.
type Status struct {
	Graph string      `json:"graph"`
	Run   string      `json:"run"`
	Group string      `json:"group"`
	Host  string      `json:"host"` // on which the group runs
	PID   int         `json:"pid"`  // of its process
	Edges []EdgeStats `json:"edges"`
}

// replyStatus answers a question for the figures.
func (m *remote) replyStatus(at *reception, question *rocl.Message) {
	host, _ := os.Hostname()
	b, _ := json.Marshal(Status{m.r.plan.Name, m.r.cfg.Run, m.r.group, host, os.Getpid(), m.r.stats()}) // cannot fail
	_ = at.res.ReplyBytes(m.ctx, question, b)                                                           // the caller may be gone
}
