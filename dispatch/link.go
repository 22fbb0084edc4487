package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// Frame types; docs/PROTOCOL.md draws each. Those of the handshake travel
// before a conn belongs to a link, those from frameData to frameBye are
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
	frameGone               // dst does not exist; src: origin of a refused message, tag: its tag
	frameBye                // the context ends
)

const frameAck = 32

const (
	batchFrames = 256 // frames handed to a conn at once
	pumpRounds  = 32  // batches one caller writes before the flusher takes over
	burst       = 5 * time.Microsecond
	inlineFlush = 512 // queued frames at which a streaming sender writes itself
	ackFrames   = 256 // received frames after which an acknowledgement goes out by itself
)

// traffic counts the messages of a link. Guarded by link.mu.
type traffic struct {
	sent, received   map[string]uint64 // by transport
	sentB, receivedB uint64
	resumed          uint64
	resent           uint64
}

func (t *traffic) add(o *traffic) {
	if t.sent == nil {
		t.sent, t.received = map[string]uint64{}, map[string]uint64{}
	}
	for k, v := range o.sent {
		t.sent[k] += v
	}
	for k, v := range o.received {
		t.received[k] += v
	}
	t.sentB += o.sentB
	t.receivedB += o.receivedB
	t.resumed += o.resumed
	t.resent += o.resent
}

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

	// rx is held while a batch of received frames is worked on, so that two
	// conns of one link cannot interleave. It is taken before mu.
	rx       sync.Mutex
	inflows  map[uint32]*inflow
	lastFlow *inflow

	mu        sync.Mutex
	s         session
	id        uint64 // of our end of the session
	peerID    uint64 // of the peer's, 0 before the first handshake
	gen       uint64 // counts the conns of the session, agreed in the handshake
	conn      subsys.Conn
	stalled   bool   // the conn took too little
	writable  uint64 // counts Writable calls
	writing   bool
	unwritten sync.Cond // signalled when writing ends; L is mu
	streaming bool      // the flusher looks after us
	heard     bool      // something came since the last direct write
	wrote     time.Time
	dialling  bool
	proposed  uint64 // the gen of our handshake under way, or 0
	flows     map[uint32]*Flow
	full      waitlist // senders waiting for room in the session
	empty     waitlist // closers waiting for the session to be idle
	dead      error
	buried    bool
	traffic   traffic
	sentNow   uint64 // messages over the present conn, not yet in traffic
	gotNow    uint64
}

func newLink(d *Dispatcher, peer resource.GID, id uint64) *link {
	l := &link{d: d, peer: peer, id: id, inflows: map[uint32]*inflow{}, flows: map[uint32]*Flow{}}
	l.unwritten.L = &l.mu
	return l
}

// A Flow is the way from this context to one resource: the link and the
// credit. Concurrent use is fine; messages sent one after another arrive in
// that order.
type Flow struct {
	l       *link
	dst     uint32
	sent    uint64 // charged bytes, in all; guarded by l.mu like the rest
	limit   uint64
	asked   uint64
	gone    error
	waiters waitlist

	local *Mailbox // set for resources of this very context
}

func (l *link) flow(dst uint32) *Flow {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.flows[dst]
	if f == nil || f.gone != nil {
		f = &Flow{l: l, dst: dst, limit: FirstCredit, gone: l.dead}
		if old := l.flows[dst]; old != nil {
			// The peer counts on: a flow refused once may be allowed again.
			f.sent, f.limit, f.asked = old.sent, old.limit, old.asked
		}
		l.flows[dst] = f
	}
	return f
}

// Dead says whether the flow has failed for good: whoever remembers it should
// ask for a new one.
func (f *Flow) Dead() bool {
	if f.local != nil {
		f.local.mu.Lock()
		defer f.local.mu.Unlock()
		return f.local.closed
	}
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	return f.gone != nil
}

