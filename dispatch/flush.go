// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// A message has been delivered when it is in the mailbox of its resource. Within the process that
// is so when Send returns. Over a link it is so when the peer has acknowledged the message's last
// frame. A peer acknowledges frames after it has worked on them, and reports messages that it could
// not deliver before that (session.Worked). So Flush waits until the frames that each link accepted
// before are acknowledged. Then it checks what was reported.

// FlushError is returned by Flush if not all messages were delivered, and is in the error of Close.
// errors.Is matches it with the errors in Err.
type FlushError struct {
	Undelivered int           // messages reported as undelivered
	Waiting     int           // messages that were neither delivered nor reported when ctx ended
	Targets     []FlushTarget // the targets of these messages, in the order of their identifiers; see MaxFlushTargets
	Err         error         // the reasons, one of each kind (ErrGone, ErrUnreachable …), and the cause of ctx's end, joined
}

// A FlushTarget is a target of messages that were not delivered.
type FlushTarget struct {
	To          resource.GID // the target; of a reply, the context that called
	Undelivered int          // messages reported as undelivered
	Waiting     int          // messages that were neither delivered nor reported when ctx ended
}

// MaxFlushTargets is how many targets a context, or a resource, remembers between two calls of
// Flush. Undelivered messages to further targets are counted in FlushError.Undelivered alone, by a
// Flush of all targets.
const MaxFlushTargets = 1 << 14

// Error says how many messages were not delivered, and why. It names the first three targets.
func (e *FlushError) Error() string {
	var text []string
	if e.Undelivered > 0 {
		text = append(text, messages(e.Undelivered)+" undelivered")
	}
	if e.Waiting > 0 {
		text = append(text, messages(e.Waiting)+" not acknowledged yet")
	}
	cause := strings.ReplaceAll(e.Err.Error(), "\n", ", ")
	if len(text) == 0 {
		return cause
	}
	const most = 3
	var to []string
	others := e.Undelivered + e.Waiting
	for _, t := range e.Targets[:min(len(e.Targets), most)] {
		to = append(to, fmt.Sprintf("%d to %v", t.Undelivered+t.Waiting, t.To))
		others -= t.Undelivered + t.Waiting
	}
	if others > 0 {
		to = append(to, fmt.Sprintf("%d to other targets", others))
	}
	return strings.Join(text, ", ") + " (" + strings.Join(to, ", ") + "): " + cause
}

// messages returns the text of a number of messages.
func messages(n int) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}

// Unwrap returns Err.
func (e *FlushError) Unwrap() error { return e.Err }

// losses counts messages that were reported as undelivered since the last Flush, by target. The
// zero value is empty.
type losses struct {
	mu     lock.Mutex[levelLosses]
	by     map[resource.GID]loss
	others loss // of messages to targets beyond MaxFlushTargets
}

// A loss is a number of messages with their reasons. Both are zero or neither.
type loss struct {
	n   int
	why [len(lossErrs) + 1]error // the latest reason of each kind in lossErrs, and of any other kind
}

var lossErrs = [...]error{ErrGone, ErrUnreachable, ErrClosed, ErrTooLarge}

// add adds o.
func (l *loss) add(o loss) {
	l.n += o.n
	for i, err := range o.why {
		if err != nil {
			l.why[i] = err
		}
	}
}

