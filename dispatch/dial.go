// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/life"
)

const (
	shakeBriefly   = 500 * time.Millisecond // in place of shakeTimeout,
	longAttempt    = 4                      // but for one attempt of so many
	backoffMost    = 200 * time.Millisecond // between attempts
	resolveTimeout = 500 * time.Millisecond // for the directory, where addresses are known
)

// ErrNodeDead is what a [Resolver] returns of a context whose node is dead, as the directory
// has it. Processes of the node may live, as where its directory's daemon was killed. So the
// addresses that are known are tried, once, before the context is taken for ended. It matches
// ErrGone.
var ErrNodeDead = fmt.Errorf("%w: its node is dead", ErrGone)

// connect is the searcher that dials, until the link has a connection, from whichever side,
// or has ended. It ends within GiveUp, whatever does not answer: the directory or the peer.
func (l *link) connect() {
	defer l.d.running.Done()
	ctx, cancel := context.WithTimeout(l.d.life, l.d.cfg.GiveUp)
	defer cancel()
	backoff := time.Millisecond
	for attempt := 0; ; attempt++ {
		// A peer that is cut off answers from one moment to the next. Short
		// attempts find that out soon; the long ones between are for peers far
		// away.
		patience := shakeTimeout
		if attempt%longAttempt != 0 {
			patience = shakeBriefly
		}
		isBest, err := l.try(ctx, patience)
		l.mu.Lock()
		if l.life.State() != life.Dialling || l.d.life.Err() != nil {
			l.act(l.life.Dialled(isBest, l.s.Expected(), l.s.Next()))
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.d.log.Debug("dispatch: connecting", "peer", l.peer, "err", err)
		if errors.Is(err, ErrGone) {
			l.die(err)
			continue
		}
		if ctx.Err() != nil {
			l.die(fmt.Errorf("%w: %v: %w", ErrUnreachable, l.peer, err))
			continue
		}
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
// in time, the addresses of the last answer are used.
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
	}
	return nil, fmt.Errorf("finding context %v: %w", l.peer, err)
}

// try goes once through the peer's addresses, cheapest transport first, with
// patience for each. What broke at once lately comes last. It reports whether the route
// that was found is the best one.
func (l *link) try(ctx context.Context, patience time.Duration) (isBest bool, err error) {
	addrs, err := l.addresses(ctx)
	dead := error(nil)
	if errors.Is(err, ErrNodeDead) {
		l.mu.Lock()
		addrs, dead = l.addrs, err
		l.mu.Unlock()
		if len(addrs) > 0 && !l.key.theirs {
			err = nil
		}
	}
	if err != nil {
		return true, err
	}
	if l.key.theirs {
		return true, errors.New("the peer, whose lane it is, has not connected")
	}
	routes := l.routes()
	failed, err := l.through(ctx, routes, addrs, nil, false, patience)
	if err != nil {
		if _, again := l.through(ctx, routes, addrs, nil, true, patience); again == nil {
			err = nil
		}
	}
	switch {
	case err != nil && dead != nil:
		return true, dead
	case err != nil:
		return true, err
	}
	return l.isBest(routes, addrs, failed), nil
}
