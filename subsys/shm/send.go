// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/subsys"
)

const (
	manyLoans    = maxLoans / 4 // loans from which Send first looks for returned ones
	inline       = 2 << 10      // size up to which a payload, or a batch, is copied into the ring
	leastPart    = 256          // least bytes of a payload that are worth a record
	wipedAhead   = 4 * line     // bytes of the ring that are wiped before they are needed
	writableRoom = ringLen / 4  // free bytes at which a connection that was full becomes writable
)

// returnsEnded replaces a number of returns when returns do not matter any more.
const returnsEnded = 1<<64 - 1

// A sender is the part of a conn that writes frames and keeps what it has lent. It belongs to the
// goroutine that calls Send. While isFull is true it belongs to the goroutine that makes progress,
// which must hold mu. mu guards the loans at all times.
type sender struct {
	tail      uint64        // bytes of records written since the start
	rungTail  uint64        // tail when the bell was last rung
	blank     uint64        // from tail to blank the first words of lines are 0
	peerHead  atomic.Uint64 // value of the peer's head that was read last
	unwritten []byte        // bytes of a frame that was taken and is not completely in the ring
	buf       *buffers.Buffer
	header    [subsys.HeaderLen]byte

	mu      lock.Mutex[levelLoans] // taken before a pool's lock, because buffers are released under it
	isFull  atomic.Bool            // the ring was full in Send; Writable is owed
	stopped bool                   // nothing more may be sent

	loans       []loan
	free        []uint32 // unused indexes of loans
	loansOut    atomic.Int32
	seen        atomic.Uint64 // number of returns processed, or returnsEnded
	unreadEnded atomic.Bool   // endUnreadLoansLocked was called

	announced        map[uint32]*announcement // arenas that the peer knows, by ID
	announcedBytes   uint64                   // bytes of these arenas
	lastArena        *buffers.Arena           // arena of the last loan; nil: none
	lastAnnouncement *announcement            // the announcement of lastArena
	mustRetry        atomic.Bool              // some notes about unmapped could not be sent yet
	unmappedMu       sync.Mutex               // may be taken while a pool's lock is held
	unmapped         []uint32                 // arenas that were unmapped
	hasUnmapped      atomic.Bool
}

// levelLoans is the lock level of sender.mu.
type levelLoans struct{}

func (levelLoans) Depth() (int, string) { return 120, "shm" }

// A loan is a buffer that the peer may read until it gives the loan back. The end of a loan decides
// what happens to the buffer. Each row applies to the loans that the rows above have left:
//
//	the loan ends because                  function                buffer
//	the peer gives it back                 endReturnedLocked       Release
//	the same, with lostBit                 endReturnedLocked       Abandon
//	the peer has closed and not read it    endUnreadLoansLocked    Release
//	the peer is done                       endLoansIfDoneLocked    Release
//	the socket has ended, passed is set    endLoansOfDeadPeer      Abandon
//	the socket has ended, passed is not    endLoansOfDeadPeer      Release
//	this port closes                       abandonLoans            Abandon
//	the conn is closed and not started     abandonLoans            Abandon
//
// lostBit and passed count only for a peer of this process's user; from another user, a return with
// lostBit violates the protocol. A loan of the peer's own memory (in is nil) always ends in
// Release.
type loan struct {
	buf  *buffers.Buffer
	data []byte        // part of buf that is lent
	at   uint64        // position of the loan's record
	in   *announcement // arena of the memory; nil: the memory is the peer's own
}

// An announcement is an arena that the peer knows.
type announcement struct {
	size uint64
	out  int // loans in it
}

