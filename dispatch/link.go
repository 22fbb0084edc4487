// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// Frame types; docs/PROTOCOL.md draws each. Those of the handshake travel
// before a conn belongs to a link, those from frameData to framePiece are
// numbered by the session and repeated after a broken conn, frameAck is
// neither.
const (
	frameHello = 1 + iota
	frameChallenge
	frameAttach
	frameReady
	frameRefuse
)

const (
	frameData   = 16 + iota // tag, src, dst, payload
	frameCredit             // tag: total charged bytes that dst may have been sent
	frameNeed               // tag: total the sender waits for
	frameGone               // dst does not exist; src: origin of a refused message, tag: its tag, payload: its size
	frameBye                // the context ends
	frameBegin              // tag, src, dst of a message in pieces; payload: its length
	framePiece              // dst, src, tag: the offset in the message that has begun; payload
)

const frameAck = 32

const (
	pumpRounds = 32       // batches one caller writes before senders are made to batch more
	inline     = 2 << 10  // payloads up to this are copied behind their header at once
	smallRun   = 4 << 10  // bytes of the first run after a pause,
	largeRun   = 64 << 10 // and of those that follow a full one
)

// A link joins this context with one other. It outlives its conns: the
// session resumes over the next one. It ends when the peer says goodbye, is
// definitely gone, or has been out of reach for too long.
//
// mu is never held while a conn is called. Only one goroutine at a time writes
// (writing); others add to the session and leave, and the writer takes their
// frames along.
type link struct {
	d    *Dispatcher
	peer resource.GID
	key  linkKey
	rule *Rule // of its lane; nil if that is the common one, or the peer's

	// rx is held while a batch of received frames is worked on, so that two
	// conns of one link cannot interleave, nor two lanes with one peer. It is
	// taken before mu.
	rx       *sync.Mutex
	inflows  map[uint32]*inflow
	lastFlow *inflow
	answered bool // work has queued frames
	// Of the frames that work has queued, so many were since the frame numbered
	// answersFrom, which the peer has not acknowledged.
	answers     int
	answersFrom uint32
	left        bool // the mailboxes have been told that we end
	parts       []part
	whole       [1]subsys.Frame // a message of which the last piece has come

	mu        sync.Mutex
	s         session
	id        uint64 // of our end of the session
	peerID    uint64 // of the peer's, 0 before the first handshake
	gen       uint64 // counts the conns of the session, agreed in the handshake
	conn      subsys.Conn
	stalled   bool   // the conn took too little
	writable  uint64 // counts Writable calls
	runs      bool   // the conn, or the last one, does not deliver: it acknowledges, and small frames are encoded at once
	cuts      bool   // large messages go over the conn in pieces
	writing   bool
	unwritten sync.Cond // signalled when writing ends; L is mu
	stream    pace
	vigil     vigil
	dialling  bool
	endMove   context.CancelFunc // of the search for a better route under way, or nil
	addrs     []string           // of the peer, as the directory said last
	proposed  uint64             // the gen of our handshake under way, or 0
	binders   int                // who wait for writing to end, to attach another conn
	ready     bool               // who writes says Ready, and the peer may wait for us
	since     time.Time
	over      string // the transport of the conn, or of the last one
	trial     trial
	shunned   map[string]*shunned
	flows     map[uint32]*Flow
	goneDst   map[uint32]error // the latest resources of the peer that are gone
	closedIn  []*inflow        // of mailboxes that were closed, still among inflows
	full      waitlist         // senders waiting for room in the session
	behind    waitlist         // senders waiting for what went before to be acknowledged
	empty     waitlist         // closers waiting for the session to be idle
	leaving   bool             // we say goodbye
	dead      error
	buried    bool
	traffic   traffic
	sentNow   uint64 // messages over the present conn, not yet in traffic
	gotNow    uint64
	ack       [1]subsys.Frame // of who writes
	unacked   int             // bytes received since the last acknowledgement
}