// Send accepts the message in b, which belongs to the library if nil is
// returned, and stays the caller's otherwise. It waits until ctx ends while the resource has no
// credit left for us. nil means that the message will be delivered, in order,
// if both contexts live and the resource exists; if not, that is reported.
func (f *Flow) Send(ctx context.Context, src uint32, tag uint64, b *buffers.Buffer) error {
	if f.local != nil {
		return f.local.sendLocal(ctx, src, tag, b)
	}
	n := b.Len()
	if n > MaxMessage {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, n, MaxMessage)
	}
	c := charge(n)
	l := f.l
	l.mu.Lock()
	if f.gone != nil || f.waiters.first != nil || f.sent+c > f.limit || !l.s.room() {
		if err := f.admit(ctx, c); err != nil {
			l.mu.Unlock()
			return err
		}
	}
	f.sent += c
	if b.Refs() > 1 { // who keeps it may ask
		b.SetState(buffers.Sending)
	}
	frame := l.s.slot(frameData)
	frame.Len, frame.Flags, frame.Tag, frame.Src, frame.Dst = uint32(n), 0, tag, src, f.dst
	frame.Data, frame.Buf = b.Bytes(), b
	l.sentNow++
	l.traffic.sentB += uint64(n)
	l.post()
	l.mu.Unlock()
	return nil
}

// admit waits until f has credit for c more and the session has room. mu is
// held on entry and on return.
func (f *Flow) admit(ctx context.Context, c uint64) error {
	l := f.l
	for queued := false; ; queued = true {
		switch {
		case f.gone != nil:
			return f.gone
		case !l.s.room():
			if err := l.waitIn(ctx, &l.full); err != nil {
				return err
			}
			continue
		case f.sent+c <= f.limit && (queued || f.waiters.first == nil):
			if f.waiters.first != nil { // the next one may have credit too
				w := f.waiters.first
				f.waiters.remove(w)
				w.fire()
			}
			return nil
		}
		if need := f.sent + c; need > f.limit && need > f.asked {
			f.asked = need
			frame := subsys.Frame{}
			frame.Type, frame.Dst, frame.Tag = frameNeed, f.dst, need
			l.s.push(&frame)
			l.post()
			if f.gone != nil || f.sent+c <= f.limit {
				continue // answered already: the peer is in this process
			}
		}
		if err := l.waitIn(ctx, &f.waiters); err != nil {
			return err
		}
	}
}

// waitIn waits in a list of l until fired. mu is held on entry and on return.
func (l *link) waitIn(ctx context.Context, list *waitlist) error {
	w := l.d.waiter()
	list.push(w)
	l.mu.Unlock()
	err := l.d.wait(ctx, w)
	l.mu.Lock()
	if w.listed {
		list.remove(w)
	}
	l.d.doneWaiting(w)
	return err
}

// post sees to it that what was pushed is written: by us, by whoever writes
// already, by the flusher, or, once there is a conn, by whoever attaches it.
// mu is held, but given up while a conn is called.
func (l *link) post() {
	switch {
	case l.writing || l.stalled:
	case l.conn == nil:
		l.dial()
	case l.conn.Delivers():
		l.pump()
	case l.streaming:
		if int(l.s.next-l.s.sent) >= inlineFlush {
			l.pump()
		}
	case !l.heard && time.Since(l.wrote) < burst:
		// A message right after another and no answer between: a stream. From
		// here the flusher writes, and we only write when it falls behind.
		select {
		case l.d.flushq <- l:
			l.streaming = true
		default:
			l.pump()
		}
	default:
		l.heard = false
		l.pump()
		l.wrote = time.Now()
	}
}

// flush is the flusher's turn; it says whether there may be more soon.
func (l *link) flush() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writing {
		return true
	}
	if l.conn == nil || l.stalled || l.s.sent == l.s.next {
		l.streaming = false
		l.wrote = time.Now()
		return false
	}
	l.pump()
	return true
}