// Send implements subsys.Conn. For small frames it takes no lock if the ring has room.
func (c *conn) Send(fs []subsys.Frame) (taken int, err error) {
	if !c.tryRetain() {
		return 0, fmt.Errorf("shm: sending to %s: %w", c.remote, subsys.ErrClosed)
	}
	defer c.drop()
	o := &c.out
	switch {
	case c.closed.Load():
		return 0, fmt.Errorf("shm: sending to %s: %w", c.remote, subsys.ErrClosed)
	case c.dead.Load(): // the peer's last frames may be unread; the reader gets to the end after them
		return 0, nil
	case o.isFull.Load():
		return 0, nil
	}
	if o.loansOut.Load() >= manyLoans {
		err = o.endReturned(c)
	}
	if o.mustRetry.Load() || o.hasUnmapped.Load() {
		o.mu.Lock()
		o.withdrawUnmappedLocked(c)
		o.mu.Unlock()
	}
	for err == nil && taken < len(fs) {
		var isFull bool
		if isFull, err = o.put(c, &fs[taken]); err != nil {
			break
		}
		if !isFull {
			taken++
			isFull, err = o.writeRest(c)
		}
		for isFull && err == nil {
			var hasRoom bool
			if hasRoom, err = o.awaitRoom(c); !hasRoom {
				return taken, c.sending(err)
			}
			isFull, err = o.writeRest(c)
		}
	}
	o.ring(c)
	c.back.write(c) // the peer has the frames, so there is time
	if err == nil {
		err = o.endReturned(c)
	}
	if err == nil {
		err = o.prepare(c)
	}
	if err != nil {
		o.dropRest() // nothing more is sent
	}
	return taken, c.sending(err)
}

// Retain implements [subsys.Brief].
func (c *conn) Retain() bool { return c.tryRetain() }

// Release implements [subsys.Brief].
func (c *conn) Release() { c.drop() }

// SendBriefly implements [subsys.Brief].
func (c *conn) SendBriefly(frames []byte) bool {
	o := &c.out
	if c.closed.Load() || c.dead.Load() || o.isFull.Load() || o.room() < recordLen+len(frames) ||
		o.mustRetry.Load() || o.hasUnmapped.Load() || o.hasReturns(c) || c.back.owed.Load() || c.back.isUntold.Load() {
		return false
	}
	c.mine.put(o.tail+recordLen, frames)
	o.publish(c, recBytes, len(frames))
	o.ring(c)
	_ = o.prepare(c) // if it fails, so does Send
	return true
}

func (c *conn) sending(err error) error {
	if err != nil {
		err = fmt.Errorf("shm: sending to %s: %w", c.remote, err)
	}
	return err
}

// ring rings the peer's bell if records were written since the last time.
func (o *sender) ring(c *conn) {
	if o.rungTail != o.tail {
		o.rungTail = o.tail
		c.ring()
	}
}

// room returns how many bytes a record may take, including its first word.
func (o *sender) room() int { return mostBytes - int(o.tail-o.peerHead.Load()) }

// refresh reads how far the peer has read.
func (o *sender) refresh(c *conn) error {
	h, old := c.theirs.head.Load(), o.peerHead.Load()
	if h-old > o.tail-old || h%line != 0 {
		return broken("%d bytes of %d were read", h, o.tail)
	}
	o.peerHead.Store(h)
	return nil
}

// fits reports whether n bytes can be written.
func (o *sender) fits(c *conn, n int) (bool, error) {
	if o.room() >= n {
		return true, nil
	}
	err := o.refresh(c)
	return err == nil && o.room() >= n, err
}

// awaitRoom handles a full ring. It hands the sender to the goroutine that makes progress, unless
// there is room again. If awaitRoom reports false, the caller must not touch the sender.
func (o *sender) awaitRoom(c *conn) (hasRoom bool, err error) {
	o.ring(c)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped {
		o.dropRest()
		return false, nil
	}
	o.isFull.Store(true) // before the peer can ring, which makes this side check isFull
	c.mine.awaitsSpace.Store(1)
	// The peer may have read more before it could see that this side waits.
	err = o.refresh(c)
	if err != nil || o.room() < writableRoom {
		return false, err
	}
	c.mine.awaitsSpace.Store(0)
	o.isFull.Store(false)
	return true, nil
}

// dropRest releases a frame that is not completely in the ring.
func (o *sender) dropRest() {
	o.unwritten = nil
	if o.buf != nil {
		o.buf.Release()
		o.buf = nil
	}
}

// publish makes the record at tail visible to the peer. Its n bytes were written after the place of
// its first word.
func (o *sender) publish(c *conn, kind, n int) {
	at := o.tail
	o.tail += spanned(n)
	if o.tail >= o.blank {
		o.blank = o.tail
		o.wipe(c)
	}
	c.mine.word(at).Store(uint64(kind) | uint64(n)<<32)
}

