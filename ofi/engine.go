// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/ofi/internal/fabric"
	"github.com/rocl-go/rocl/subsys"
)

const (
	mostOps      = 1024     // operations in progress at once
	mostReceives = 256      // of these, receives
	messageLen   = 16 << 10 // bytes of the largest message
	rounds       = 8        // reads of the completion queue before another source gets its turn
	firstTick    = 50 * time.Microsecond
	mostTick     = 5 * time.Millisecond
	mostVain     = 256 // sleeps that are put off while nothing completes
)

// An engine drives the endpoint of a port. It is in the context's poller by two descriptors: a
// timer, which is a [subsys.Ring], and the descriptor of the completion queue, a [subsys.Source].
// If the provider has no such descriptor, an eventfd that is never ready stands for it, and each
// Poll looks at the queue.
type engine struct {
	once   sync.Once
	poller atomic.Pointer[subsys.Poller] // nil until the first connection, and after Close
	timer  int                           // descriptor of the timer
	queue  int                           // descriptor of the completion queue, or of the eventfd

	hasWork atomic.Bool   // progress must be called before the goroutine sleeps
	revived atomic.Bool   // memory has come back for a connection, or for receives
	empty   uint64        // how often the completion queue was found empty
	vain    int           // sleeps that were put off since something completed, or since the last sleep
	tick    time.Duration // of the timer, when it is next set
	isSet   bool          // the timer, and nothing has completed since: sleeps may be shorter than tick
	done    [64]fabric.Completion
	frames  [256]subsys.Frame
	failure error   // of the completion queue
	visits  []*conn // port.dirty before, to be visited
	spare   []*conn // port.blocked before
}

// begin puts the port into the poller when the first connection is made.
func (p *port) begin() (err error) {
	p.once.Do(func() { err = p.enter() })
	if err != nil {
		return err
	}
	if p.poller.Load() == nil {
		return subsys.ErrClosed
	}
	return nil
}

func (p *port) enter() error {
	poller := p.cfg.Poller()
	if poller == nil {
		return subsys.ErrClosed
	}
	for _, pool := range []*buffers.Pool{p.own, p.cfg.Pool} {
		if err := pool.Register(&p.memory); err != nil {
			return err
		}
	}
	timer, err := newTimer()
	if err != nil {
		return fmt.Errorf("making a timer: %w", err)
	}
	queue := p.ep.WaitFD()
	if queue < 0 {
		if queue, err = newEvent(); err != nil {
			closeFD(timer)
			return fmt.Errorf("making an eventfd: %w", err)
		}
	}
	p.cfg.Progress.Lock()
	defer p.cfg.Progress.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer, p.queue, p.tick = timer, queue, firstTick
	p.poller.Store(poller)
	if err = poller.Add(queue, queueSource{p}); err == nil {
		err = poller.AddQuiet(timer, ring{p})
	}
	if p.isClosed || err != nil {
		p.leave()
		return subsys.ErrClosed
	}
	return nil
}

// leave takes the port out of the poller. Config.Progress must be held.
func (p *port) leave() {
	poller := p.poller.Swap(nil)
	poller.Remove(p.queue)
	poller.Remove(p.timer)
	closeFD(p.timer)
	if p.ep.WaitFD() < 0 {
		closeFD(p.queue)
	}
}

// stop frees everything. The port's goroutines have ended. Config.Progress must be held.
func (p *port) stop() {
	p.once.Do(func() {}) // no later Dial enters the poller
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.poller.Load() != nil {
		p.leave()
		p.cfg.Pool.Unawait(p)
		p.cfg.Pool.Unregister(&p.memory)
		p.own.Unregister(&p.memory)
	}
	p.memory.close()
	p.ep.Close()
	p.endRemotes()
	for i := range p.ops {
		o := p.ops[i]
		if p.ops[i] = (operation{}); o.buf == nil {
			continue
		}
		o.buf.Release()
		if o.conn != nil {
			o.conn.dropIn()
		}
	}
	for _, c := range p.conns {
		c.forgetLocked() // is dirty afterwards
	}
	for _, c := range p.dirty {
		c.dropIn()
	}
}

