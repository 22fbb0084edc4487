// SPDX-License-Identifier: Apache-2.0

// Package observe gathers what the contexts of a node or a cluster tell about themselves, and
// compares what they told one after another. The commands rocl top, rocl waits and rocl record show
// it, and so do the page and the metrics of dirserver.
//
// A context chooses what it tells. So [View.Clean] cuts texts, quotes the characters that would
// control a terminal, shortens lists and limits numbers. All texts of this package are safe on a
// terminal. A page must still escape its own syntax.
package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/resource"
)

// A View is what a node, or a cluster, has at one moment.
type View struct {
	Taken    time.Time `json:"taken"`    // when the contexts were asked
	Contexts []Context `json:"contexts"` // by identifier
	Nodes    []Node    `json:"nodes"`    // by identifier; without the cluster only the node that was asked
}

// A Context is what one context told. Only Context and PID of the snapshot are set if it told
// nothing. Those two are of the directory.
type Context struct {
	rocl.Snapshot
	Silent string `json:"silent,omitempty"` // why there is no snapshot
}

// A Node is a node of the cluster.
type Node struct {
	ID    resource.NodeID `json:"id"`
	Name  string          `json:"name,omitempty"`  // the name of the machine, and the labels
	Addr  string          `json:"addr,omitempty"`  // HOST:PORT in the cluster
	Error string          `json:"error,omitempty"` // why the node could not be asked
}

// A teller asks a context what goes on in it.
type teller interface {
	SnapshotOf(ctx context.Context, id rocl.GID) (rocl.Snapshot, error)
}

// Gather asks every context of c's node at the same time, without c itself, and with isCluster the
// other nodes. A context that has not answered within limit is Silent. Gather fails if the
// directory of c's node does not answer within limit. It may be called concurrently.
func Gather(ctx context.Context, c *rocl.Context, isCluster bool, limit time.Duration) (*View, error) {
	v := &View{Taken: time.Now()}
	ctx, cancel := context.WithDeadline(ctx, v.Taken.Add(limit))
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	var covered rocl.Coverage
	found := 0
	var err error
	for f, ferr := range c.FindAll(ctx, rocl.Match{rocl.AttrKind: "context"}, rocl.Covered(&covered)) {
		if err = ferr; err != nil {
			break
		}
		found++
		if f.ID == c.ID() || f.ID.Node() != c.ID().Node() {
			continue
		}
		asked.Go(func() {
			t := tell(ctx, c, &f)
			mu.Lock()
			defer mu.Unlock()
			v.Contexts = append(v.Contexts, t)
		})
	}
	asked.Wait()
	v.Nodes = nodes(ctx, c, isCluster)
	if err != nil && found == 0 {
		return nil, fmt.Errorf("observe: find the contexts of the node: %w", err)
	}
	v.Clean()
	return v, nil
}

// nodes returns c's node, or all nodes of the cluster.
func nodes(ctx context.Context, c *rocl.Context, isCluster bool) (all []Node) {
	var covered rocl.Coverage
	if !isCluster {
		if f, err := c.Lookup(ctx, resource.MakeGID(c.ID().Node(), 0, 0)); err == nil {
			all = append(all, newNode(&f))
		}
		return all
	}
	for f, err := range c.FindAll(ctx, rocl.Match{rocl.AttrKind: "node"}, rocl.Covered(&covered)) {
		if err != nil {
			break
		}
		all = append(all, newNode(&f))
	}
	for _, id := range covered.Failed {
		all = append(all, Node{ID: id, Error: "no answer"})
	}
	return all
}

func newNode(f *rocl.Found) Node {
	return Node{ID: f.ID.Node(), Name: nameOf(&f.Attrs), Addr: f.Attrs.GetString(rocl.AttrAddr)}
}

// tell asks the context f for its snapshot.
func tell(ctx context.Context, c *rocl.Context, f *rocl.Found) Context {
	t := Context{}
	s, err := rocl.Snapshot{}, errors.New("not supported")
	if a, ok := any(c).(teller); ok {
		s, err = a.SnapshotOf(ctx, f.ID)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		t.Silent = "no answer"
	case err != nil:
		t.Silent = err.Error()
	default:
		t.Snapshot = s
	}
	t.Context = f.ID
	t.PID, _ = strconv.Atoi(f.Attrs.GetString(rocl.AttrPID))
	return t
}

// nameOf returns the name of the machine of a node, and the node's labels.
func nameOf(a *rocl.List) string {
	name := a.GetString(rocl.AttrHost)
	for label, value := range a.All() {
		if !strings.HasPrefix(label, "rocl.") {
			name += " " + label + "=" + string(value)
		}
	}
	return name
}

