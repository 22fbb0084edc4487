// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/subsys"
)

// A message has been delivered when it is in the mailbox of its resource. Within the process that
// is so when Send returns. Over a link it is so when the peer has acknowledged the message's last
// frame. A peer acknowledges frames after it has worked on them, and reports messages that it could
// not deliver before that (session.Worked). So Flush waits until the frames that each link accepted
// before are acknowledged. Then it checks what was reported.

// FlushError is returned by Flush if not all messages were delivered. errors.Is matches it with the
// errors in Err.
type FlushError struct {
	Undelivered int   // messages reported as undelivered
	Waiting     int   // messages that were neither delivered nor reported when ctx ended
	Err         error // ErrGone, ErrUnreachable, ErrClosed and the cause of ctx's end, joined
}

// Error says how many messages were not delivered, and why.
func (e *FlushError) Error() string {
	var parts []string
	if e.Undelivered > 0 {
		parts = append(parts, fmt.Sprintf("%d messages undelivered", e.Undelivered))
	}
	if e.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d messages not acknowledged yet", e.Waiting))
	}
	text := strings.ReplaceAll(e.Err.Error(), "\n", ", ")
	if len(parts) == 0 {
		return text
	}
	return strings.Join(parts, ", ") + ": " + text
}

// Unwrap returns Err.
func (e *FlushError) Unwrap() error { return e.Err }

// losses counts messages that were reported as undelivered since the last Flush. The word has a bit
// for each of lossErrs, and above them the count. So take takes a count with its reasons.
type losses struct{ word atomic.Uint64 }

var lossErrs = [...]error{ErrGone, ErrUnreachable, ErrClosed}

// oneLoss is a count of one in the word of losses.
const oneLoss = 1 << len(lossErrs)

// add counts one message. It takes no lock.
func (l *losses) add(err error) {
	var kinds uint64
	for i, kind := range lossErrs {
		if errors.Is(err, kind) {
			kinds |= 1 << i
		}
	}
	for {
		was := l.word.Load()
		if l.word.CompareAndSwap(was, (was|kinds)+oneLoss) {
			return
		}
	}
}

// take returns the count and the reasons, and sets both to zero.
func (l *losses) take() (n int, errs []error) {
	word := l.word.Swap(0)
	for i, err := range lossErrs {
		if word&(1<<i) != 0 {
			errs = append(errs, err)
		}
	}
	return int(word / oneLoss), errs
}

// countLost counts a message of the resource with serial src as undelivered. Locks may be held, but
// none of Dispatcher.mu's level or below it.
func (d *Dispatcher) countLost(src uint32, err error) {
	d.lost.Add(1)
	d.losses.add(err)
	if m := d.mailbox(src); m != nil {
		m.losses.add(err)
	}
}

// Flush waits for all messages of the context that were accepted before the call. Each of them is
// then in the mailbox of its target, or has been reported as undelivered. Flush makes progress
// meanwhile.
//
// Flush returns nil if no message was reported as undelivered since the last Flush of the context.
// Otherwise it fails with a *FlushError, which says how many were, and matches ErrGone,
// ErrUnreachable or ErrClosed. If ctx ends before, the *FlushError matches the cause, and says how
// many messages are still under way. Each undelivered message is counted by one Flush of the
// context, and by one Flush of its mailbox.
func (d *Dispatcher) Flush(ctx context.Context) error {
	return d.flush(ctx, 0, &d.losses)
}

// Flush waits for the messages that the mailbox's resource has sent, as [Dispatcher.Flush] does for
// all. After Close it fails with ErrClosed.
func (m *Mailbox) Flush(ctx context.Context) error {
	if m.isClosed() {
		return ErrClosed
	}
	if err := m.d.flush(ctx, m.serial, &m.losses); err != nil {
		return err
	}
	if m.isClosed() { // reports are not counted any more
		return ErrClosed
	}
	return nil
}

// flush is Flush for the messages of the resource with serial src; 0 means all resources.
func (d *Dispatcher) flush(ctx context.Context, src uint32, lost *losses) error {
	var marks []watermark
	hasLinks := false
	d.eachLink(func(l *link) {
		hasLinks = true
		l.mu.Lock()
		marks = l.underWayLocked(marks, src)
		l.mu.Unlock()
	})
	var err error
	waiting := 0
	for _, w := range marks {
		if err == nil {
			err = w.passed(ctx)
		}
		if err != nil {
			waiting += w.waiting(src)
		}
	}
	if hasLinks { // the token holder may be at work on reports that came before the acknowledgement
		d.takeToken()
		d.giveToken()
	}
	n, errs := lost.take()
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return nil
	}
	return &FlushError{Undelivered: n, Waiting: waiting, Err: errors.Join(errs...)}
}

// underWayLocked appends watermarks of the messages of src that are not acknowledged: one for all
// messages that have numbers, and one for each line in which some wait. mu must be held.
func (l *link) underWayLocked(marks []watermark, src uint32) []watermark {
	last, found := uint32(0), false
	l.s.EachNumbered(func(h *subsys.Header, seq uint32) {
		if src == 0 || h.Src == src {
			last, found = seq, true
		}
	})
	if found {
		marks = append(marks, watermark{l: l, seq: last})
	}
	if l.held > 0 {
		marks = append(marks, l.allLocked())
	}
	var line *session.Line
	l.s.EachQueued(func(ln *session.Line, h *subsys.Header, put uint64) {
		if src != 0 && h.Src != src {
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

// waiting returns how many messages up to the watermark are not acknowledged. It counts those of
// the resource with serial src; 0 means all resources.
func (w watermark) waiting(src uint32) (n int) {
	l := w.l
	l.mu.Lock()
	if heir := l.heir; heir.l != nil {
		l.mu.Unlock()
		return heir.waiting(src)
	}
	defer l.mu.Unlock()
	if w.isHeld {
		for _, f := range l.flows {
			for h := f.waiters.first; h != nil && h.held != nil; h = h.next {
				if src == 0 || h.held.Src == src {
					n++
				}
			}
		}
		return n
	}
	if w.f == nil {
		l.s.EachNumbered(func(h *subsys.Header, seq uint32) {
			if (src == 0 || h.Src == src) && int32(seq-w.seq) <= 0 {
				n++
			}
		})
		return n
	}
	l.s.EachQueued(func(ln *session.Line, h *subsys.Header, put uint64) {
		if ln == &w.f.line && (src == 0 || h.Src == src) && put <= w.put {
			n++
		}
	})
	l.s.EachNumbered(func(h *subsys.Header, seq uint32) { // messages that have left the line meanwhile
		if h.Dst == w.f.dst && (src == 0 || h.Src == src) && int32(seq-w.seq) > 0 {
			n++
		}
	})
	return n
}

// WaitFor makes progress while a goroutine waits for a buffer; see [buffers.Waiter].
func (d *Dispatcher) WaitFor(ctx context.Context, begin func(fire func()) bool, end func() (waited bool)) error {
	w := d.waiter()
	if !begin(w.fire) {
		d.doneWaiting(w)
		return nil
	}
	err := d.wait(ctx, w)
	if err != nil && !end() {
		err = nil // fired as ctx ended
	}
	d.doneWaiting(w)
	return err
}