// pump writes what is unsent. mu is held, but given up while the conn is
// called; writing must be false.
func (l *link) pump() {
	l.writing = true
	for round := 0; l.conn != nil && !l.stalled && l.dead == nil; round++ {
		if round >= pumpRounds && !l.streaming && !l.conn.Delivers() {
			select {
			case l.d.flushq <- l:
				l.streaming = true
			default:
			}
			if l.streaming {
				break
			}
		}
		fs := l.s.take(batchFrames)
		if len(fs) == 0 {
			break
		}
		c, before := l.conn, l.writable
		l.mu.Unlock()
		n, err := c.Send(fs)
		l.mu.Lock()
		if l.conn != c {
			continue
		}
		l.s.untake(len(fs) - n)
		if err != nil {
			l.lose(c, err)
			continue
		}
		if c.Delivers() {
			_ = l.s.acked(l.s.sent)
		}
		l.release()
		if n < len(fs) && l.writable == before {
			l.stalled = true
		}
	}
	l.doneWriting()
}

// doneWriting ends a turn of writing. mu is held.
func (l *link) doneWriting() {
	l.writing = false
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
	if l.empty.first != nil && l.s.idle() {
		l.empty.fireAll()
	}
}

// lose lets go of a conn that failed and dials again if there is anything to
// say. mu is held.
func (l *link) lose(c subsys.Conn, err error) {
	if l.conn != c {
		return
	}
	l.d.log.Info("dispatch: connection lost", "peer", l.peer, "transport", c.Transport(), "err", err)
	l.detach()
	if !l.s.idle() {
		l.dial()
	}
}

func (l *link) detach() {
	c := l.conn
	l.settle()
	l.conn, l.stalled = nil, false
	go c.Close() // it may call a sink, and we hold mu
}

// settle moves the present conn's counts to where they are kept.
func (l *link) settle() {
	if l.conn == nil {
		return
	}
	l.traffic.settle(l.conn.Transport(), &l.sentNow, &l.gotNow)
}

func (t *traffic) settle(transport string, sent, got *uint64) {
	if t.sent == nil {
		t.sent, t.received = map[string]uint64{}, map[string]uint64{}
	}
	t.sent[transport] += *sent
	t.received[transport] += *got
	*sent, *got = 0, 0
}

// receive works on frames that came over c.
func (l *link) receive(c subsys.Conn, fs []subsys.Frame) error {
	err := l.digest(c, fs)
	// What the frames made us say goes out when no lock is held: the peer may
	// be in this process and answer at once.
	l.mu.Lock()
	if l.conn == c && !l.writing && !l.stalled && l.s.sent != l.s.next && !l.streaming {
		l.pump()
	}
	l.mu.Unlock()
	return err
}

func (l *link) digest(c subsys.Conn, fs []subsys.Frame) error {
	l.rx.Lock()
	defer l.rx.Unlock()
	l.mu.Lock()
	if l.conn != c {
		l.mu.Unlock()
		return subsys.ErrClosed
	}
	if !c.Delivers() { // else Send's return is the acknowledgement
		// Frames in a writer's hands are let go of by the writer.
		if err := l.s.acked(fs[len(fs)-1].Ack); err != nil {
			l.mu.Unlock()
			return err
		}
		if !l.writing {
			l.release()
		}
	}
	// Frames are fresh from first to last or were received before over an
	// earlier conn: repeats come only in front.
	fresh := 0
	for i := range fs {
		if fs[i].Type == frameAck {
			continue
		}
		if fs[i].Type < frameData || fs[i].Type > frameBye {
			l.mu.Unlock()
			return fmt.Errorf("%w: frame type %d", ErrProtocol, fs[i].Type)
		}
		ok, err := l.s.accept(fs[i].Seq)
		if err != nil {
			l.mu.Unlock()
			return err
		}
		if !ok {
			fresh = i + 1
		}
	}
	l.heard = true
	switch unsaid := l.s.rxNext - l.s.rxTold; {
	case c.Delivers() || unsaid == 0:
	case unsaid >= ackFrames:
		l.sayAck(c)
	default:
		l.d.acksDue.Store(true)
	}
	l.mu.Unlock()
	return l.work(fs[fresh:])
}

