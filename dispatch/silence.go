// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"slices"
	"time"

	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/subsys"
)

// A machine that loses power, or a network that is cut, ends no connection. The kernel retransmits
// at growing intervals for a quarter of an hour, and is up to two minutes late when the network
// works again. So a link that expects something of its peer is watched. If the peer's machine does
// not answer what was sent to it, the link drops the connection and dials the peer. Dialling asks
// the directory, which knows whether the node is dead. If the node lives, the session resumes.
//
// The answers come from the peer's kernel, so a process that is stopped or busy does not count as
// silent. A link expects something while frames are not acknowledged, while a sender waits for
// credit, or while a function waits for the end of a resource. A link that expects nothing is not
// watched and costs nothing.
const (
	watchTick   = 250 * time.Millisecond // the time between two checks of the watched links
	silenceMost = time.Second            // the time without an answer after which a link drops its connection
	probeEvery  = time.Second            // the time between two probes of a link that expects something and has nothing in flight
)

// errSilent is why a connection to a silent machine is dropped.
var errSilent = errors.New("dispatch: the peer's machine does not answer")

// watched has the links that expect something.
type watched struct {
	mu    lock.Mutex[levelWatched]
	links []*link
	wake  chan struct{} // wakes watchLinks
}

// liveness is what a link knows of its peer's silence. link.mu guards it.
type liveness struct {
	isWatched bool
	silence   subsys.Silence
	probed    time.Time // when an answer was last asked for
	starved   int       // senders that wait for credit
}

// watchLocked makes watchLinks check l while it expects something. mu must be held.
func (l *link) watchLocked() {
	if l.liveness.isWatched {
		return
	}
	l.liveness.isWatched = true
	w := &l.d.watched
	w.mu.Lock()
	w.links = append(w.links, l)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// watchLinks checks the watched links, each tick while there are any. New starts its goroutine,
// which ends with the Dispatcher.
func (d *Dispatcher) watchLinks() {
	defer d.running.Done()
	t := time.NewTimer(watchTick)
	defer t.Stop()
	for {
		select {
		case <-d.watched.wake:
		case <-d.stop:
			return
		}
		for any := true; any; any = d.checkLinks() {
			t.Reset(watchTick)
			select {
			case <-t.C:
			case <-d.stop:
				return
			}
		}
	}
}

// checkLinks checks each watched link, and reports whether any remain.
func (d *Dispatcher) checkLinks() (any bool) {
	w := &d.watched
	w.mu.Lock()
	links := slices.Clone(w.links)
	w.mu.Unlock()
	now := time.Now()
	for _, l := range links {
		l.check(now)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.links) > 0
}

// unwatchLocked ends the watching. mu must be held.
func (l *link) unwatchLocked() {
	w := &l.d.watched
	w.mu.Lock()
	if i := slices.Index(w.links, l); i >= 0 {
		w.links = slices.Delete(w.links, i, i+1)
	}
	w.mu.Unlock()
	l.liveness.isWatched, l.liveness.silence = false, subsys.Silence{}
}

// check drops the connection if the peer's machine is silent. If the machine owes no answer, check
// asks for one.
func (l *link) check(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := &l.liveness
	c, isProber := l.conn.(subsys.Prober)
	if !isProber || l.life.HasEnded() || l.isIdleLocked() && v.starved == 0 && len(l.endings) == 0 && len(l.contextEnds) == 0 {
		l.unwatchLocked() // bind watches the next connection
		return
	}
	l.mu.Unlock()
	owes, heard := c.Unanswered()
	l.mu.Lock()
	if l.conn != subsys.Conn(c) || l.life.HasEnded() {
		return
	}
	silent := v.silence.Observe(now, owes, heard)
	switch {
	case silent >= silenceMost:
		v.silence = subsys.Silence{}
		l.dropFailedLocked(c, errSilent)
	case !owes && now.Sub(v.probed) >= probeEvery:
		v.probed = now
		l.sendAckLocked(c)
	}
}
