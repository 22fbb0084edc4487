// SPDX-License-Identifier: Apache-2.0

package context

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory"
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

// Questions asks other contexts of the node about themselves, and answers the questions of such
// contexts.
type Questions struct {
	dir  *Directory
	disp *dispatch.Dispatcher
	log  *slog.Logger

	mu      sync.Mutex
	answers map[resource.GID]int // answers under way, by the context that asked
}

// NewQuestions returns the questions of the context whose directory is dir, and lets disp answer
// those of other contexts.
func NewQuestions(dir *Directory, disp *dispatch.Dispatcher, log *slog.Logger) (*Questions, error) {
	q := &Questions{dir: dir, disp: disp, log: log, answers: map[resource.GID]int{}}
	return q, disp.Serve(0, maxQuestionBytes, q.answer)
}

// RoutesOf asks another context of this node for its routes, until an answer comes. A question may
// stay without an answer: see answerTime.
func (q *Questions) RoutesOf(ctx context.Context, id resource.GID, serial uint32, box *dispatch.Mailbox) ([]dispatch.Route, error) {
	if _, err := q.dir.Lookup(ctx, id, directory.AttrKind); err != nil {
		return nil, err
	}
	f, err := q.disp.Flow(id, 0)
	if err != nil {
		return nil, err
	}
	for {
		m, err := ask(ctx, f, box, serial, id)
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

// ask asks the context id for its routes, over the flow f to it, and waits for the answer as
// long as the other context may be answering.
func ask(ctx context.Context, f *dispatch.Flow, box *dispatch.Mailbox, serial uint32, id resource.GID) (*dispatch.Message, error) {
	ctx, cancel := Within(ctx, answerTime)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
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

// answer handles a message to the resource that stands for the context. It reports whether
// the message is a question from a context of this node. A goroutine of its own sends the answer,
// because the asker may be slow and the next question may come from another context. A question of
// an asker with too many answers under way is dropped: the asker asks again.
func (q *Questions) answer(m *dispatch.Message) bool {
	from := m.From()
	asker := from.Context()
	if m.Tag() != tagRoutes || asker.Node() != q.dir.Node() {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.answers[asker] >= maxAnswers {
		q.log.Debug("rocl: a question for routes was dropped", "from", from, "answers", maxAnswers)
		return true
	}
	isStarted := q.dir.life.Go(func() {
		q.answerRoutes(from)
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.answers[asker]--; q.answers[asker] == 0 {
			delete(q.answers, asker)
		}
	})
	if isStarted {
		q.answers[asker]++
	}
	return isStarted
}

// Answers returns how many answers are under way.
func (q *Questions) Answers() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range q.answers {
		n += k
	}
	return n
}

// answerRoutes sends the routes of this context to the resource to, except the route to its
// context.
func (q *Questions) answerRoutes(to resource.GID) {
	routes := slices.DeleteFunc(q.disp.Routes(), func(r dispatch.Route) bool { return r.Peer == to.Context() })
	b, err := json.Marshal(routes)
	if err == nil {
		ctx, cancel := Within(q.dir.life.Context(), answerTime)
		defer cancel()
		var f *dispatch.Flow
		if f, err = q.disp.Flow(to.Context(), to.Serial()); err == nil {
			err = f.SendAndForget(ctx, 0, tagRoutes, b) // the asker may have gone
		}
	}
	if err != nil {
		q.log.Debug("rocl: routes were not sent", "to", to, "err", err)
	}
}