// work does what fresh frames ask, in order. rx is held.
func (l *link) work(fs []subsys.Frame) error {
	for i := 0; i < len(fs); {
		f := &fs[i]
		if f.Type != frameData {
			if err := l.control(f); err != nil {
				return err
			}
			i++
			continue
		}
		j := i + 1
		bytes := len(f.Data)
		for j < len(fs) && fs[j].Type == frameData && fs[j].Dst == f.Dst {
			bytes += len(fs[j].Data)
			j++
		}
		l.mu.Lock()
		l.gotNow += uint64(j - i)
		l.traffic.receivedB += uint64(bytes)
		l.mu.Unlock()
		in := l.inflow(f.Dst)
		err := ErrGone
		if in.mb != nil {
			err = in.mb.deliver(in, fs[i:j])
		}
		switch {
		case err == nil:
		case errors.Is(err, ErrGone):
			in.mb = nil
			for ; i < j; i++ {
				l.refuse(f.Dst, fs[i].Src, fs[i].Tag)
			}
		default:
			return fmt.Errorf("%w: message of %d bytes to %d exceeds its credit", err, len(f.Data), f.Dst)
		}
		i = j
	}
	return nil
}

// inflow finds or makes the account of the peer with resource dst. rx is held.
func (l *link) inflow(dst uint32) *inflow {
	if in := l.lastFlow; in != nil && in.dst == dst && in.mb != nil {
		return in
	}
	in := l.inflows[dst]
	if in == nil {
		in = &inflow{l: l, dst: dst}
		if in.mb = l.d.mailbox(dst); in.mb != nil {
			in.mb.admit(in)
			l.inflows[dst] = in // unknown ones are not remembered: a peer could make up many
		}
	}
	l.lastFlow = in
	return in
}

func (l *link) control(f *subsys.Frame) error {
	switch f.Type {
	case frameCredit:
		l.mu.Lock()
		if fl := l.flows[f.Dst]; fl != nil && f.Tag > fl.limit {
			fl.limit = f.Tag
			if w := fl.waiters.first; w != nil {
				fl.waiters.remove(w)
				w.fire()
			}
		}
		l.mu.Unlock()
	case frameNeed:
		in := l.inflow(f.Dst)
		if in.mb == nil {
			l.refuse(f.Dst, 0, 0)
			return nil
		}
		if f.Tag > in.received+charge(MaxMessage) {
			return fmt.Errorf("%w: asks for %d bytes of credit", ErrProtocol, f.Tag)
		}
		if g := in.mb.needs(in, f.Tag); g != 0 {
			l.push(frameCredit, f.Dst, 0, g)
		}
	case frameGone:
		to := l.peer.WithSerial(f.Dst)
		l.mu.Lock()
		if fl := l.flows[f.Dst]; fl != nil && fl.gone == nil {
			fl.gone = fmt.Errorf("%w: %v", ErrGone, to)
			fl.waiters.fireAll()
		}
		l.mu.Unlock()
		if f.Src != 0 {
			l.d.undelivered(Undelivered{From: l.d.self.WithSerial(f.Src), To: to, Tag: f.Tag, Err: ErrGone})
		}
	case frameBye:
		l.die(fmt.Errorf("%w: its context %v has ended", ErrGone, l.peer))
	}
	return nil
}

// push adds a control frame. It is written at the end of receive or by post.
func (l *link) push(typ uint8, dst, src uint32, tag uint64) {
	frame := subsys.Frame{}
	frame.Type, frame.Dst, frame.Src, frame.Tag = typ, dst, src, tag
	l.mu.Lock()
	if l.dead == nil {
		l.s.push(&frame)
	}
	l.mu.Unlock()
}

// refuse tells the peer that a message could not be delivered, once the frames
// at hand have been worked on or speak is called.
func (l *link) refuse(dst, src uint32, tag uint64) { l.push(frameGone, dst, src, tag) }

// speak writes what was pushed outside receive.
func (l *link) speak() {
	l.mu.Lock()
	if l.dead == nil && l.s.sent != l.s.next {
		l.post()
	}
	l.mu.Unlock()
}