// errs returns the reasons.
func (l *loss) errs() (errs []error) {
	for _, err := range l.why {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// add counts one message to a target.
func (l *losses) add(to resource.GID, err error) {
	one, kind := loss{n: 1}, len(lossErrs)
	for i, is := range lossErrs {
		if errors.Is(err, is) {
			kind = i
			break
		}
	}
	one.why[kind] = err
	l.mu.Lock()
	defer l.mu.Unlock()
	was, isKnown := l.by[to]
	switch {
	case !isKnown && len(l.by) >= MaxFlushTargets:
		l.others.add(one)
	default:
		if l.by == nil {
			l.by = map[resource.GID]loss{}
		}
		was.add(one)
		l.by[to] = was
	}
}

// take takes the counts of the targets ids, or of all without ids, and returns them with their sum.
func (l *losses) take(ids []resource.GID) (by map[resource.GID]loss, sum loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(ids) == 0 {
		by, sum = l.by, l.others
		l.by, l.others = nil, loss{}
	}
	for _, id := range ids {
		if o, ok := l.by[id]; ok {
			if by == nil {
				by = map[resource.GID]loss{}
			}
			by[id] = o
			delete(l.by, id)
		}
	}
	for _, o := range by {
		sum.add(o)
	}
	return by, sum
}

// flushError returns the error of a Flush that has taken losses from l. waiting has the numbers of
// messages under way, by target, when ctx ended because of err. Without either it returns nil.
func (l *losses) flushError(ids []resource.GID, waiting map[resource.GID]int, err error) error {
	by, sum := l.take(ids)
	errs := sum.errs()
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return nil
	}
	e := &FlushError{Undelivered: sum.n, Err: errors.Join(errs...)}
	for to, o := range by {
		e.Targets = append(e.Targets, FlushTarget{To: to, Undelivered: o.n, Waiting: waiting[to]})
	}
	for to, n := range waiting {
		e.Waiting += n
		if _, isThere := by[to]; !isThere {
			e.Targets = append(e.Targets, FlushTarget{To: to, Waiting: n})
		}
	}
	slices.SortFunc(e.Targets, func(a, b FlushTarget) int { return a.To.Compare(b.To) })
	return e
}

// countLost counts a message from the resource with serial src as undelivered. Locks may be held,
// but none of Dispatcher.mu's level or below it.
func (d *Dispatcher) countLost(src uint32, to resource.GID, err error) {
	d.lost.Add(1)
	d.losses.add(to, err)
	d.mu.RLock()
	m, closing := d.boxes[src], d.closing
	d.mu.RUnlock()
	if closing {
		d.lossesAtClose.add(to, err)
	}
	if m != nil {
		m.losses.add(to, err)
	}
}

// Flush waits for all messages of the context that were accepted before the call, or, with ids, for
// those to the resources ids. Each of them is then in the mailbox of its target, or has been
// reported as undelivered. Flush makes progress meanwhile. It does not wait for messages of
// [Flow.SendAndForget].
//
// Flush returns nil if no message to these targets was reported as undelivered since the last Flush
// of the context. Otherwise it fails with a *FlushError, which says how many were, and to which
// targets, and matches their reasons: ErrGone, ErrUnreachable (with a *NoConnectionError if no
// connection was made), ErrClosed or ErrTooLarge. If ctx ends before, the *FlushError matches the
// cause, and says how many messages are still under way. Each undelivered message is counted by one
// Flush of the context, and by one Flush of its mailbox.
func (d *Dispatcher) Flush(ctx context.Context, ids ...resource.GID) error {
	return d.flush(ctx, 0, ids, &d.losses)
}

// Flush waits for the messages that the mailbox's resource has sent, as [Dispatcher.Flush] does for
// all. After Close it fails with ErrClosed.
func (m *Mailbox) Flush(ctx context.Context, ids ...resource.GID) error {
	if m.isClosed() {
		return ErrClosed
	}
	if err := m.d.flush(ctx, m.serial, ids, &m.losses); err != nil {
		return err
	}
	if m.isClosed() { // reports are not counted any more
		return ErrClosed
	}
	return nil
}

// flush is Flush for the messages of the resource with serial src; 0 means all resources.
func (d *Dispatcher) flush(ctx context.Context, src uint32, ids []resource.GID, lost *losses) error {
	var wanted map[resource.GID]bool // nil: all targets
	for _, id := range ids {
		if wanted == nil {
			wanted = map[resource.GID]bool{}
		}
		wanted[id] = true
	}
	covers := func(l *link, h *subsys.Header) bool {
		return (src == 0 || h.Src == src) && isAwaited(l, h) && (wanted == nil || wanted[l.targetOf(h)])
	}
	var marks []watermark
	hasLinks := false
	d.eachLink(func(l *link) {
		hasLinks = true
		l.mu.Lock()
		marks = l.underWayLocked(marks, covers)
		l.mu.Unlock()
	})
	var err error
	var waiting map[resource.GID]int
	for i, w := range marks {
		if err = w.passed(ctx, covers); err != nil {
			waiting = countWaiting(marks[i:], covers)
			break
		}
	}
	if hasLinks { // the token holder may be at work on reports that came before the acknowledgement
		d.progress.Settle()
	}
	return lost.flushError(ids, waiting, err)
}

// targetOf returns the target of a message over the link; of a reply, the context.
func (l *link) targetOf(h *subsys.Header) resource.GID {
	if h.Dst == wire.Replies {
		return l.peer
	}
	return l.peer.WithSerial(h.Dst)
}

// allMessages selects every message, for underWayLocked.
func allMessages(*link, *subsys.Header) bool { return true }

// underWayLocked appends watermarks of the messages that covers selects and that are not
// acknowledged: one for all messages that have numbers, and one for each line in which some wait.
// If a successor has them, because the link ended since the caller listed the links, that is one
// watermark. mu must be held.
func (l *link) underWayLocked(marks []watermark, covers func(*link, *subsys.Header) bool) []watermark {
	if l.heir != nil {
		return append(marks, watermark{l: l.heir, isHeld: true})
	}
	last, found := uint32(0), false
	l.s.EachNumbered(func(h *subsys.Header, seq uint32) {
		if covers(l, h) {
			last, found = seq, true
		}
	})
	if found {
		marks = append(marks, watermark{l: l, seq: last})
	}
	if l.holdsLocked(covers) {
		marks = append(marks, watermark{l: l, isHeld: true})
	}
	var line *session.Line
	l.s.EachQueued(func(ln *session.Line, h *subsys.Header, put uint64) {
		if !covers(l, h) {
			return
		}
		if line != ln {
			f := l.flows[h.Dst]
			if f == nil || &f.line != ln {
				return
			}
			line = ln
			marks = append(marks, watermark{l: l, f: f, seq: l.s.Next() - 1})
		}
		marks[len(marks)-1].put = put
	})
	return marks
}

// countWaiting returns how many messages of the watermarks are not acknowledged, by target. It
// counts the messages that covers selects, each of them once.
func countWaiting(marks []watermark, covers func(*link, *subsys.Header) bool) map[resource.GID]int {
	by := map[resource.GID]int{}
	byLink := map[*link][]watermark{}
	for _, w := range marks {
		byLink[w.l] = append(byLink[w.l], w)
	}
	for len(byLink) > 0 {
		for l, ws := range byLink {
			delete(byLink, l)
			count := func(h *subsys.Header, isOf func(watermark) bool) {
				if covers(l, h) && slices.ContainsFunc(ws, isOf) {
					by[l.targetOf(h)]++
				}
			}
			l.mu.Lock()
			heir := l.heir
			l.eachHeldLocked(func(h *subsys.Header) {
				count(h, func(w watermark) bool { return w.isHeld })
			})
			l.s.EachNumbered(func(h *subsys.Header, seq uint32) {
				count(h, func(w watermark) bool {
					if w.f != nil { // messages that have left the line meanwhile
						return h.Dst == w.f.dst && int32(seq-w.seq) > 0
					}
					return w.isHeld || int32(seq-w.seq) <= 0
				})
			})
			l.s.EachQueued(func(ln *session.Line, h *subsys.Header, put uint64) {
				count(h, func(w watermark) bool { return w.isHeld || w.f != nil && ln == &w.f.line && put <= w.put })
			})
			l.mu.Unlock()
			if heir != nil {
				byLink[heir] = []watermark{{l: heir, isHeld: true}}
			}
		}
	}
	return by
}

// A watermark stands for messages of a link that are to be acknowledged: the frames up to seq, or
// the first put messages of the flow's line. If the link leaves messages to a successor, they may
// be among these.
type watermark struct {
	l   *link
	seq uint32
	f   *Flow // nil: the messages were not in a line
	put uint64
	// isHeld says that the messages are those that the link holds.
	isHeld bool
}

// passed waits until the peer has acknowledged the frames of a watermark. If the link ends, it
// waits until the frames that were not acknowledged have been counted as undelivered. Of messages
// that are held, or that a successor has, it waits for those that covers selects.
func (w watermark) passed(ctx context.Context, covers func(*link, *subsys.Header) bool) error {
	next, err := w.passedOver(ctx, covers)
	for _, w := range next {
		if err == nil {
			err = w.passed(ctx, covers)
		}
	}
	return err
}

// passedOver is passed for one link. It returns the watermarks that are to be passed next.
func (w watermark) passedOver(ctx context.Context, covers func(*link, *subsys.Header) bool) (next []watermark, _ error) {
	l := w.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		seq := w.seq
		if l.heir != nil {
			return []watermark{{l: l.heir, isHeld: true}}, nil
		}
		if w.isHeld {
			if !l.holdsLocked(covers) {
				return l.underWayLocked(nil, covers), nil
			}
			seq = l.s.Next() // check again when more has passed
		} else if w.f != nil {
			if w.f.line.Gone() < w.put {
				seq = l.s.Next() // the message is still in the line: check again when more has passed
			} else {
				w.seq, w.f = l.s.Next()-1, nil
				continue
			}
		}
		if int32(l.s.Head()-seq) > 0 { // true also after the session has been drained
			return next, nil
		}
		before := l.s.Next()
		if l.writeLocked(); l.s.Next() != before || int32(l.s.Head()-seq) > 0 { // the frames were paced
			continue
		}
		w := l.d.waiter()
		w.charge = uint64(seq)
		l.behind.push(w)
		l.attendLocked()
		if !l.callWriter() { // act on earlier acknowledgements first
			l.releaseLocked()
		}
		if err := l.await(ctx, &l.behind, w); err != nil {
			return next, err
		}
	}
}

// wakePassedLocked wakes the goroutines that wait for frames that have been acknowledged. mu must
// be held.
func (l *link) wakePassedLocked() {
	for w := l.behind.First(); w != nil; {
		next := w.place.Next()
		if int32(l.s.Head()-uint32(w.charge)) > 0 {
			l.behind.remove(w)
			w.Fire()
		}
		w = next
	}
}

// WaitFor makes progress while a goroutine waits for a buffer; see [buffers.Waiter].
func (d *Dispatcher) WaitFor(ctx context.Context, begin func(fire func()) bool, end func() (waited bool)) error {
	w := d.waiter()
	if !begin(w.Fire) {
		d.doneWaiting(w)
		return nil
	}
	err := d.progress.Wait(ctx, &w.Waiter)
	if err != nil && !end() {
		err = nil // fired as ctx ended
	}
	d.doneWaiting(w)
	return err
}
