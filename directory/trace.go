// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// traceCodes are the strategies of traced searches by their codes on the wire. A traced search with Auto goes
// as any search does; with another strategy it asks all members, whatever their summaries say.
var traceCodes = [...]strategy.Strategy{strategy.Auto, strategy.Tree, strategy.Unicast, strategy.Broadcast}

// A Trace tells how one search went, as the asking node saw it: of nodes that
// other nodes asked for it, it has the numbers those told.
type Trace struct {
	Node     resource.NodeID   `json:"node"`             // who asked
	Strategy string            `json:"way"`              // how
	Found    resource.GID      `json:"found,omitzero"`   // a resource that matches
	Covered  int               `json:"covered"`          // nodes that said something, the asking one among them
	Failed   []resource.NodeID `json:"failed,omitempty"` // nodes that could not be asked
	Took     time.Duration     `json:"took_ns"`

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
	code := int(p.take(1)[0])
	l, err := p.list()
	if err != nil {
		return err
	}
	if code >= len(traceCodes) {
		return fmt.Errorf("%w: code %d of a search strategy", ErrProtocol, code)
	}
	by := traceCodes[code]
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
		if t, err = remote.Trace(ctx, by, &l); err != nil {
			return c.sendError(m.id, err)
		}
		for i := range t.Steps {
			t.Steps[i].Asked += here.Took
		}
	}
	t.Node, t.Strategy, t.Took = s.id.Node, by.String(), time.Since(begun)
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

// Trace searches for a resource that matches, by a strategy, and tells how that went. Finding
// none is no error.
func (c *Client) Trace(ctx context.Context, by strategy.Strategy, pattern *resource.List) (Trace, error) {
	var t Trace
	code := slices.Index(traceCodes[:], by)
	if code < 0 {
		return t, fmt.Errorf("%w: %v", ErrProtocol, by)
	}
	err := c.over(ctx, func(a *askConn) error {
		b, err := a.exchange(ctx, msgTrace, msgTraced, func(k *codec) {
			k.bytes([]byte{byte(code)})
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