// wake makes the progress goroutine call progress. Any goroutine may call it, with mu held or not.
func (p *port) wake() {
	p.hasWork.Store(true)
	if poller := p.poller.Load(); poller != nil {
		poller.Again(p.timer)
	}
}

// A ring is the port's timer in the poller. It is also what the poller tells when it sleeps.
type ring struct{ *port }

// Ready implements [subsys.Source].
func (r ring) Ready(subsys.Readiness) (frames int, again bool) {
	if r.poller.Load() == nil {
		return 0, false
	}
	drainTimer(r.timer)
	r.isSet = false
	return r.progress()
}

// Look implements [subsys.Ring].
func (r ring) Look() (frames int) {
	if r.poller.Load() == nil || r.ep.WaitFD() >= 0 && !r.hasWork.Load() {
		return 0
	}
	frames, _ = r.progress()
	return frames
}

// SetIdle implements [subsys.Ring]. Before a sleep it sets the timer, if the provider does not wake
// the sleeper by a descriptor, or could not take something.
func (r ring) SetIdle(how subsys.IdleMode) (arrived bool) {
	p := r.port
	if how == subsys.Awake || p.poller.Load() == nil {
		return false
	}
	if p.hasWork.Load() {
		return true
	}
	p.mu.Lock()
	needsTimer := len(p.blocked)+len(p.waiting) > 0 || p.ep.WaitFD() < 0 && len(p.conns)+p.remotes > 0
	isBusy := len(p.free)+p.receives < len(p.ops) || p.exposed > 0
	p.mu.Unlock()
	mayWait, isReady := true, false
	if fd := p.ep.WaitFD(); fd >= 0 {
		// The provider takes one message at a time from a socket, and what it serves to peers
		// completes nothing here. The poller was told of what is left, and is not told again.
		mayWait = p.ep.CanWait()
		isReady = mayWait && isReadable(fd)
	}
	if !mayWait || isReady && p.vain < mostVain {
		p.vain++
		p.hasWork.Store(true)
		return true
	}
	p.vain = 0
	if needsTimer || isReady {
		if isBusy {
			p.tick, p.isSet = firstTick, false
		}
		if !p.isSet {
			setTimer(p.timer, p.tick)
			p.tick, p.isSet = min(2*p.tick, mostTick), true
		}
	}
	return false
}

// A queueSource is the completion queue in the poller.
type queueSource struct{ *port }

// Ready implements [subsys.Source].
func (s queueSource) Ready(subsys.Readiness) (frames int, again bool) {
	if s.poller.Load() == nil || s.ep.WaitFD() < 0 {
		return 0, false
	}
	return s.progress()
}

// progress makes the progress that is possible without waiting. The progress goroutine calls it.
func (p *port) progress() (frames int, again bool) {
	p.hasWork.Store(false)
	if p.revived.Swap(false) {
		p.revive()
	}
	again = true
	for range rounds {
		n, err := p.ep.Poll(p.done[:])
		if err != nil && p.failure == nil {
			p.failAll(err)
		}
		if n == 0 {
			p.empty++
			again = false
		} else {
			p.tick, p.isSet, p.vain = firstTick, false, 0
		}
		p.mu.Lock()
		for i := range p.done[:n] {
			frames += p.completeLocked(&p.done[i])
		}
		p.postReceivesLocked(n == 0)
		p.startRemotesLocked()
		p.blocked, p.spare = p.spare[:0], p.blocked
		for i, c := range p.spare {
			p.spare[i], c.isBlocked = nil, false
			c.flushLocked()
		}
		p.dirty, p.visits = p.visits[:0], p.dirty
		p.mu.Unlock()
		for i, c := range p.visits {
			p.visits[i] = nil
			frames += p.visit(c)
		}
		if n == 0 || frames > 0 { // a waiter gets its message before the queue is read again
			break
		}
	}
	if again {
		p.hasWork.Store(true)
	}
	return frames, again
}

// visit does for a connection what is due.
func (p *port) visit(c *conn) (frames int) {
	p.mu.Lock()
	c.isDirty = false
	isWritable := c.wantsRoom && !c.isClosed && c.isStarted && c.hasRoomLocked()
	if isWritable {
		c.wantsRoom = false
	}
	p.mu.Unlock()
	if isWritable {
		c.sink.Writable(c)
	}
	frames = c.deliver()
	p.mu.Lock()
	c.ackLocked()
	p.mu.Unlock()
	return frames
}

