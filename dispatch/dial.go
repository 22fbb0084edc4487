package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// dial starts connecting, unless that is under way. mu is held.
func (l *link) dial() {
	if l.dialling || l.dead != nil || l.conn != nil {
		return
	}
	l.dialling = true
	l.d.running.Add(1)
	go l.connect()
}

// connect dials until the link has a conn, from whichever side, or is dead.
func (l *link) connect() {
	defer l.d.running.Done()
	ctx := l.d.life
	start := time.Now()
	backoff := time.Millisecond
	for {
		err := l.try(ctx)
		l.mu.Lock()
		if l.conn != nil || l.dead != nil || ctx.Err() != nil {
			l.dialling = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.d.log.Debug("dispatch: connecting", "peer", l.peer, "err", err)
		if errors.Is(err, ErrGone) {
			l.die(err)
			continue
		}
		if time.Since(start) > l.d.cfg.GiveUp {
			l.die(fmt.Errorf("%w: %v: %w", ErrUnreachable, l.peer, err))
			continue
		}
		t := time.NewTimer(backoff/2 + rand.N(backoff/2+1))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		backoff = min(backoff*2, 200*time.Millisecond)
	}
}

// try goes once through the peer's addresses, cheapest transport first. What
// broke at once lately comes last.
func (l *link) try(ctx context.Context) error {
	addrs, err := l.d.cfg.Resolve(ctx, l.peer)
	if err != nil {
		return fmt.Errorf("finding context %v: %w", l.peer, err)
	}
	if l.key.theirs {
		return errors.New("the peer, whose lane it is, has not connected")
	}
	routes := l.routes()
	failed, err := l.through(ctx, routes, addrs, nil, false)
	if err != nil {
		if _, again := l.through(ctx, routes, addrs, nil, true); again == nil {
			err = nil
		}
	}
	if err == nil {
		l.settleFor(routes, addrs, failed)
	}
	return err
}