// wipe sets the first word of one more line to 0. A plain store is enough: the peer reads this word
// only after it has read the first word of the record before, and publish stores that one later
// and atomically. Only the very first word may be read earlier, and it is 0 already.
func (o *sender) wipe(c *conn) {
	*(*uint64)(unsafe.Pointer(c.mine.word(o.blank))) = 0
	o.blank += line
}

// prepare wipes the lines of the next records while there is time. The peer has read these lines,
// so this processor has to fetch each of them once. The first word of a record cannot be written
// until that of the next record is 0. If a line were fetched only then, a polling peer would take
// it away again.
func (o *sender) prepare(c *conn) error {
	for o.blank-o.tail < wipedAhead {
		if o.blank+line-o.peerHead.Load() > ringLen {
			if err := o.refresh(c); err != nil {
				return err
			}
			if o.blank+line-o.peerHead.Load() > ringLen {
				break
			}
		}
		o.wipe(c)
	}
	return nil
}

// put writes a frame. Of a frame that must be copied it writes as much as there is room for, and
// leaves the remaining bytes to writeRest.
func (o *sender) put(c *conn, f *subsys.Frame) (isFull bool, err error) {
	headerLen := subsys.HeaderLen
	if f.Type == subsys.TypeBatch {
		headerLen = 0
	}
	n := len(f.Data)
	if ok, err := o.fits(c, recordLen+max(lentLen, headerLen+min(n, inline))); !ok {
		return true, err
	}
	if n > inline {
		if d, kind, ok := o.lend(c, f); ok {
			size, rec := extentLen, c.mine.line(o.tail)[recordLen:]
			if headerLen > 0 {
				size = lentLen
				f.Put(rec[extentLen:])
			}
			d.put(rec)
			o.publish(c, kind, size)
			return false, nil
		}
	}
	part := min(n, o.room()-recordLen-headerLen)
	at := o.tail + recordLen
	if headerLen > 0 {
		f.Put(o.header[:])
		c.mine.put(at, o.header[:])
	}
	c.mine.put(at+uint64(headerLen), f.Data[:part])
	o.publish(c, recBytes, headerLen+part)
	if o.unwritten = f.Data[part:]; len(o.unwritten) > 0 && f.Buf != nil {
		o.buf = f.Buf.Retain()
	}
	if n > 0 {
		count := c.port.cfg.Count
		count.Copies.Add(1)
		count.CopiedB.Add(uint64(n))
	}
	return false, nil
}

// writeRest writes the remaining bytes of a frame until the ring is full.
func (o *sender) writeRest(c *conn) (isFull bool, err error) {
	for len(o.unwritten) > 0 {
		if ok, err := o.fits(c, recordLen+min(leastPart, len(o.unwritten))); !ok {
			return true, err
		}
		part := min(len(o.unwritten), o.room()-recordLen)
		c.mine.put(o.tail+recordLen, o.unwritten[:part])
		o.publish(c, recBytes, part)
		o.unwritten = o.unwritten[part:]
		o.ring(c) // the frame is long: the peer reads while this side writes
	}
	o.dropRest()
	return false, nil
}

// resume continues to write after the ring was full, and processes returned loans. It reports
// whether Writable is owed. The goroutine that makes progress calls it.
func (o *sender) resume(c *conn) (writable bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.endReturnedLocked(c); err != nil {
		return false, err
	}
	if c.theirs.closed.Load() != 0 && !o.unreadEnded.Load() {
		o.endUnreadLoansLocked(c)
	}
	o.endLoansIfDoneLocked(c)
	if o.stopped {
		o.hasUnmapped.Store(false) // the peer unmaps all arenas at its end
		return false, nil
	}
	o.withdrawUnmappedLocked(c)
	if !o.isFull.Load() {
		return false, nil
	}
	for {
		if err := o.refresh(c); err != nil {
			return false, err
		}
		if o.room() < writableRoom {
			return false, nil
		}
		isFull, err := o.writeRest(c)
		o.ring(c)
		if err != nil {
			return false, err
		}
		if !isFull {
			break
		}
	}
	c.mine.awaitsSpace.Store(0)
	o.isFull.Store(false) // from here on the sender belongs to the caller of Send
	return true, nil
}

