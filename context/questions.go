// SPDX-License-Identifier: Apache-2.0

package context

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
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
// with that tag: its routes, JSON as of `rocl routes --json`. The tag 0x5354415453000001 asks for
// what the context has and what waits in it: JSON with a `version`, of at most as many bytes as the
// payload u32 says, from 4 KiB to 1 MiB. The tag 0x464f4c4c4f570001 makes it follow one of n
// messages to a resource for a time, and asks for those that were followed last, in JSON. Its
// payload: the serial of the resource u32, n u32, nanoseconds u64, at most 600 s, or 0 to change
// nothing. Other messages are refused with Gone.

// A context answers questions about itself. Contexts of its own node send them to the resource that
// stands for the context. The tag says what is asked, and the answer has the same tag.
const (
	tagRoutes = 0x524f555445530001 // "ROUTES"; the answer is JSON
	tagStats  = 0x5354415453000001 // "STATS"; the answer is JSON of at most MaxSnapshot bytes
	tagFollow = 0x464f4c4c4f570001 // "FOLLOW"; the answer is JSON

	maxQuestionBytes = 64 << 10 // limit of the mailbox for questions, in bytes

	// An answer that the asker does not receive is given up after answerTime. An asker with
	// maxAnswers answers under way gets no further ones. So an asker asks again after answerTime.
	answerTime = 5 * time.Second
	maxAnswers = 64
	statsCost  = 16 // the answers that one with a snapshot counts for
)

// MaxSnapshot is how many bytes an answer with a snapshot has at most, and leastSnapshot the least
// that a question may allow.
const (
	MaxSnapshot   = 1 << 20
	leastSnapshot = 4 << 10
)

// Questions asks other contexts of the node about themselves, and answers the questions of such
// contexts.
type Questions struct {
	dir      *Directory
	disp     *dispatch.Dispatcher
	log      *slog.Logger
	snapshot func(most int) ([]byte, error) // of this context

	mu      sync.Mutex
	answers map[resource.GID]int // answers under way, by the context that asked
}

// NewQuestions returns the questions of the context whose directory is dir, and lets disp answer
// those of other contexts. snapshot returns the snapshot of this context, of at most most
// bytes.
func NewQuestions(dir *Directory, disp *dispatch.Dispatcher, log *slog.Logger, snapshot func(most int) ([]byte, error)) (*Questions, error) {
	q := &Questions{dir: dir, disp: disp, log: log, snapshot: snapshot, answers: map[resource.GID]int{}}
	return q, disp.Serve(0, maxQuestionBytes, q.answer)
}

// RoutesOf asks another context of this node for its routes, until an answer comes. The answer
// comes to box, the mailbox of the resource with the given serial. A question may stay without an
// answer: see answerTime.
func (q *Questions) RoutesOf(ctx context.Context, id resource.GID, serial uint32, box *dispatch.Mailbox) (routes []dispatch.Route, err error) {
	m, err := q.ask(ctx, id, tagRoutes, nil, serial, box)
	if err == nil {
		err = json.Unmarshal(m.Bytes(), &routes)
		m.Release()
	}
	return routes, err
}

// SnapshotOf asks another context of this node for its snapshot, as RoutesOf asks for routes, and
// decodes it into answer. It asks for an answer of at most most bytes.
func (q *Questions) SnapshotOf(ctx context.Context, id resource.GID, most int, serial uint32, box *dispatch.Mailbox, answer any) error {
	m, err := q.ask(ctx, id, tagStats, binary.LittleEndian.AppendUint32(nil, uint32(most)), serial, box)
	if err == nil {
		err = Decode(m.Bytes(), most, answer)
		m.Release()
	}
	return err
}

// A followAnswer is the answer to a question to follow messages.
type followAnswer struct {
	IsGone   bool                `json:"gone,omitempty"` // there is no such resource
	Messages []dispatch.Followed `json:"messages"`
}

// follow returns the answer to the question to follow messages to the resource with a serial, which
// it begins to do.
func (q *Questions) follow(serial, every uint32, limit time.Duration) ([]byte, error) {
	all, err := q.disp.Follow(serial, every, limit)
	return json.Marshal(followAnswer{err != nil, all})
}

// Follow asks the context of the resource id, which is another one of this node, to follow messages
// as dispatch.Dispatcher.Follow does. It asks as RoutesOf does.
func (q *Questions) Follow(ctx context.Context, id resource.GID, every uint32, limit time.Duration, serial uint32, box *dispatch.Mailbox) ([]dispatch.Followed, error) {
	p := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, id.Serial()), every)
	m, err := q.ask(ctx, id.Context(), tagFollow, binary.LittleEndian.AppendUint64(p, uint64(max(limit, 0))), serial, box)
	if err != nil {
		return nil, err
	}
	defer m.Release()
	var a followAnswer
	if err = Decode(m.Bytes(), MaxSnapshot, &a); err == nil && a.IsGone {
		err = dispatch.ErrGone
	}
	return a.Messages, err
}