// failAll ends all connections after the completion queue has failed.
func (p *port) failAll(err error) {
	p.failure = err
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.breakLocked(err)
	}
}

// markLocked makes the next progress visit c. mu must be held.
func (p *port) markLocked(c *conn) {
	if !c.isDirty {
		c.isDirty = true
		p.dirty = append(p.dirty, c)
	}
	p.hasWork.Store(true)
}

// blockLocked makes the next progress try again to send what c has. mu must be held.
func (p *port) blockLocked(c *conn) {
	if !c.isBlocked {
		c.isBlocked = true
		p.blocked = append(p.blocked, c)
	}
}

// completeLocked handles the end of an operation. It returns 1 if a goroutine waits for that, which
// counts as a frame, else 0. mu must be held.
func (p *port) completeLocked(d *fabric.Completion) (frames int) {
	if d.Op < 0 || d.Op >= len(p.ops) || p.ops[d.Op].kind == opNone {
		return 0
	}
	o := p.finishLocked(d.Op)
	c := o.conn
	switch o.kind {
	case opRemoteRead, opRemoteWrite:
		p.remoteEndedLocked(&o, d.Err)
		return 1
	case opReceive:
		p.receives--
		if d.Err == nil && p.receivedLocked(o.buf, d.Len) {
			return 0 // the connection has the buffer
		}
	case opSend, opAck:
		if o.kind == opAck {
			c.isAcking = false
			p.markLocked(c)
		}
		if d.Err != nil {
			c.breakLocked(d.Err)
		}
	case opRead:
		c.reading--
		o.large.isReading, o.large.isRead = false, d.Err == nil
		if d.Err != nil {
			c.breakLocked(d.Err)
		}
		p.markLocked(c)
	}
	o.buf.Release()
	return 0
}

// receivedLocked gives a message of n bytes to its connection. It reports whether the connection
// keeps the buffer. A message to no connection comes late, or from a stranger. mu must be held.
func (p *port) receivedLocked(b *buffers.Buffer, n int) (isKept bool) {
	mem := b.Bytes()
	if n < headLen || n > len(mem) {
		return false
	}
	var h head
	h.parse(mem)
	c := p.conns[h.conn]
	if c == nil || !c.creditLocked(&h) || n == headLen || c.isClosed {
		return false
	}
	m := &c.inbox[h.seq%window]
	if h.seq-c.next >= window || m.buf != nil {
		c.breakLocked(fmt.Errorf("%w: message %d where %d is due", subsys.ErrProtocol, h.seq, c.next))
		return false
	}
	*m = message{buf: b, off: headLen, end: n}
	p.markLocked(c)
	return true
}

// postReceivesLocked gives the endpoint memory for messages, before a message that has come is
// delivered only if half of it is used. mu must be held.
func (p *port) postReceivesLocked(isIdle bool) {
	most := min(16*(1+len(p.conns)), mostReceives)
	if !isIdle && p.receives > most/2 {
		return
	}
	for p.receives < most && !p.isStarved {
		b, err := p.cfg.Pool.GetReserved(messageLen)
		if buffers.IsTemporary(err) {
			p.isStarved = true
			p.cfg.Pool.Await(p, func() { p.revivedLater(nil) })
			return
		}
		if err != nil {
			return // the pool is closed, and so will be the port
		}
		desc, isRegistered := p.memory.desc(b.Bytes())
		n, ok := p.beginLocked(opReceive, b, nil)
		if !ok || !isRegistered || p.ep.Recv(n, b.Bytes(), desc) != nil {
			if ok {
				p.finishLocked(n)
			}
			b.Release()
			return
		}
		p.receives++
	}
}

// revivedLater is called when memory has come back for c, or for receives if c is nil. Locks of the
// pool are held, so it takes none of the port.
func (p *port) revivedLater(c *conn) {
	if c != nil {
		c.isRevived.Store(true)
	}
	p.revived.Store(true)
	p.wake()
}

// revive lets those go on that lacked memory.
func (p *port) revive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isStarved = false
	for _, c := range p.conns {
		if c.isRevived.Swap(false) {
			c.isStarved = false
			p.markLocked(c)
		}
	}
}
