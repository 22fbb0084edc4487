// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// traceCodes has the strategies of traced searches at their codes on the wire. A traced search with
// Auto goes as any search does. With another strategy it asks all members, whatever their summaries
// say.
var traceCodes = [...]strategy.Strategy{strategy.Auto, strategy.Tree, strategy.Unicast, strategy.Broadcast}

// A Trace tells how one search went, as the asking node saw it. Some nodes were asked by other
// nodes on behalf of the asking one. For these the Trace has the numbers that the other nodes
// reported.
type Trace struct {
	Node     resource.NodeID   `json:"node"`             // the asking node
	Strategy string            `json:"way"`              // the search strategy
	Found    resource.GID      `json:"found,omitzero"`   // a resource that matches
	Covered  int               `json:"covered"`          // nodes that answered, including the asking one
	Failed   []resource.NodeID `json:"failed,omitempty"` // nodes that could not be asked
	Took     time.Duration     `json:"took_ns"`          // of the whole search

	Sent     int `json:"sent"`     // messages that the asking node sent
	Received int `json:"received"` // messages that it received
	// Messages is a lower bound for the whole cluster: a question and an answer for each node below
	// another.
	Messages int `json:"messages"`

	Steps []TraceStep `json:"steps"`
	More  int         `json:"more,omitempty"` // steps that are left out because there were too many
}

// A TraceStep is one question to one node.
type TraceStep struct {
	Node resource.NodeID `json:"node"`
	How  string          `json:"how"` // one of local, summary, tree, unicast, broadcast
	// Members is the number of nodes that the question was to cover, including the asked one.
	Members int           `json:"members"`
	Asked   time.Duration `json:"asked_ns"`          // since the search began
	Took    time.Duration `json:"took_ns,omitempty"` // until the answer
	// Outcome is found, none, or silent (no answer in time). It is empty if the search ended
	// before.
	Outcome string       `json:"outcome,omitempty"`
	Found   resource.GID `json:"found,omitzero"`
	Covered int          `json:"covered,omitempty"` // for none: nodes that have nothing that matches
	Failed  int          `json:"failed,omitempty"`  // for none: nodes that could not be asked
}

// trace answers a question for a trace. Unlike find it also asks the other members when this node
// has what matches, because a trace is to show them.
func (s *Server) trace(ctx context.Context, c *wire.Conn, m *wire.Message) error {
	p := m.Parser()
	code := int(p.Take(1)[0])
	l, err := p.List()
	if err != nil {
		return err
	}
	if code >= len(traceCodes) {
		return fmt.Errorf("%w: code %d of a search strategy", ErrProtocol, code)
	}
	by := traceCodes[code]
	begun := time.Now()
	here := TraceStep{Node: s.id.Node, How: "local", Members: 1, Outcome: "none", Covered: 1}
	r, ok, err := s.patiently(ctx, func() (resource.Record, bool) { return s.db.Find(&l) })
	if err != nil {
		return err // cut short by the end of this server: the client asks the next one
	}
	if ok {
		here.Outcome, here.Found, here.Covered = "found", r.ID, 0
	}
	here.Took = time.Since(begun)
	var t Trace
	if remote := s.rest(); remote != nil {
		if t, err = remote.Trace(ctx, by, &l); err != nil {
			return c.SendError(m.ID, err)
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
		return c.SendError(m.ID, fmt.Errorf("directory: telling of a search: %w", err))
	}
	if len(b) > wire.MaxBody {
		return c.SendError(m.ID, fmt.Errorf("directory: telling of a search: %d bytes are too many", len(b)))
	}
	c.Begin(wire.MsgTraced, m.ID)
	c.Append(b)
	return c.Send()
}

// Trace searches for a resource that matches, by a search strategy, and returns how the search
// went. It is no error if nothing matches.
func (c *Client) Trace(ctx context.Context, by strategy.Strategy, pattern *resource.List) (Trace, error) {
	var t Trace
	code := slices.Index(traceCodes[:], by)
	if code < 0 {
		return t, fmt.Errorf("directory: trace: unknown search strategy %d", uint8(by))
	}
	err := c.over(ctx, func(a *askConn) error {
		b, err := a.exchange(ctx, wire.MsgTrace, wire.MsgTraced, func(b *wire.Builder) {
			b.Append([]byte{byte(code)})
			b.Append(pattern.Wire())
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