// ask asks another context of this node the question with a tag and a payload, until an answer
// comes.
func (q *Questions) ask(ctx context.Context, id resource.GID, tag uint64, payload []byte, serial uint32, box *dispatch.Mailbox) (*dispatch.Message, error) {
	if _, err := q.dir.Lookup(ctx, id, directory.AttrKind); err != nil {
		return nil, err
	}
	f, err := q.disp.Flow(id, 0)
	if err != nil {
		return nil, err
	}
	for {
		m, err := askOnce(ctx, f, box, serial, tag, payload, id)
		if err == nil || ctx.Err() != nil || !errors.Is(err, errTime) {
			return m, err
		}
	}
}

// leastObject is how many bytes each JSON object has on average, at least.
const leastObject = 32

// Decode decodes JSON of at most most bytes that another context may have made to need much memory.
func Decode(b []byte, most int, v any) error {
	if n := bytes.Count(b, []byte("{")); len(b) > most || n > most/leastObject {
		return fmt.Errorf("an answer of %d bytes with %d objects, at most %d and %d", len(b), n, most, most/leastObject)
	}
	return json.Unmarshal(b, v)
}

// askOnce asks the context id over the flow f to it, and waits for the answer as long as the other
// context may be answering.
func askOnce(ctx context.Context, f *dispatch.Flow, box *dispatch.Mailbox, serial uint32, tag uint64, payload []byte, id resource.GID) (*dispatch.Message, error) {
	ctx, cancel := Within(ctx, answerTime)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	stop, err := f.OnEnd(ctx, end)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := f.SendAndForget(ctx, serial, tag, payload); err != nil { // OnEnd tells of its loss
		return nil, err
	}
	return box.Recv(ctx, dispatch.From(id), dispatch.Tag(tag))
}

// answer handles a message to the resource that stands for the context. It reports whether
// the message is a question from a context of this node. A goroutine of its own sends the answer,
// because the asker may be slow and the next question may come from another context. A question of
// an asker with too many answers under way is dropped: the asker asks again.
func (q *Questions) answer(m *dispatch.Message) bool {
	from := m.From()
	asker, tag, cost := from.Context(), m.Tag(), 1
	if asker.Node() != q.dir.Node() {
		return false
	}
	var answer func() ([]byte, error)
	switch p := m.Bytes(); {
	case tag == tagRoutes:
		answer = func() ([]byte, error) { return q.routes(asker) }
	case tag == tagStats:
		cost = statsCost
		most := MaxSnapshot
		if len(p) == 4 {
			most = int(min(max(binary.LittleEndian.Uint32(p), leastSnapshot), MaxSnapshot))
		}
		answer = func() ([]byte, error) { return q.snapshot(most) }
	case tag == tagFollow && len(p) == 16:
		serial, every, limit := binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:]), binary.LittleEndian.Uint64(p[8:])
		answer = func() ([]byte, error) { return q.follow(serial, every, time.Duration(min(limit, math.MaxInt64))) }
	default:
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.answers[asker]+cost > maxAnswers {
		q.log.Debug("rocl: a question to this context was dropped", "from", from, "answers", maxAnswers)
		return true
	}
	isStarted := q.dir.life.Go(func() {
		q.send(from, tag, answer)
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.answers[asker] -= cost; q.answers[asker] == 0 {
			delete(q.answers, asker)
		}
	})
	if isStarted {
		q.answers[asker] += cost
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

// routes returns the routes of this context, except the route to asker, as JSON.
func (q *Questions) routes(asker resource.GID) ([]byte, error) {
	return json.Marshal(slices.DeleteFunc(q.disp.Routes(), func(r dispatch.Route) bool { return r.Peer == asker }))
}

// send sends the answer to the question with a tag to the resource to.
func (q *Questions) send(to resource.GID, tag uint64, answer func() ([]byte, error)) {
	b, err := answer()
	if err == nil {
		ctx, cancel := Within(q.dir.life.Context(), answerTime)
		defer cancel()
		var f *dispatch.Flow
		if f, err = q.disp.Flow(to.Context(), to.Serial()); err == nil {
			err = f.SendAndForget(ctx, 0, tag, b) // the asker may have gone
		}
	}
	if err != nil {
		q.log.Debug("rocl: an answer was not sent", "to", to, "err", err)
	}
}