// The limits of what Clean keeps.
const (
	maxText     = 256     // characters of a text
	maxEntries  = 20_000  // of a list
	maxSelected = 64      // origins or tags of a receive
	maxContexts = 100_000 // of a view
	maxNumber   = 1 << 56 // of a count, of bytes and of nanoseconds
)

// Clean makes the values of a view safe to show and to compute with. Gather does so. Clean is for
// the reader of a view from a file.
func (v *View) Clean() {
	v.Contexts, v.Nodes = cut(v.Contexts, maxContexts), cut(v.Nodes, maxContexts)
	slices.SortFunc(v.Contexts, func(a, b Context) int { return a.Context.Compare(b.Context) })
	v.Contexts = slices.CompactFunc(v.Contexts, func(a, b Context) bool { return a.Context == b.Context })
	for i := range v.Contexts {
		v.Contexts[i].clean(v.Taken)
	}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		texts(&n.Name, &n.Addr, &n.Error)
	}
}

func (c *Context) clean(now time.Time) {
	texts(&c.Silent, &c.Program, &c.Rocl)
	c.Context, c.PID, c.Memory = c.Context.Context(), max(c.PID, 0), min(c.Memory, maxNumber)
	c.Started, c.Taken = moment(c.Started, now), moment(c.Taken, now)
	c.Resources = cut(slices.DeleteFunc(c.Resources, func(r rocl.ResourceSnapshot) bool { return r.Resource.Context() != c.Context }), maxEntries)
	for i := range c.Resources {
		r := &c.Resources[i]
		texts(&r.Name)
		r.Messages, r.Bytes, r.Limit = number(r.Messages), min(r.Bytes, maxNumber), min(r.Limit, maxNumber)
		r.Received, r.Arrived = min(r.Received, maxNumber), min(r.Arrived, maxNumber)
		r.Waits, r.Senders, r.Handlers = cut(r.Waits, maxEntries), cut(r.Senders, maxEntries), cut(r.Handlers, maxEntries)
		for j := range r.Waits {
			w := &r.Waits[j]
			w.From, w.Tags = cut(w.From, maxSelected), cut(w.Tags, maxSelected)
		}
		for j := range r.Senders {
			r.Senders[j].Bytes = min(r.Senders[j].Bytes, maxNumber)
		}
		for j := range r.Handlers {
			h := &r.Handlers[j]
			texts(&h.Name)
			h.Running, h.Oldest = number(h.Running), number(h.Oldest)
			h.Ended, h.Errors = min(h.Ended, maxNumber), min(h.Errors, maxNumber)
		}
	}
	c.Sends, c.Calls, c.Links = cut(c.Sends, maxEntries), cut(c.Calls, maxEntries), cut(c.Links, maxEntries)
	for i := range c.Sends {
		c.Sends[i].Bytes = min(c.Sends[i].Bytes, maxNumber)
	}
	for i := range c.Calls {
		texts(&c.Calls[i].Name)
	}
	for i := range c.Links {
		l := &c.Links[i]
		texts((*string)(&l.Lane), &l.Transport, &l.Remote, &l.Dialling, &l.State, &l.LastError)
		l.Since, l.Unacknowledged, l.Queued = moment(l.Since, now), number(l.Unacknowledged), number(l.Queued)
		for _, n := range []*uint64{&l.Changes, &l.Resumed, &l.Sent, &l.Received, &l.SentBytes, &l.ReceivedBytes} {
			*n = min(*n, maxNumber)
		}
	}
	left := map[string]int{}
	for list, n := range c.Cut {
		if len(left) < maxSelected {
			texts(&list)
			left[list] = number(n)
		}
	}
	if c.Cut = left; len(left) == 0 {
		c.Cut = nil
	}
}

// texts shortens and quotes texts.
func texts(all ...*string) {
	for _, s := range all {
		if len(*s) > maxText {
			*s = strings.ToValidUTF8((*s)[:maxText], "") + "…"
		}
		*s = display.Quote(*s)
	}
}

// number limits a number to those that are from 0 to maxNumber.
func number[N ~int | ~int64](n N) N { return N(min(max(int64(n), 0), maxNumber)) }

// moment returns t, or the zero time if t cannot be a time before now.
func moment(t, now time.Time) time.Time {
	if t.Year() < 1970 || t.After(now.Add(24*time.Hour)) {
		return time.Time{}
	}
	return t
}

func cut[E any](s []E, n int) []E { return s[:min(len(s), n)] }