func newLink(d *Dispatcher, peer resource.GID, id uint64) *link {
	l := &link{d: d, peer: peer, key: linkKey{peer: peer}, rx: new(sync.Mutex), id: id, inflows: map[uint32]*inflow{}, flows: map[uint32]*Flow{}}
	l.unwritten.L = &l.mu
	l.s.piece = pieceLen
	return l
}

// waitIn waits in a list of l until fired. mu is held on entry and on return.
func (l *link) waitIn(ctx context.Context, list *waitlist) error {
	w := l.d.waiter()
	list.push(w)
	return l.await(ctx, list, w)
}

// await is waitIn for a waiter that is in the list, or was fired already.
func (l *link) await(ctx context.Context, list *waitlist, w *waiter) error {
	l.mu.Unlock()
	err := l.d.wait(ctx, w)
	l.mu.Lock()
	if w.listed {
		list.remove(w)
	} else {
		err = nil // fired as ctx ended: the turn may not be lost
	}
	l.d.doneWaiting(w)
	return err
}

// copy adds a frame to the open run, if that is how the conn wants it. mu is
// held.
func (l *link) copy(h *subsys.Header, p []byte) bool {
	if !l.runs || len(p) > inline {
		return false
	}
	if l.s.add(h, p) {
		return true
	}
	size := smallRun
	if l.s.running() { // it is full
		size = largeRun
	}
	b, err := l.d.cfg.Pool.Get(size)
	if err != nil {
		return false
	}
	l.s.open(b)
	return l.s.add(h, p)
}

// put queues a control frame. mu is held.
func (l *link) put(typ uint8, dst, src uint32, tag uint64, payload ...byte) {
	h := subsys.Header{Type: typ, Dst: dst, Src: src, Tag: tag, Len: uint32(len(payload))}
	if !l.copy(&h, payload) {
		l.s.push(&subsys.Frame{Header: h, Data: payload})
	}
}

// post sees to it that what was queued is written: by us, by whoever writes
// already, by whoever waits next, or, once there is a conn, by whoever attaches
// it. mu is held, but given up while a conn is called.
func (l *link) post() {
	switch {
	case l.writing || l.stalled:
	case l.conn == nil:
		l.dial()
	case !l.runs || l.now():
		l.pump()
	}
}

// pump writes what is unsent. mu is held, but given up while the conn is
// called; writing must be false.
func (l *link) pump() {
	l.writing = true
	if l.trial.resting {
		l.stir()
	}
	for round := 0; l.conn != nil && !l.stalled && l.dead == nil && !l.s.quiet() && l.binders == 0; round++ {
		if round > 0 && l.runs && (l.paced() && l.s.due() < flushBytes || round >= pumpRounds && l.s.turn == nil && l.setPace()) {
			break // others add as fast as we write: let it become more
		}
		l.feed()
		fs := l.s.take()
		c, before := l.conn, l.writable
		l.mu.Unlock()
		n, err := c.Send(fs)
		l.mu.Lock()
		if l.conn != c {
			continue
		}
		l.s.untake(fs, n)
		l.watch()
		if err != nil {
			l.lose(c, err)
			continue
		}
		if !l.runs {
			_ = l.s.acked(l.s.sent)
		}
		l.release()
		if n < len(fs) && l.writable == before {
			l.stalled = true
		}
	}
	l.doneWriting()
}

// hold waits until nobody writes, and keeps others from beginning until unhold.
// It gives up, and is false, where who writes may wait for our stack. mu is held.
func (l *link) hold(ours bool) bool {
	l.binders++
	for l.writing { // a conn never blocks
		if ours && l.ready {
			l.unhold()
			return false
		}
		l.unwritten.Wait()
	}
	return true
}

// unhold lets writing go on. mu is held.
func (l *link) unhold() {
	l.binders--
	if l.binders == 0 && l.conn != nil && !l.writing && !l.stalled && l.dead == nil && !l.s.quiet() {
		l.pump()
	}
}

// doneWriting ends a turn of writing. mu is held.
func (l *link) doneWriting() {
	l.writing = false
	l.release() // what was acknowledged meanwhile
	l.unwritten.Broadcast()
	if l.dead != nil {
		l.bury()
	}
}