// lend makes a loan of f's payload if the peer can read it where it lies, and returns the contents
// and the kind of its record.
func (o *sender) lend(c *conn, f *subsys.Frame) (d extent, kind int, ok bool) {
	if f.Buf == nil {
		return d, 0, false
	}
	p, ok := c.locate(f)
	if !ok {
		return d, 0, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped || c.dead.Load() || o.seen.Load() == returnsEnded { // the loan would not be given back
		return d, 0, false
	}
	// A record of a peer that has closed may name a loan that the peer has given back since. The
	// number of that loan must not be used for another one.
	if c.theirs.closed.Load() != 0 {
		return d, 0, false
	}
	var in *announcement
	if !p.isHome {
		if p.Arena != o.lastArena && !o.introduceLocked(c, &p) {
			return d, 0, false
		}
		in = o.lastAnnouncement
	}
	id := uint32(len(o.loans))
	if n := len(o.free); n > 0 {
		id, o.free = o.free[n-1], o.free[:n-1]
	} else if id == maxLoans {
		return d, 0, false // the peer holds many loans, and this frame must not depend on their return
	} else {
		o.loans = append(o.loans, loan{})
	}
	o.loans[id] = loan{f.Buf.Retain(), f.Data, o.tail, in}
	o.loansOut.Add(1)
	d = extent{loan: id, off: uint64(p.off), n: uint32(len(f.Data))}
	if p.isHome {
		d.arena = p.from.loan
		return d, recHome, true
	}
	in.out++
	if d.arena = p.ID; f.Type == subsys.TypeBatch {
		return d, recBatch, true
	}
	return d, recFrame, true
}

// introduceLocked makes p's arena the one of the next loan. If the peer does not know the arena,
// introduceLocked announces it, and withdraws other arenas if the peer would know more than it
// grants. mu must be held.
func (o *sender) introduceLocked(c *conn, p *location) bool {
	a := p.Arena
	t := o.announced[a.ID]
	if t == nil {
		t = &announcement{size: uint64(len(a.Mem))}
		if !o.withdrawArenasLocked(c, t.size) || !c.port.follow(p) || c.sendNoteHops(noteArena, p.hops(), a.ID, t.size, a.FD) != nil {
			return false
		}
		if o.announced == nil {
			o.announced = map[uint32]*announcement{}
		}
		o.announced[a.ID] = t
		o.announcedBytes += t.size
	}
	o.lastArena, o.lastAnnouncement = a, t
	return true
}

// withdrawArenasLocked withdraws arenas without loans until one more of size bytes may be announced
// to the peer. It reports false if that is not possible. mu must be held.
func (o *sender) withdrawArenasLocked(c *conn, size uint64) bool {
	arenas, bytes := fewArenas+int(c.theirs.arenas.Load()), fewBytes+uint64(c.theirs.gib.Load())<<30
	fits := func() bool { return len(o.announced) < arenas && o.announcedBytes+size <= bytes }
	if fits() {
		return true
	}
	if size > bytes {
		return false
	}
	for id, t := range o.announced { // in any order
		if t.out > 0 {
			continue
		}
		if c.sendNote(noteGone, id, 0, -1) != nil {
			return false
		}
		o.forgetLocked(id)
		if fits() {
			return true
		}
	}
	return false
}

// forgetLocked records that an arena was withdrawn. mu must be held.
func (o *sender) forgetLocked(id uint32) {
	o.announcedBytes -= o.announced[id].size
	delete(o.announced, id)
	o.lastArena, o.lastAnnouncement = nil, nil // it may be this one
}

// endLoanLocked ends a loan and calls how with its buffer. A buffer of the peer's own memory is
// released in any case. mu must be held.
func (o *sender) endLoanLocked(id uint32, how func(*buffers.Buffer)) {
	l := &o.loans[id]
	b := l.buf
	if l.in != nil {
		l.in.out--
	} else {
		how = (*buffers.Buffer).Release
	}
	*l = loan{}
	o.free = append(o.free, id)
	o.loansOut.Add(-1)
	how(b)
}

// hasReturns reports whether the peer has given back a loan that is not processed yet.
func (o *sender) hasReturns(c *conn) bool {
	k := o.seen.Load()
	if k == returnsEnded {
		return false
	}
	_, ok := c.theirs.givenBack(k)
	return ok
}

// endReturned ends the loans that the peer has given back. It takes mu if there are any.
func (o *sender) endReturned(c *conn) error {
	if !o.hasReturns(c) {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.endReturnedLocked(c)
}

// endReturnedLocked is endReturned with mu held.
func (o *sender) endReturnedLocked(c *conn) error {
	for k := o.seen.Load(); k != returnsEnded; k++ {
		id, ok := c.theirs.givenBack(k)
		if !ok {
			break
		}
		how := (*buffers.Buffer).Release
		if c.ofUser && id&lostBit != 0 {
			id &^= lostBit
			how = (*buffers.Buffer).Abandon
		}
		if id >= uint32(len(o.loans)) || o.loans[id].buf == nil {
			o.seen.Store(returnsEnded)
			return broken("loan %d came back, which is not out", id)
		}
		o.endLoanLocked(id, how)
		o.seen.Store(k + 1)
	}
	return nil
}

// endUnreadLoansLocked ends the loans whose records a closed peer will never read. mu must be held.
func (o *sender) endUnreadLoansLocked(c *conn) {
	o.unreadEnded.Store(true)
	head := c.theirs.head.Load()
	for id := range o.loans {
		if l := &o.loans[id]; l.buf != nil && int64(l.at-head) >= 0 {
			o.endLoanLocked(uint32(id), (*buffers.Buffer).Release)
		}
	}
}

// endAllLoansLocked ends all loans. mu must be held.
func (o *sender) endAllLoansLocked(how func(*buffers.Buffer)) {
	o.seen.Store(returnsEnded) // later returns are ignored
	for id := range o.loans {
		if o.loans[id].buf != nil {
			o.endLoanLocked(uint32(id), how)
		}
	}
}

// endLoansIfDoneLocked ends all loans if the peer has reported that it reads nothing any more.
// Returns from before that report are processed first, because a loan may have been given back as
// lost. mu must be held.
func (o *sender) endLoansIfDoneLocked(c *conn) {
	if c.theirs.done.Load() != 0 {
		_ = o.endReturnedLocked(c)
		o.endAllLoansLocked((*buffers.Buffer).Release)
	}
}

// endLoansOfDeadPeer ends all loans of a peer whose socket has ended. Memory that the peer may have
// passed on to a third process is abandoned.
func (o *sender) endLoansOfDeadPeer(c *conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endLoansIfDoneLocked(c)
	_ = o.endReturnedLocked(c)
	for id := range o.loans {
		if o.loans[id].buf != nil && c.ofUser && c.theirs.isPassed(uint32(id)) {
			o.endLoanLocked(uint32(id), (*buffers.Buffer).Abandon)
		}
	}
	o.endAllLoansLocked((*buffers.Buffer).Release)
}

// abandonLoans ends all loans of a peer that may read them for a long time yet. The memory is not
// used again.
func (o *sender) abandonLoans(c *conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.endReturnedLocked(c)
	if c.theirs.closed.Load() != 0 {
		o.endUnreadLoansLocked(c)
	}
	o.endLoansIfDoneLocked(c)
	o.endAllLoansLocked((*buffers.Buffer).Abandon)
}

// stop ends sending.
func (o *sender) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopped = true
	if o.isFull.Load() { // else Send may be in progress, which calls dropRest itself
		o.dropRest()
	}
}

// noteUnmapped records that an arena was unmapped. The peer may not know it.
func (o *sender) noteUnmapped(id uint32) {
	o.unmappedMu.Lock()
	o.unmapped = append(o.unmapped, id)
	o.unmappedMu.Unlock()
	o.hasUnmapped.Store(true)
}

// withdrawUnmappedLocked withdraws the arenas that were unmapped. mu must be held.
func (o *sender) withdrawUnmappedLocked(c *conn) {
	if !o.mustRetry.Load() && !o.hasUnmapped.Load() {
		return
	}
	o.hasUnmapped.Store(false)
	o.lastArena, o.lastAnnouncement = nil, nil // lastArena may be one of them
	o.unmappedMu.Lock()
	defer o.unmappedMu.Unlock()
	o.mustRetry.Store(false)
	keep := o.unmapped[:0]
	for _, id := range o.unmapped {
		if _, ok := o.announced[id]; !ok {
			continue
		}
		if c.sendNote(noteGone, id, 0, -1) != nil {
			keep = append(keep, id)
			o.mustRetry.Store(true)
			continue
		}
		o.forgetLocked(id)
	}
	o.unmapped = keep
}
