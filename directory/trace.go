// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/resource"
)

// A Way is how a traced search goes.
type Way uint8

// Ways.
const (
	WayAuto Way = iota // as any other does
	WayTree            // to everybody, whatever summaries say
	WayFlat            // to everybody, each node by itself: the trace shows every node
	WayCast            // to everybody with one packet; each by itself if the cluster cannot
	wayEnd
)

var ways = [wayEnd]search.Way{search.Auto, search.ByTree, search.Each, search.ByCast}

func (w Way) String() string {
	if int(w) < len(ways) {
		return ways[w].String()
	}
	return "unknown"
}

// ParseWay reads a search strategy as [search.ParseWay] does.
func ParseWay(s string) (Way, error) {
	w, err := search.ParseWay(s)
	return Way(max(slices.Index(ways[:], w), 0)), err
}

// A Trace tells how one search went, as the asking node saw it: of nodes that
// other nodes asked for it, it has the numbers those told.
type Trace struct {
	Node    resource.NodeID   `json:"node"`             // who asked
	Way     string            `json:"way"`              // how
	Found   resource.GID      `json:"found,omitzero"`   // a resource that matches
	Covered int               `json:"covered"`          // nodes that said something, the asking one among them
	Failed  []resource.NodeID `json:"failed,omitempty"` // nodes that could not be asked
	Took    time.Duration     `json:"took_ns"`

	Sent     int `json:"sent"`     // messages of the asking node
	Received int `json:"received"` // and to it
	Messages int `json:"messages"` // in the whole cluster, at least: a question and an answer for each node below another

	Steps []TraceStep `json:"steps"`
	More  int         `json:"more,omitempty"` // steps that were too many to tell
}

// A TraceStep is one question to one node.
type TraceStep struct {
	Node    resource.NodeID `json:"node"`
	How     string          `json:"how"`      // local, summary, tree, unicast, broadcast
	Members int             `json:"members"`  // nodes it was to cover, itself among them
	Asked   time.Duration   `json:"asked_ns"` // after the beginning
	Took    time.Duration   `json:"took_ns,omitempty"`
	Outcome string          `json:"outcome,omitempty"` // found, none, silent: nothing in time; or empty: the search was over before
	Found   resource.GID    `json:"found,omitzero"`
	Covered int             `json:"covered,omitempty"` // nodes that said no, of a none
	Failed  int             `json:"failed,omitempty"`  // nodes that could not be asked, likewise
}

// trace answers a question for a trace. Unlike Find it asks the others also
// when this node has what matches: who traces wants to see them.
func (s *Server) trace(ctx context.Context, c *codec, m *message) error {
	p := parser{b: m.body}
	way := Way(p.take(1)[0])
	l, err := p.list()
	if err != nil {
		return err
	}
	if way >= wayEnd {
		return fmt.Errorf("%w: way %d of searching", ErrProtocol, way)
	}
	begun := time.Now()
	here := TraceStep{Node: s.id.Node, How: "local", Members: 1, Outcome: "none", Covered: 1}
	r, ok, err := s.patiently(ctx, func() (database.Record, bool) { return s.db.Find(&l) })
	if err != nil {
		return err // cut short by our end: let the next server be asked
	}
	if ok {
		here.Outcome, here.Found, here.Covered = "found", r.ID, 0
	}
	here.Took = time.Since(begun)
	var t Trace
	if remote := s.rest(); remote != nil {
		if t, err = remote.Trace(ctx, way, &l); err != nil {
			return c.sendError(m.id, err)
		}
		for i := range t.Steps {
			t.Steps[i].Asked += here.Took
		}
	}
	t.Node, t.Way, t.Took = s.id.Node, way.String(), time.Since(begun)
	t.Covered++
	if ok {
		t.Found = r.ID
	}
	t.Steps = append([]TraceStep{here}, t.Steps...)
	b, err := json.Marshal(t)
	if err != nil {
		return c.sendError(m.id, fmt.Errorf("directory: telling of a search: %w", err))
	}
	if len(b) > maxBody-msgHead {
		return c.sendError(m.id, fmt.Errorf("directory: telling of a search: %d bytes are too many", len(b)))
	}
	c.begin(msgTraced, m.id)
	c.bytes(b)
	return c.send()
}

// Trace searches for a resource that matches and tells how that went. Finding
// none is no error.
func (c *Client) Trace(ctx context.Context, way Way, pattern *resource.List) (Trace, error) {
	var t Trace
	err := c.over(ctx, func(a *askConn) error {
		b, err := a.exchange(ctx, msgTrace, msgTraced, func(k *codec) {
			k.bytes([]byte{byte(way)})
			k.bytes(pattern.Wire())
		})
		if err == nil {
			if err = json.Unmarshal(b, &t); err != nil {
				err = fmt.Errorf("%w: %w", ErrProtocol, err)
			}
		}
		return err
	})
	return t, err
}
