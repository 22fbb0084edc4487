// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/life"
	"github.com/rocl-go/rocl/internal/os/sockerr"
)

const (
	shakeBriefly   = 500 * time.Millisecond // the patience of most attempts, in place of shakeTimeout
	longAttempt    = 4                      // one of so many attempts has the patience shakeTimeout
	backoffMost    = 200 * time.Millisecond // the longest pause between attempts
	resolveTimeout = 500 * time.Millisecond // how long the directory has to answer, if addresses are known
)

// awaitMost is how long a link that cannot dial its peer waits for the peer to dial, although the
// directory says that the peer's node is dead.
const awaitMost = shakeTimeout + resolveTimeout

// ErrNodeDead is returned by a [Resolver] when the directory says that the context's node is dead.
// The context may live if only its directory has ended, so the link dials the known addresses once
// before it ends. ErrNodeDead matches ErrGone.
//
// Cause: gossip says that the target's node is dead, and the process does not answer. It may live.
// Remedy: find another resource; see to the node and its network.
var ErrNodeDead = fmt.Errorf("%w: its node is dead", ErrGone)

// connect is the searcher that dials, until the link has a connection, from either side, or has
// ended. It ends within GiveUp, even if neither the directory nor the peer answers.
func (l *link) connect() {
	defer l.d.running.Done()
	ctx, cancel := timeLimit(l.d.ctx, l.d.cfg.GiveUp)
	defer cancel()
	began := time.Now()
	complaint := time.AfterFunc(complainAfter, l.complain)
	defer complaint.Stop()
	backoff := time.Millisecond
	for attempt := 0; !l.ended(); attempt++ {
		// A peer that was cut off answers from one moment to the next. Short attempts notice that
		// soon. The long attempts between them are for distant peers.
		patience := shakeTimeout
		if attempt%longAttempt != 0 {
			patience = shakeBriefly
		}
		isBest, err := l.try(ctx, patience, began)
		l.mu.Lock()
		if l.life.State() == life.Dialling && l.d.ctx.Err() == nil {
			switch {
			case errors.Is(err, ErrGone):
				l.actLocked(l.life.End(err))
			case ctx.Err() != nil:
				l.noteFailureLocked(err, true)
				l.actLocked(l.life.End(&NoConnectionError{Peer: l.peer, End: ErrUnreachable, Reason: l.outage.whyNone()}))
			default:
				l.noteFailureLocked(err, hasEnded(ctx))
			}
		}
		if l.life.State() != life.Dialling || l.d.ctx.Err() != nil {
			l.actLocked(l.life.Dialled(isBest, l.s.Expected(), l.s.Next()))
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.d.log.Debug("dispatch: connecting", "peer", l.peer, "err", err)
		t := time.NewTimer(backoff/2 + rand.N(backoff/2+1))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		backoff = min(backoff*2, backoffMost)
	}
}

// addresses asks the directory for the peer's addresses. If it does not answer in time, the
// addresses of the last answer are used. They are also returned with ErrNodeDead.
func (l *link) addresses(ctx context.Context) ([]string, error) {
	l.mu.Lock()
	known := l.addrs
	l.mu.Unlock()
	ask := ctx
	if known != nil {
		var cancel context.CancelFunc
		ask, cancel = timeLimit(ctx, resolveTimeout)
		defer cancel()
	}
	l.noteAttempt("asking the directory for its addresses")
	addrs, err := l.d.cfg.Resolve(ask, l.peer)
	switch {
	case err == nil:
		l.mu.Lock()
		l.addrs = addrs
		l.mu.Unlock()
		return addrs, nil
	case known != nil && hasEnded(ask) && !hasEnded(ctx) && !errors.Is(err, ErrGone):
		return known, nil
	case errors.Is(err, ErrNodeDead) && len(addrs) > 0: // the addresses come from another link with the peer
		known = addrs
	}
	return known, fmt.Errorf("finding context %v: %w", l.peer, err)
}

// try tries each of the peer's addresses once, on the best route first, with patience for each.
// Routes that broke at once lately come last. try reports whether the route that it found is the
// best one. began is when the connect that calls try began.
//
// The error matches ErrGone if the peer has ended. If the directory says that the peer's node is
// dead, the error matches ErrGone only after an attempt without an answer.
func (l *link) try(ctx context.Context, patience time.Duration, began time.Time) (isBest bool, err error) {
	addrs, err := l.addresses(ctx)
	dead := error(nil)
	if errors.Is(err, ErrNodeDead) {
		dead, err, patience = err, nil, shakeTimeout
	}
	if err != nil {
		return true, err
	}
	routes := l.routes()
	switch {
	case dead != nil && !reach(routes, addrs):
		l.mu.Lock()
		hasMet := l.hasMet
		l.mu.Unlock()
		if ctx.Err() == nil && (!hasMet || time.Since(began) >= awaitMost) {
			return true, dead
		}
		return true, fmt.Errorf("the peer has not connected, and cannot be dialled: %v", dead)
	}
	usable, backingOff := l.divide(routes)
	failed, err := l.dialRoutes(ctx, append(usable, backingOff...), addrs, nil, patience)
	if err != nil {
		if dead != nil && !hasEnded(ctx) && !deniesDeath(err) {
			if _, refusal := l.d.neighbour(l.key); refusal == nil { // otherwise the peer is in this process
				err = dead
			}
		}
		return true, err
	}
	return l.isBest(routes, addrs, failed), nil
}

// hasEnded reports whether ctx has ended or its deadline has passed. A call that heeds the deadline
// may return before the timer that ends ctx has run.
func hasEnded(ctx context.Context) bool {
	end, isSet := ctx.Deadline()
	return ctx.Err() != nil || isSet && !time.Now().Before(end)
}

// deniesDeath reports whether a peer may live although its node is said to be dead, given the error
// err of an attempt: the peer has refused the link, or the attempt has not left this machine.
func deniesDeath(err error) bool {
	return errors.Is(err, ErrRefused) || slices.ContainsFunc(localErrors, func(e error) bool { return sockerr.Is(err, e) })
}

// localErrors are the errors of attempts that failed on this machine.
var localErrors = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
	syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EACCES, syscall.EPERM, buffers.ErrLimit,
}
