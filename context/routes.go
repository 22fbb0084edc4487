// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// A context answers questions about itself, from contexts of its own node, that
// are sent to the resource that stands for it. The tag says what is asked for,
// and the answer has it too.
const (
	tagRoutes = 0x524f555445530001 // "ROUTES"; the answer is JSON

	questionsMost = 64 << 10 // bytes of questions that wait

	// An answer that is not received is given up after answerTime. An asker with so many
	// answers under way gets no further ones.
	answerTime  = 5 * time.Second
	answersMost = 64
)

// Routes says over what this context talks to others, and what has gone there.
func (c *Context) Routes() []dispatch.Route { return c.disp.Routes() }

// RoutesOf asks another context of this node for its Routes; the link that this
// takes is not among them.
func (c *Context) RoutesOf(ctx stdctx.Context, id resource.GID) ([]dispatch.Route, error) {
	if id = id.Context(); id == c.self {
		return c.Routes(), nil
	}
	routes, err := c.routesOf(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("rocl: asking context %v for its routes: %w", id, err)
	}
	return routes, nil
}

func (c *Context) routesOf(ctx stdctx.Context, id resource.GID) (routes []dispatch.Route, err error) {
	if _, err := c.Lookup(ctx, id, AttrKind); err != nil {
		return nil, err
	}
	serial := c.serial.Add(1)
	box, err := c.disp.Mailbox(serial, 0)
	if err != nil {
		return nil, err
	}
	defer box.Close()
	f, err := c.disp.Flow(id, 0)
	if err == nil {
		err = f.SendBytes(ctx, serial, tagRoutes, nil)
	}
	if err != nil {
		return nil, err
	}
	m, err := box.Recv(ctx, dispatch.From(id), dispatch.Tag(tagRoutes))
	if err != nil {
		return nil, err
	}
	defer m.Release()
	return routes, json.Unmarshal(m.Bytes(), &routes)
}

// answering counts the answers under way, by asker.
type answering struct {
	mu sync.Mutex
	to map[resource.GID]int
}

// begin notes an answer to who, unless too many are under way.
func (a *answering) begin(who resource.GID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.to[who] >= answersMost {
		return false
	}
	if a.to == nil {
		a.to = map[resource.GID]int{}
	}
	a.to[who]++
	return true
}

func (a *answering) end(who resource.GID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.to[who]--; a.to[who] == 0 {
		delete(a.to, who)
	}
}

// answer answers what is sent to the context's own resource, if it is a question
// of one of this node. It does not wait for the asker to receive the answer: the
// next question may be another's.
func (c *Context) answer(m *dispatch.Message) bool {
	from := m.From()
	who := from.Context()
	if m.Tag() != tagRoutes || who.Node() != c.self.Node() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	if c.answering.begin(who) {
		c.busy.Go(func() {
			defer c.answering.end(who)
			c.tellRoutes(from)
		})
	}
	return true
}

func (c *Context) tellRoutes(to resource.GID) {
	routes := slices.DeleteFunc(c.Routes(), func(r dispatch.Route) bool { return r.Peer == to.Context() })
	b, err := json.Marshal(routes)
	if err == nil {
		ctx, cancel := stdctx.WithTimeout(c.life, answerTime)
		defer cancel()
		var f *dispatch.Flow
		if f, err = c.disp.Flow(to.Context(), to.Serial()); err == nil {
			err = f.SendBytes(ctx, 0, tagRoutes, b)
		}
	}
	if err != nil {
		c.cfg.logger.Debug("rocl: answering for routes", "to", to, "err", err)
	}
}
