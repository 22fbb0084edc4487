// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/life"
	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

const (
	pumpRounds = 32 // batches that one call of pump writes before senders are made to batch more
)

// A link is the reliable session between this context and one other, over one lane. It outlives its
// connections: the session resumes over the next connection. The link ends when the peer says
// goodbye, is definitely gone, or has been out of reach for too long.
//
// Its parts, and which goroutine may use them:
//
//	inbound          what arrives             the holder of the progress token
//	session.Session  what is sent             with mu held; a few words are atomic
//	life.Machine     which connection it has  with mu held
//	pen              calling the connection   the writer
type link struct {
	d    *Dispatcher
	peer resource.GID
	key  linkKey

	inbound
	pen         atomic.Uint32
	needsLock   atomic.Bool // the next frames that arrive take mu, see attend
	mostPending int         // the constant, or less in tests

	mu          lock.Mutex[levelLink]
	s           session.Session
	life        life.Machine
	conn        subsys.Conn  // the connection; nil: none
	endpoint    *endpoint    // the sink of conn
	writable    uint64       // counts Writable calls
	canSplit    bool         // conn takes large messages in pieces
	brief       subsys.Brief // conn, if it takes small frames while mu is held; else nil
	unwritten   sync.Cond    // signalled when a turn of writing ends; L is mu
	awaited     int          // goroutines that wait for unwritten
	binders     int          // goroutines that keep other goroutines from writing, to attach another connection
	pace        pace
	isDeferred  bool // l is in Dispatcher.deferred
	liveness    liveness
	endMove     context.CancelFunc // ends the searcher that tries better routes
	retry       *time.Timer        // calls timeout; nil until first set
	addrs       []string           // the peer's addresses, as the directory said last
	since       time.Time          // when conn was made
	outage      outage
	lastError   error  // the last reason of an outage; nil: there was none
	held        int    // messages from a former link that wait for credit
	heir        *link  // the successor that has taken messages over; set when the link ends
	transport   string // the transport of conn, or of the connection before
	backoffs    map[string]*routeBackoff
	flows       map[uint32]*Flow
	goneDst     map[uint32]error    // the latest resources of the peer that are gone
	endings     map[uint32]*endings // by resource of the peer; see OnEnd
	knowsTraces bool                // the peer has FeatureTraces
	hasMet      bool                // there has been a connection, in this session or an earlier one
	contextEnds []*contextEnd       // ends of the peer's resources that are reported once this link has ended
	goneQueue   goneQueue
	closedIn    []*inflow // accounts of mailboxes that were closed and are still in inflows
	full        waitlist  // senders that wait for room in the session
	behind      waitlist  // senders that wait for earlier frames to be acknowledged
	empty       waitlist  // goroutines in Close that wait for the session to be idle
	traffic     traffic
	sentNow     uint64          // messages over the present connection that are not in traffic yet
	ack         [1]subsys.Frame // the frame of an acknowledgement; the writer uses it
}

// newLink returns a link that has no connection yet.
func newLink(d *Dispatcher, key linkKey) *link {
	l := &link{d: d, peer: key.peer, key: key, mostPending: mostPending, flows: map[uint32]*Flow{}}
	l.life = life.New(random64(), key.peer)
	l.inflows = map[uint32]*inflow{}
	l.unwritten.L = &l.mu
	l.s.Init(session.WholeLen, session.PieceLen)
	return l
}

// attendLocked makes the next frames that arrive take mu; needsAttentionLocked has the reasons.
// Otherwise an acknowledgement is only noted, and acted on with the next frame that is sent, or at
// the next tick. mu must be held.
func (l *link) attendLocked() { l.needsLock.Store(true) }

// needsAttentionLocked reports whether one of the reasons for attend holds. mu must be held.
func (l *link) needsAttentionLocked() bool {
	return l.full.First() != nil || // senders wait for acknowledgements, to have room in the session
		l.behind.First() != nil || // senders wait for the acknowledgement of earlier messages
		l.empty.First() != nil || // Close waits for all acknowledgements
		l.s.HasQueued() || // an acknowledgement lets messages in lines be numbered
		l.s.HasLarge() || // an acknowledgement gives memory back
		l.s.Pending() > l.mostPending || // the peer may owe so many acknowledgements that the link ends
		len(l.closedIn) > 0 || // accounts of closed mailboxes are to be dropped
		l.life.State() == life.Idle // a better route is tried again when frames travel
}