// credit tells the peer how much it may send to dst.
func (l *link) credit(dst uint32, total uint64) {
	frame := subsys.Frame{}
	frame.Type, frame.Dst, frame.Tag = frameCredit, dst, total
	l.mu.Lock()
	if l.dead == nil {
		l.s.push(&frame)
		l.post()
	}
	l.mu.Unlock()
}

// sayAck acknowledges without having anything to send. mu is held.
func (l *link) sayAck(c subsys.Conn) {
	if l.writing || l.stalled || l.s.sent != l.s.next {
		// The next frame carries it, but frames that a writer has in its hands
		// may be the last: look again at the next tick.
		l.d.acksDue.Store(true)
		return
	}
	l.writing = true
	l.s.rxTold = l.s.rxNext
	fs := [1]subsys.Frame{}
	fs[0].Type, fs[0].Ack = frameAck, l.s.rxNext
	before := l.writable
	l.mu.Unlock()
	n, err := c.Send(fs[:])
	l.mu.Lock()
	if l.conn == c {
		if err != nil {
			l.lose(c, err)
		} else if n == 0 && l.writable == before {
			l.stalled = true
			l.s.rxTold--
			l.d.acksDue.Store(true)
		}
	}
	l.doneWriting()
	if l.conn != nil && !l.stalled && l.s.sent != l.s.next {
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
	for _, f := range l.flows {
		if f.gone == nil {
			f.gone = l.dead
		}
		f.waiters.fireAll()
	}
	var lost []Undelivered
	l.s.drain(func(f *subsys.Frame) {
		if f.Type == frameData {
			lost = append(lost, Undelivered{From: l.d.self.WithSerial(f.Src), To: l.peer.WithSerial(f.Dst), Tag: f.Tag, Bytes: int(f.Len), Err: l.dead})
		}
	})
	l.full.fireAll()
	l.empty.fireAll()
	l.settle()
	l.mu.Unlock()
	l.d.unlink(l)
	go l.leave() // rx may be held by our caller
	for _, u := range lost {
		l.d.undelivered(u)
	}
	l.mu.Lock()
}

// leave gives the mailboxes back what they had promised to the peer.
func (l *link) leave() {
	l.rx.Lock()
	defer l.rx.Unlock()
	for _, in := range l.inflows {
		if in.mb != nil {
			in.mb.leave(in)
		}
	}
	l.inflows, l.lastFlow = map[uint32]*inflow{}, nil
}

func (d *Dispatcher) undelivered(u Undelivered) {
	d.lost.Add(1)
	d.log.Debug("dispatch: undelivered", "to", u.To, "from", u.From, "tag", u.Tag, "err", u.Err)
	if d.cfg.Undelivered != nil {
		d.cfg.Undelivered(u)
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
			return
		}
	}
}

// bye tells the peer that we end, and ends the link.
func (l *link) bye() {
	l.push(frameBye, 0, 0, 0)
	l.mu.Lock()
	if l.conn != nil && !l.writing && !l.stalled {
		l.pump()
	}
	if l.s.sent == l.s.next && l.s.pending() == 1 {
		_ = l.s.acked(l.s.sent) // nobody will acknowledge a goodbye
	}
	l.mu.Unlock()
	l.die(ErrClosed)
}

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

// try goes once through the peer's addresses, cheapest transport first.
func (l *link) try(ctx context.Context) error {
	addrs, err := l.d.cfg.Resolve(ctx, l.peer)
	if err != nil {
		return fmt.Errorf("finding context %v: %w", l.peer, err)
	}
	l.d.mu.RLock()
	ports := l.d.ports
	l.d.mu.RUnlock()
	err = fmt.Errorf("no transport reaches any of %q", addrs)
	for _, p := range ports {
		for _, a := range addrs {
			if !p.Reaches(a) {
				continue
			}
			if err = l.d.shake(ctx, l, p, a); err == nil {
				return nil
			}
			l.mu.Lock()
			got := l.conn != nil || l.dead != nil
			l.mu.Unlock()
			if got {
				return nil
			}
		}
	}
	return err
}