// release lets go of what was acknowledged and wakes those who wait for that.
// mu is held, and no conn has frames in its hands.
func (l *link) release() {
	l.s.release()
	if l.full.first != nil && l.s.pending() <= maxUnacked/2 {
		l.full.fireAll()
	}
	if l.behind.first != nil {
		l.pass()
	}
	if l.empty.first != nil && l.s.idle() {
		l.empty.fireAll()
	}
}

// lose lets go of a conn that failed and dials again, also if there is nothing
// to say: the peer may be gone, and then whoever waits for its credit is to be
// told, and what the mailboxes promised it given back. mu is held.
func (l *link) lose(c subsys.Conn, err error) {
	if l.conn != c {
		return
	}
	l.d.often.Info(l.peer.String(), "dispatch: connection lost", "peer", l.peer, "transport", c.Transport(), "err", err)
	l.judge(c)
	l.detach()
	if l.endMove != nil { // move dials then
		l.endMove()
	}
	l.dial()
}

func (l *link) detach() {
	c := l.conn
	l.settle()
	l.conn, l.stalled = nil, false
	go c.Close() // it may call a sink, and we hold mu
}

// push adds a control frame, which speak writes, or who works on what came.
func (l *link) push(typ uint8, dst, src uint32, tag uint64, payload ...byte) {
	l.mu.Lock()
	if l.dead == nil {
		l.put(typ, dst, src, tag, payload...)
	}
	l.mu.Unlock()
}

// lost is the payload of a Gone that refuses a message of src: its size.
func lost(src uint32, size int) []byte {
	if src == 0 {
		return nil // there is nobody to be told
	}
	return binary.LittleEndian.AppendUint32(nil, uint32(size))
}

// speak writes what was pushed.
func (l *link) speak() {
	l.mu.Lock()
	if l.dead == nil && !l.s.quiet() {
		l.post()
	}
	l.mu.Unlock()
}

// credit tells the peer how much it may send to m.
func (l *link) credit(m *Mailbox, in *inflow) {
	l.tell(m, in)
	l.speak()
}

// tell is push of a Credit frame. It says what was granted last, so what the peer is
// told never falls but where the peer has given credit back.
func (l *link) tell(m *Mailbox, in *inflow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.push(frameCredit, in.dst, 0, in.granted)
}

// sayAck acknowledges without having anything to send. mu is held.
func (l *link) sayAck(c subsys.Conn) {
	if l.writing || l.stalled || !l.s.quiet() {
		// A frame queued after it came carries it, but those that wait or are
		// in a writer's hands may all be older: look again at the next tick.
		l.d.acksDue.Store(true)
		return
	}
	l.writing = true
	l.s.rxTold, l.unacked = l.s.rxNext, 0
	fs := &l.ack // a local one would be garbage
	fs[0] = subsys.Frame{}
	fs[0].Type, fs[0].Ack = frameAck, l.s.rxNext
	before := l.writable
	l.mu.Unlock()
	n, err := c.Send(fs[:])
	l.mu.Lock()
	if l.conn == c {
		if err != nil {
			l.lose(c, err)
		} else if n == 0 {
			l.stalled = l.writable == before
			l.s.rxTold--
			l.d.acksDue.Store(true)
		}
	}
	l.doneWriting()
	if l.conn != nil && !l.stalled && !l.s.quiet() {
		l.pump()
	}
}

func (l *link) flushAck() {
	l.mu.Lock()
	if l.conn != nil && l.s.rxTold != l.s.rxNext {
		l.sayAck(l.conn)
	}
	l.mu.Unlock()
}

// onWritable continues after the conn was full.
func (l *link) onWritable(c subsys.Conn) {
	l.mu.Lock()
	l.writable++
	if l.conn == c {
		l.stalled = false
		if !l.writing {
			l.pump()
		}
	}
	l.mu.Unlock()
}

