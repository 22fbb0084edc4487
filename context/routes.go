// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// Protocol: Questions to a context
//
// Serial 0 answers a message of another context of the node with the tag 0x524f555445530001 by one
// with that tag: its routes, JSON as of `rocl routes --json`. Other messages are refused with Gone.

// A context answers questions about itself. Contexts of its own node send them to the resource that
// stands for the context. The tag says what is asked, and the answer has the same tag.
const (
	tagRoutes = 0x524f555445530001 // "ROUTES"; the answer is JSON

	maxQuestionBytes = 64 << 10 // limit of the mailbox for questions, in bytes

	// An answer that the asker does not receive is given up after answerTime. An asker with
	// maxAnswers answers under way gets no further ones. So an asker asks again after answerTime.
	answerTime = 5 * time.Second
	maxAnswers = 64
)

// Routes returns a route for each link of this context and each context of this process with which
// it communicates: the transport in use, and counts of what was sent. They are ordered by peer and
// lane.
func (c *Context) Routes() []dispatch.Route { return c.disp.Routes() }

// Explain adds to err, with which a wait for something of the resources ids has ended, why there is
// no connection with the context of one of them: the result is then a *[dispatch.NoConnectionError]
// that matches err. Explain returns err itself if err is nil, if there are connections, or if none
// is needed. The methods of this package explain their errors themselves. Explain is for programs
// that wait in another way, for what a goroutine that uses such a method does.
func (c *Context) Explain(err error, ids ...resource.GID) error { return c.disp.Explain(err, ids...) }

// RoutesOf returns the routes of another context of c's node, as [Context.Routes] does there. It
// asks that context, and waits for the answer until ctx ends. The link over which it asks is not
// among the routes. RoutesOf fails with rocl.ErrIdentifiers as [Context.Register] does. It is for
// the command rocl routes.
func RoutesOf(ctx stdctx.Context, c *Context, id resource.GID) ([]dispatch.Route, error) {
	if id = id.Context(); id == c.self {
		return c.Routes(), nil
	}
	routes, err := c.routesOf(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("rocl: ask context %v for its routes: %w", id, err)
	}
	return routes, nil
}

// routesOf asks another context of this node for its routes, until an answer comes. A question may
// stay without an answer: see answerTime.
func (c *Context) routesOf(ctx stdctx.Context, id resource.GID) ([]dispatch.Route, error) {
	c.questions.Add(1)
	if _, err := c.dir.Lookup(ctx, id, AttrKind); err != nil {
		return nil, c.wrap(err)
	}
	serial, box, err := c.newMailbox(0, 0, false)
	if err != nil {
		return nil, err
	}
	defer box.Close()
	f, err := c.disp.Flow(id, 0)
	if err != nil {
		return nil, err
	}
	for {
		m, err := question(ctx, f, box, serial, id)
		if err == nil {
			defer m.Release()
			var routes []dispatch.Route
			err = json.Unmarshal(m.Bytes(), &routes)
			return routes, err
		}
		if ctx.Err() != nil || !errors.Is(err, errTime) {
			return nil, err
		}
	}
}

// question asks the context id for its routes, over the flow f to it, and waits for the answer as
// long as the other context may be answering.
func question(ctx stdctx.Context, f *dispatch.Flow, box *dispatch.Mailbox, serial uint32, id resource.GID) (*dispatch.Message, error) {
	ctx, cancel := within(ctx, answerTime)
	defer cancel()
	ctx, end := stdctx.WithCancelCause(ctx)
	defer end(nil)
	stop, err := f.OnEnd(ctx, end)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := f.SendAndForget(ctx, serial, tagRoutes, nil); err != nil { // OnEnd tells of its loss
		return nil, err
	}
	return box.Recv(ctx, dispatch.From(id), dispatch.Tag(tagRoutes))
}

// answerQuestion handles a message to the resource that stands for the context. It reports whether
// the message is a question from a context of this node. A goroutine of its own sends the answer,
// because the asker may be slow and the next question may come from another context. A question of
// an asker with too many answers under way is dropped: the asker asks again.
func (c *Context) answerQuestion(m *dispatch.Message) bool {
	from := m.From()
	asker := from.Context()
	if m.Tag() != tagRoutes || asker.Node() != c.self.Node() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	if c.answers[asker] >= maxAnswers {
		c.cfg.logger.Debug("rocl: a question for routes was dropped", "from", from, "answers", maxAnswers)
		return true
	}
	c.answers[asker]++
	c.goroutines.Go(func() {
		c.answerRoutes(from)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.answers[asker]--; c.answers[asker] == 0 {
			delete(c.answers, asker)
		}
	})
	return true
}

// answerRoutes sends the routes of this context to the resource to, except the route to its
// context.
func (c *Context) answerRoutes(to resource.GID) {
	routes := slices.DeleteFunc(c.Routes(), func(r dispatch.Route) bool { return r.Peer == to.Context() })
	b, err := json.Marshal(routes)
	if err == nil {
		ctx, cancel := within(c.life, answerTime)
		defer cancel()
		var f *dispatch.Flow
		if f, err = c.disp.Flow(to.Context(), to.Serial()); err == nil {
			err = f.SendAndForget(ctx, 0, tagRoutes, b) // the asker may have gone
		}
	}
	if err != nil {
		c.cfg.logger.Debug("rocl: routes were not sent", "to", to, "err", err)
	}
}
