// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

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
	r, ok, err := s.untilRecovered(ctx, func() (resource.Record, bool) { return s.db.Find(&l) })
	if err != nil {
		return err // cut short by the end of this server: the client asks the next one
	}
	if ok {
		here.Outcome, here.Found, here.Covered = "found", r.ID, 0
	}
	here.Took = time.Since(begun)
	var t Trace
	if remote := s.attachedRemote(); remote != nil {
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
