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
)

const (
	shakeBriefly   = 500 * time.Millisecond // in place of shakeTimeout,
	longAttempt    = 4                      // but for one attempt of so many
	backoffMost    = 200 * time.Millisecond // between attempts
	resolveTimeout = 500 * time.Millisecond // for the directory, where addresses are known
)

// awaitMost is the time for which a link that cannot dial its peer leaves the peer to dial,
// although the directory says that the peer's node is dead.
const awaitMost = shakeTimeout + resolveTimeout

// ErrNodeDead is returned by a [Resolver] when the directory says that the context's node
// is dead. The context may live if only its directory has ended, so the link dials the known
// addresses once before it ends. ErrNodeDead matches ErrGone.
var ErrNodeDead = fmt.Errorf("%w: its node is dead", ErrGone)

// connect is the searcher that dials, until the link has a connection, from whichever side,
// or has ended. It ends within GiveUp, whatever does not answer: the directory or the peer.
func (l *link) connect() {
	defer l.d.running.Done()
	ctx, cancel := context.WithTimeout(l.d.life, l.d.cfg.GiveUp)
	defer cancel()
	began := time.Now()
	backoff := time.Millisecond
	for attempt := 0; !l.ended(); attempt++ {
		// A peer that is cut off answers from one moment to the next. Short
		// attempts find that out soon; the long ones between are for peers far
		// away.
		patience := shakeTimeout
		if attempt%longAttempt != 0 {
			patience = shakeBriefly
		}
		isBest, err := l.try(ctx, patience, began)
		l.mu.Lock()
		if l.life.State() == life.Dialling && l.d.life.Err() == nil {
			switch {
			case errors.Is(err, ErrGone):
				l.act(l.life.Ends(err))
			case ctx.Err() != nil:
				l.act(l.life.Ends(fmt.Errorf("%w: %v: %w", ErrUnreachable, l.peer, err)))
			}
		}
		if l.life.State() != life.Dialling || l.d.life.Err() != nil {
			l.act(l.life.Dialled(isBest, l.s.Expected(), l.s.Next()))
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

// addresses asks the directory for the peer's addresses. If it does not answer
// in time, the addresses of the last answer are used. They are also returned with
// ErrNodeDead.
func (l *link) addresses(ctx context.Context) ([]string, error) {
	l.mu.Lock()
	known := l.addrs
	l.mu.Unlock()
	ask := ctx
	if known != nil {
		var cancel context.CancelFunc
		ask, cancel = context.WithTimeout(ctx, resolveTimeout)
		defer cancel()
	}
	addrs, err := l.d.cfg.Resolve(ask, l.peer)
	switch {
	case err == nil:
		l.mu.Lock()
		l.addrs = addrs
		l.mu.Unlock()
		return addrs, nil
	case known != nil && ask.Err() != nil && ctx.Err() == nil && !errors.Is(err, ErrGone):
		return known, nil
	case errors.Is(err, ErrNodeDead) && len(addrs) > 0: // of another link with the peer
		known = addrs
	}
	return known, fmt.Errorf("finding context %v: %w", l.peer, err)
}

// try goes once through the peer's addresses, cheapest transport first, with
// patience for each. What broke at once lately comes last. It reports whether the route
// that was found is the best one. The connect of which it is an attempt began at began.
//
// The error matches ErrGone if the peer has ended. Where the directory says that the peer's
// node is dead, that needs an attempt to which nobody has answered.
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
	case dead != nil && (l.key.theirs || !reach(routes, addrs)):
		l.mu.Lock()
		hasMet := l.hasMet
		l.mu.Unlock()
		if ctx.Err() == nil && (!hasMet || time.Since(began) >= awaitMost) {
			return true, dead
		}
		return true, fmt.Errorf("the peer has not connected, and cannot be dialled: %v", dead)
	case l.key.theirs:
		return true, errors.New("the peer, whose lane it is, has not connected")
	}
	failed, err := l.through(ctx, routes, addrs, nil, false, patience)
	if err != nil {
		_, again := l.through(ctx, routes, addrs, nil, true, patience)
		switch {
		case again == nil:
			err = nil
		case dead != nil && ctx.Err() == nil && !deniesDeath(err) && !deniesDeath(again):
			err = dead
		}
	}
	if err != nil {
		return true, err
	}
	return l.isBest(routes, addrs, failed), nil
}

// deniesDeath reports whether a peer of which an attempt failed with err may live although
// its node is said to be dead: it has refused the link, or the attempt has not left this
// machine.
func deniesDeath(err error) bool {
	return errors.Is(err, ErrRefused) || slices.ContainsFunc(localErrors, func(e error) bool { return errors.Is(err, e) })
}

// localErrors are those of an attempt that this machine has not let begin.
var localErrors = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
	syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EACCES, syscall.EPERM, buffers.ErrLimit,
}