// actLocked does what life has decided after an event. mu must be held; actLocked releases it for a
// while if the link ends.
func (l *link) actLocked(do life.Action) {
	if do&life.CancelMove != 0 {
		l.endMove()
	}
	if do&life.CancelSoon != 0 {
		time.AfterFunc(answerMost, l.endMove)
	}
	if do&life.StopTimer != 0 && l.retry != nil {
		l.retry.Stop()
	}
	if do&life.SetTimer != 0 {
		l.attendLocked()
		if l.retry == nil {
			l.retry = time.AfterFunc(l.life.Wait(), l.timeout)
		} else {
			l.retry.Reset(l.life.Wait())
		}
	}
	if do&life.StartDial != 0 {
		if l.outage.since.IsZero() {
			l.outage.since = time.Now()
		}
		l.d.running.Add(1)
		go l.connect()
	}
	if do&life.StartMove != 0 {
		l.startMoveLocked()
	}
	if do&life.Clean != 0 && !l.callWriter() {
		l.finishEndLocked()
	}
}

// timeout is called by the goroutine of the timer retry when it has fired.
func (l *link) timeout() {
	l.mu.Lock()
	l.actLocked(l.life.Timeout(l.s.Expected(), l.s.Next()))
	if l.life.State() == life.Idle {
		l.attendLocked()
	}
	l.mu.Unlock()
}

// waitInLocked waits in a list of l until fired, or until ctx ends. mu must be held; waitInLocked
// releases it while it waits.
func (l *link) waitInLocked(ctx context.Context, list *waitlist) error {
	w := l.d.waiter()
	list.push(w)
	l.attendLocked()
	if !l.callWriter() { // act on earlier acknowledgements first
		l.releaseLocked()
	}
	return l.await(ctx, list, w)
}

// await is waitInLocked for a waiter that is in the list, or was fired already.
func (l *link) await(ctx context.Context, list *waitlist, w *waiter) error {
	l.mu.Unlock()
	err := l.d.progress.Wait(ctx, &w.Waiter)
	l.mu.Lock()
	if w.place.IsListed() {
		list.remove(w)
	} else {
		err = w.cause // fired, perhaps as ctx ended: the turn may not be lost
	}
	l.d.doneWaiting(w)
	return l.explainLocked(err)
}

// copyLocked adds a frame to the open batch, if the frame is small. It reports whether it did. mu
// must be held.
func (l *link) copyLocked(h *subsys.Header, p []byte) bool {
	if len(p) > session.Inline {
		return false
	}
	if l.s.Add(h, p) {
		return true
	}
	b, err := l.d.cfg.Pool.Get(l.s.BatchLen())
	if err != nil {
		return false
	}
	l.s.Open(b)
	return l.s.Add(h, p)
}

// putLocked queues a control frame. mu must be held.
func (l *link) putLocked(typ uint8, dst, src uint32, tag uint64, payload ...byte) {
	h := subsys.Header{Type: typ, Dst: dst, Src: src, Tag: tag, Len: uint32(len(payload))}
	if !l.copyLocked(&h, payload) {
		l.s.Push(&subsys.Frame{Header: h, Data: payload})
	}
}

// postLocked has the queued frames written. The caller writes them, or the goroutine that writes
// already, or the next goroutine that waits. Without a connection, the goroutine that attaches one
// does. mu must be held; postLocked releases it.
func (l *link) postLocked() {
	switch {
	case l.conn == nil:
		l.actLocked(l.life.RequestConn())
	case l.isPacedLocked() && !l.updatePaceLocked(): // the goroutine that writes is not notified: its batch would be small
	case l.callWriter() || l.pen.Load() == penFull || !l.updatePaceLocked():
	case l.sendBrieflyLocked():
		if l.pace.isTimed {
			l.pace.wrote.Store(l.d.clock())
		}
	case l.canWriteLocked() && l.takePenLocked():
		isTimed := l.pace.isTimed
		l.pump()
		if isTimed {
			l.pace.wrote.Store(l.d.clock())
		}
		return
	}
	l.mu.Unlock()
}

// releaseLocked gives back acknowledged frames, and wakes the goroutines that wait for that. mu
// must be held, and no goroutine may write.
func (l *link) releaseLocked() {
	l.s.Release()
	if l.full.First() != nil && l.s.Pending() <= session.MaxUnacked/2 {
		l.full.fireAll()
	}
	l.wakeFlushingLocked()
	if now := l.needsAttentionLocked(); now != l.needsLock.Load() {
		l.needsLock.Store(now)
	}
}

// wakeFlushingLocked wakes the goroutines that wait until messages are delivered or dropped, as far
// as they are. mu must be held.
func (l *link) wakeFlushingLocked() {
	if l.behind.First() != nil {
		l.wakePassedLocked()
	}
	if l.empty.First() != nil && !l.needsAcksLocked() {
		l.empty.fireAll()
	}
}

