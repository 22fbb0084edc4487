// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/life"
	"github.com/rocl-go/rocl/resource"
)

// complainAfter is how long a link dials before a line of the log says why it has no connection.
const complainAfter = time.Second

// errNoAttempt stands for the reason while no attempt of a link to connect has ended.
var errNoAttempt = errors.New("dispatch: the first attempt to connect has not ended")

// An outage is what a link knows of the time in which it has no connection. link.mu guards it. The
// zero value is that of a link that has a connection, or needs none.
type outage struct {
	since  time.Time // when the link began to dial
	reason error     // why the last attempt failed, or why the connection was lost; nil: neither has happened
	doing  string    // what the present attempt does; "" before the first
}

// A NoConnectionError is the error of an operation that has ended while the library had no
// connection to the target's context.
type NoConnectionError struct {
	Peer   resource.GID // the target's context
	End    error        // why the operation has ended: ErrUnreachable, or the cause of the end of the caller's ctx
	Reason error        // why the last attempt to connect failed, with the address

	isOld bool // the library had given up the context before the operation began
}

// Error says why the operation has ended, and why there is no connection.
func (e *NoConnectionError) Error() string {
	if e.End == ErrUnreachable {
		return fmt.Sprintf("%v: %v: %v", e.End, e.Peer, e.Reason)
	}
	// Cause: the caller's context ended while there was no connection. Remedy: see the reason
	// behind it.
	return fmt.Sprintf("%v: no connection to %v: %v", e.End, e.Peer, e.Reason)
}

// Timeout reports whether the operation has ended because its time was over, as net.Error does.
func (e *NoConnectionError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.End, &t) && t.Timeout()
}

// Unwrap returns End and Reason.
func (e *NoConnectionError) Unwrap() []error { return []error{e.End, e.Reason} }

// HasGivenUp reports whether an operation failed with err because no connection was made for as
// long as Config.GiveUp says, while the operation waited. A second attempt would take as long
// again. It reports false if the context was given up before the operation began.
func HasGivenUp(err error) bool {
	var e *NoConnectionError
	return errors.As(err, &e) && e.End == ErrUnreachable && !e.isOld
}

// beforehand returns the error of an operation that begins after its link has ended because of err.
func beforehand(err error) error {
	var e *NoConnectionError
	if !errors.As(err, &e) || e.isOld {
		return err
	}
	old := *e
	old.isOld = true
	return &old
}

// timeLimit returns a context.Context for an attempt of the library, which ends after d. The cause
// of its end says so, and does not match context.DeadlineExceeded.
func timeLimit(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(parent, d, fmt.Errorf("no answer within %v", d))
}

// ownTimers says what the errors of timers mean if the timer is the library's own.
var ownTimers = strings.NewReplacer(context.DeadlineExceeded.Error(), "no answer in time", context.Canceled.Error(), "given up")

// withoutTimers returns err without the errors of the library's own timers. They are in the errors
// of package net too.
func withoutTimers(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return errors.New(ownTimers.Replace(err.Error()))
	}
	return err
}

// whyNone returns why there is no connection.
func (o *outage) whyNone() error {
	switch {
	case o.reason != nil:
		return o.reason
	case o.doing != "":
		return fmt.Errorf("%s: no answer in %v", o.doing, time.Since(o.since).Round(time.Millisecond))
	}
	return errNoAttempt
}

// noteAttempt notes what the attempt to connect does now.
func (l *link) noteAttempt(doing string) {
	l.mu.Lock()
	l.outage.doing = doing
	l.mu.Unlock()
}

// noteFailureLocked notes why an attempt to connect has failed. hasEnded says that the time of all
// attempts is over: an error that comes of this tells less than an earlier one. mu must be held.
func (l *link) noteFailureLocked(err error, hasEnded bool) {
	if err != nil && (!hasEnded || l.outage.reason == nil) {
		l.outage.reason = withoutTimers(err)
		l.lastError = l.outage.reason
	}
}

// explainLocked adds to err, the cause of the end of a caller's ctx, why there is no connection. It
// returns err itself if there is one, or if the link needs none. mu must be held.
func (l *link) explainLocked(err error) error {
	if err == nil || l.conn != nil || l.life.HasEnded() || l.outage.since.IsZero() {
		return err
	}
	return &NoConnectionError{Peer: l.peer, End: err, Reason: l.outage.whyNone()}
}

// Explain adds to err, with which a wait for an answer over the flow has ended, why there is no
// connection. It returns err itself if there is one.
func (f *Flow) Explain(err error) error {
	if f.l == nil {
		return err
	}
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	return f.l.explainLocked(err)
}

// Explain adds to err, with which a wait for something of the resources ids has ended, why there is
// no connection with the context of one of them. It returns err itself if err is nil, if there are
// connections, or if none is needed.
func (d *Dispatcher) Explain(err error, ids ...resource.GID) error {
	if err == nil {
		return nil
	}
	for _, o := range ids {
		for _, l := range d.lanes(o.Context()) {
			l.mu.Lock()
			explained := l.explainLocked(err)
			l.mu.Unlock()
			if explained != err {
				return explained
			}
		}
	}
	return err
}

// complain writes a line to the log if the link still dials. If several lanes with the peer dial,
// the first of them has the line. complain runs in the goroutine of a timer.
func (l *link) complain() {
	isFirst := true
	for _, other := range l.d.lanes(l.peer) {
		if other != l && other.key.lane < l.key.lane {
			other.mu.Lock()
			isFirst = isFirst && other.life.State() != life.Dialling
			other.mu.Unlock()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if isFirst && l.life.State() == life.Dialling && l.d.ctx.Err() == nil {
		// Cause: a link dials for more than a second. Remedy: see `err`: firewall, address, a
		// process that has ended.
		l.d.often.Warn(l.peer.String(), "dispatch: no connection", "peer", l.peer,
			"for", time.Since(l.outage.since).Round(time.Millisecond), "err", l.outage.whyNone())
	}
}