// die ends the link: flows fail with err, what was not acknowledged is
// reported as undelivered. Where somebody writes, who may be up our own stack,
// the writer finishes it.
func (l *link) die(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead != nil {
		return
	}
	if l.leaving { // the peer may hear of it and let go before we are done
		err = ErrClosed
	}
	l.dead = err
	if !l.writing {
		l.bury()
	}
}

// bury is the second half of die. mu is held, but given up for the reports.
func (l *link) bury() {
	if l.buried {
		return
	}
	l.buried = true
	if l.conn != nil {
		l.detach()
	}
	l.endTrial()
	for _, f := range l.flows {
		if f.gone == nil {
			f.gone = l.dead
		}
		f.waiters.fireAll()
	}
	var reports []Undelivered
	l.s.drain(func(f *subsys.Header) {
		if f.Type == frameData {
			reports = append(reports, Undelivered{From: l.d.self.WithSerial(f.Src), To: l.peer.WithSerial(f.Dst), Tag: f.Tag, Bytes: int(f.Len), Err: l.dead})
		}
	})
	l.full.fireAll()
	l.behind.fireAll()
	l.empty.fireAll()
	l.settle()
	l.mu.Unlock()
	l.d.unlink(l)
	l.d.inBackground(l.leave) // rx may be held by our caller
	for _, u := range reports {
		l.d.undelivered(u)
	}
	l.mu.Lock()
}

// ends tells the peer that a resource is gone, and lets whoever works on received
// frames next forget the peer's account with it.
func (l *link) ends(in *inflow) {
	l.mu.Lock()
	if l.dead == nil {
		l.closedIn = append(l.closedIn, in)
		l.put(frameGone, in.dst, 0, 0)
		l.post()
	}
	l.mu.Unlock()
}

// forget drops the accounts with resources that are gone: serials are not used again.
// rx must be held.
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

// leave gives the mailboxes back what they had promised to the peer.
func (l *link) leave() {
	l.rx.Lock()
	for _, in := range l.inflows {
		if in.mb != nil {
			in.mb.leave(in)
		}
	}
	l.dropParts()
	l.inflows, l.lastFlow, l.left = map[uint32]*inflow{}, nil, true
	l.rx.Unlock()
	if f := l.d.cfg.Ended; f != nil {
		f(l.peer)
	}
}

// undelivered counts a message that cannot be delivered, and queues the report
// of it. It calls nothing of the user's but the logger.
func (d *Dispatcher) undelivered(u Undelivered) {
	d.lost.Add(1)
	d.log.Debug("dispatch: undelivered", "to", u.To, "from", u.From, "tag", u.Tag, "err", u.Err)
	if !d.reports.Add(u) {
		if n := d.unreported.Add(1); n == 1 {
			d.log.Error("dispatch: dropping reports of undelivered messages: the function for them does not return in time", "waiting", d.reports.Most)
		}
	}
}

// drain waits until everything pushed has been acknowledged.
func (l *link) drain(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.dead == nil && !l.s.idle() {
		if l.conn != nil && !l.writing && !l.stalled {
			l.pump()
			if l.s.idle() {
				return
			}
		}
		if l.waitIn(ctx, &l.empty) != nil {
			l.d.log.Warn("dispatch: closing, and not all is acknowledged", "peer", l.peer, "frames", l.s.pending(),
				"unsent", l.s.unsent, "connected", l.conn != nil, "stalled", l.stalled, "writing", l.writing)
			return
		}
	}
}

// bye tells the peer that we end, and ends the link.
func (l *link) bye() {
	l.mu.Lock()
	l.leaving = true
	if l.dead == nil {
		l.put(frameBye, 0, 0, 0)
	}
	for l.writing { // who writes would stop at once as the link dies; a conn never blocks
		l.unwritten.Wait()
	}
	if l.conn != nil && !l.stalled {
		l.pump()
	}
	if l.s.quiet() && l.s.pending() == 1 {
		_ = l.s.acked(l.s.sent) // nobody will acknowledge a goodbye
	}
	l.mu.Unlock()
	l.die(ErrClosed)
}