// dropFailedLocked drops the connection c, which failed, and dials again. mu must be held.
func (l *link) dropFailedLocked(c subsys.Conn, err error) {
	if l.conn != c {
		return
	}
	l.d.often.Info(l.peer.String(), "dispatch: connection lost", "peer", l.peer, "transport", c.Transport(), "err", err)
	l.updateBackoffLocked(c)
	l.outage = outage{since: time.Now(), reason: withoutTimers(fmt.Errorf("connection over %s to %s lost: %w", c.Transport(), c.Remote(), err))}
	l.lastError = l.outage.reason
	l.detachLocked()
	l.actLocked(l.life.Lost())
}

// detachLocked drops the connection, and closes it in the background. mu must be held.
func (l *link) detachLocked() {
	l.flushCountersLocked()
	l.endpoint.isCurrent.Store(false)
	c, brief := l.conn, l.brief
	l.conn, l.endpoint, l.brief = nil, nil, nil
	l.pen.CompareAndSwap(penFull, penIdle)
	go func() { // Close may take long to give memory back
		if c.Close(); brief != nil {
			brief.Release()
		}
	}()
}

// lockAndPut is put for callers without mu. lockAndPost writes the frame, or the goroutine that
// works on what arrived does.
func (l *link) lockAndPut(typ uint8, dst, src uint32, tag uint64, payload ...byte) {
	l.mu.Lock()
	if !l.life.HasEnded() {
		l.putLocked(typ, dst, src, tag, payload...)
	}
	l.mu.Unlock()
}

// gonePayload returns the payload of a Gone frame that refuses a message of src: the message's
// size.
func gonePayload(src uint32, size int) []byte {
	if src == 0 {
		return nil // no sender waits for a report
	}
	return binary.LittleEndian.AppendUint32(nil, uint32(size))
}

// lockAndPost writes what lockAndPut has queued.
func (l *link) lockAndPost() {
	l.mu.Lock()
	if !l.life.HasEnded() && !l.s.IsQuiet() {
		l.postLocked()
	} else {
		l.mu.Unlock()
	}
}

// credit tells the peer how much it may send to m.
func (l *link) credit(m *Mailbox, in *inflow) {
	l.queueCredit(m, in)
	l.lockAndPost()
}

// queueCredit queues a Credit frame with the latest grant, unless the peer has been told that one.
// So the peer knows that each Credit frame has a grant made after the one before. The second of two
// equal frames might come after the peer has given that grant back.
func (l *link) queueCredit(m *Mailbox, in *inflow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	granted, isNew := in.Announce()
	switch unit := in.Unit(); {
	case !isNew:
	case unit > 0:
		l.lockAndPut(wire.TypeCredit, in.dst, 0, granted, binary.LittleEndian.AppendUint64(nil, unit)...)
	default:
		l.lockAndPut(wire.TypeCredit, in.dst, 0, granted)
	}
}

// flushAck acts on what was acknowledged, and acknowledges what arrived.
func (l *link) flushAck() {
	l.mu.Lock()
	if !l.callWriter() {
		l.releaseLocked()
	}
	if l.conn != nil && l.s.AckSent() != l.s.Expected() {
		l.sendAckLocked(l.conn)
	}
	l.mu.Unlock()
}

// ended reports whether the link has ended. mu must not be held.
func (l *link) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life.HasEnded()
}

// endLink ends the link: flows fail with err, and what was not acknowledged is reported as
// undelivered.
func (l *link) endLink(err error) {
	l.mu.Lock()
	l.actLocked(l.life.End(err))
	l.mu.Unlock()
}

// finishEndLocked finishes the end of the link. mu must be held; finishEndLocked releases it for
// the reports. No goroutine may write.
func (l *link) finishEndLocked() {
	if !l.life.Cleaned() {
		return
	}
	cause := l.life.Cause()
	if l.conn != nil {
		l.detachLocked()
	}
	var reports []Undelivered
	lost := func(f *subsys.Header) {
		if f.Type == wire.TypeData && isReported(f) {
			to := l.targetOf(f)
			l.d.countLost(f.Src, to, cause) // before a Flush sees that nothing is under way any more
			reports = append(reports, Undelivered{From: l.d.self.WithSerial(f.Src), To: to, Tag: f.Tag, Bytes: int(f.Len), Err: cause})
		}
	}
	succession := l.succeedLocked(lost)
	for _, f := range l.flows {
		if f.gone == nil {
			f.gone = cause
		}
		f.loseHeldLocked(lost)
		f.waiters.fireAll()
	}
	var ended []*ending
	for _, list := range l.endings {
		ended = append(ended, list.take()...)
	}
	l.endings = nil
	contextEnds := l.contextEnds
	l.contextEnds = nil
	l.s.Drain(lost)
	l.full.fireAll()
	l.behind.fireAll()
	l.empty.fireAll()
	l.flushCountersLocked()
	l.mu.Unlock()
	l.d.unlink(l)
	l.d.inBackground(l.closeAccounts) // this goroutine may hold the token, and locks
	if succession != nil {
		succession.finish(l.d, cause)
	}
	for _, u := range reports {
		l.d.report(u)
	}
	if ended != nil {
		l.d.notifyContextEnd(l.peer, ended, cause)
	}
	for _, g := range contextEnds {
		g.linkEnded()
	}
	l.mu.Lock()
}

// context returns the peer: the link is the sending side of its messages.
func (l *link) context() resource.GID { return l.peer }

// refuse tells the peer that a message from it is not delivered.
func (l *link) refuse(in *inflow, src uint32, tag uint64, size int) {
	l.lockAndPut(wire.TypeGone, in.dst, src, tag, gonePayload(src, size)...)
	l.lockAndPost()
}

// mailboxClosed tells the peer that a resource is gone. The next goroutine that works on received
// frames forgets the peer's account with the resource.
func (l *link) mailboxClosed(in *inflow) {
	l.mu.Lock()
	if l.life.HasEnded() {
		l.mu.Unlock()
		return
	}
	l.closedIn = append(l.closedIn, in)
	l.attendLocked()
	l.mu.Unlock()
	l.queueGone(in.dst)
	l.lockAndPost()
}

// forget drops the accounts with resources that are gone: serials are not used again. The token
// must be held.
func (l *link) forget(ended []*inflow) {
	for _, in := range ended {
		if l.inflows[in.dst] == in {
			delete(l.inflows, in.dst)
		}
		if l.lastFlow == in {
			l.lastFlow = nil
		}
	}
}

// closeAccounts gives back to the mailboxes the credit that the peer has not used, after the link
// has ended. It runs in a goroutine of its own.
func (l *link) closeAccounts() {
	l.d.progress.Lock()
	ins := l.inflows
	l.noteFormer()
	l.dropParts()
	l.inflows, l.lastFlow, l.accountsClosed = map[uint32]*inflow{}, nil, true
	l.d.progress.Unlock()
	for _, in := range ins {
		if in.mb != nil {
			in.mb.closeAccount(in)
		}
	}
	if f := l.d.cfg.Ended; f != nil {
		f(l.peer)
	}
}

// undelivered counts a message that cannot be delivered, and queues the report of it. It calls no
// function of the program except the logger. A reply that was not delivered is not reported, since
// no call waits for it.
func (d *Dispatcher) undelivered(u Undelivered) {
	if u.To.Serial() == wire.Replies {
		return
	}
	d.countLost(u.From.Serial(), u.To, u.Err)
	d.report(u)
}

// report queues the report of a message that has been counted.
func (d *Dispatcher) report(u Undelivered) {
	d.log.Debug("dispatch: undelivered", "to", u.To, "from", u.From, "tag", u.Tag, "err", u.Err)
	if !d.reports.Add(u) {
		if n := d.unreported.Add(1); n == 1 {
			// Cause: the function of `WithUndelivered` is slow. Remedy: make it return sooner.
			d.log.Error("dispatch: dropping reports of undelivered messages: the function for them does not return in time", "waiting", d.reports.Most)
		}
	}
}

// drain waits until everything that was queued has been acknowledged, except messages of
// SendAndForget.
func (l *link) drain(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.life.HasEnded() && l.needsAcksLocked() {
		l.writeLocked()
		if !l.needsAcksLocked() || l.life.HasEnded() {
			return
		}
		if l.waitInLocked(ctx, &l.empty) != nil {
			// Cause: `Close` gave up after `WithLinger`. Remedy: raise it, or `Flush` first.
			l.d.log.Warn("dispatch: closing a link with unacknowledged frames", "peer", l.peer, "frames", l.s.Pending(),
				"unsent", l.s.Unsent(), "state", l.life.State(), "full", l.pen.Load() == penFull)
			return
		}
	}
}

// sayGoodbye tells the peer that this context ends, and ends the link.
func (l *link) sayGoodbye() {
	l.mu.Lock()
	l.life.SetCause(ErrClosed) // the peer may end the link as soon as it has the goodbye
	if !l.life.HasEnded() {
		l.putLocked(wire.TypeBye, 0, 0, 0)
	}
	l.awaitPenLocked() // a goroutine that writes would stop at once as the link ends
	l.writeLocked()
	if l.s.IsQuiet() && l.s.Pending() == 1 {
		_ = l.s.Acked(l.s.Sent()) // no context acknowledges a goodbye
	}
	l.awaitPenLocked() // so that finishEndLocked runs here, and not after Close in another goroutine that writes
	l.actLocked(l.life.End(ErrClosed))
	l.mu.Unlock()
}
