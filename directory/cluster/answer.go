// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/binary"
	"math"
	"net"
	"time"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// answers answers the questions of other members.
type answers struct {
	*core
	members *memberTable
	cursors cursors       // of the listings of other members
	large   chan struct{} // one slot for each question by stream that is being answered
	last    []byte        // buffer of packet; searches.mu guards it
}

// receive handles a datagram msgStop, and reports whether b is one.
func (a *answers) receive(b []byte) bool {
	if len(b) != 9 || b[0] != msgStop {
		return false
	}
	a.cursors.stop(binary.BigEndian.Uint64(b[1:]))
	return true
}

// mayAnswer reports whether this member may answer the question q now: it has an answer, or its no
// would be true.
func (a *answers) mayAnswer(q []byte) bool {
	if _, ok := parseQuestion(q); !ok {
		return false // a question of a later version: this member may hold what it asks for
	}
	if q[0] == kindRoll || a.cfg.Sure == nil || a.cfg.Sure() {
		return true
	}
	if q[0] == kindNext {
		return false // a cursor kept from now on would lack what is about to be offered again
	}
	_, ok := a.appendAnswer(nil, q, 0)
	return ok // a no is not sure: the resource may be about to be offered again; the asker will ask again
}

// packetLocked answers a question that came in a packet and has been parsed. The answer is valid
// until the next call. searches.mu must be held.
func (a *answers) packetLocked(q []byte) ([]byte, bool) {
	b, ok := a.appendAnswer(a.last[:0], q, mostPacked)
	if ok {
		a.last = b
	}
	a.countAnswer(q, b, ok)
	return b, ok
}

// countAnswer counts an answer to the question q that is about to be sent, or a no (not ok). It
// counts neither a roll nor the empty answer of a forgotten cursor.
func (a *answers) countAnswer(q, answer []byte, ok bool) {
	switch {
	case q[0] == kindRoll:
	case !ok:
		a.count.denied.Add(1)
	case len(answer) > 0:
		a.count.answered.Add(1)
	}
}

// appendAnswer appends the answer to the question q to b, or an identifier alone if the answer has
// more than most bytes. It reports false for a no.
func (a *answers) appendAnswer(b, q []byte, most int) ([]byte, bool) {
	pattern, err := resource.View(patternIn(q))
	if err != nil {
		return nil, false
	}
	var r database.Record
	var ok bool
	switch q[0] {
	case kindFind:
		r, ok = a.cfg.DB.Find(&pattern)
	case kindLookup:
		r, ok = a.cfg.DB.Get(resource.GetGID(q[1:]))
	case kindRoll:
		roll := a.members.roll.Load().brief
		return append(b, roll...), len(roll) <= most
	case kindNext:
		var lost bool
		if r, ok, lost = a.cursors.next(a.cfg.DB, binary.BigEndian.Uint64(q[1:]), binary.BigEndian.Uint64(q[9:]), &pattern, time.Now()); lost {
			return b, true
		}
	}
	if !ok {
		return nil, false
	}
	if sizeOf(&r, &pattern) > most {
		var id [stubLen]byte
		resource.PutGID(id[:], r.ID)
		return append(b, id[:]...), true
	}
	return wire.AppendRecord(b, &r, &pattern), true
}

// sizeOf returns the largest size of an answer, in bytes, without making the answer: other
// questions wait meanwhile.
func sizeOf(r *database.Record, pattern *resource.List) int {
	const head = 40
	if pattern.Complete() {
		return head + len(r.Attrs.Wire())
	}
	return head + pattern.FilledLen(&r.Attrs)
}

// serve answers the question that comes by a stream.
func (a *answers) serve(nc net.Conn) error {
	defer nc.Close()
	select {
	case a.large <- struct{}{}:
		defer func() { <-a.large }()
	case <-a.life.Done():
		return nil
	}
	_ = nc.SetDeadline(time.Now().Add(largeTime))
	q, err := readLarge(nc, mostStream)
	if err != nil {
		return err
	}
	const head = 5 // bytes before the answer
	b, ok := []byte{1, 0, 0, 0, 0}, true
	if len(q) == 1 && q[0] == kindSum {
		b, ok = a.appendSummary(b)
	} else if a.mayAnswer(q) {
		b, ok = a.appendAnswer(b, q, math.MaxInt)
		a.countAnswer(q, b[min(head, len(b)):], ok)
	} else {
		return nil
	}
	if ok {
		binary.LittleEndian.PutUint32(b[1:], uint32(len(b)-head))
	} else {
		b = []byte{0}
	}
	_ = nc.SetDeadline(time.Now().Add(largeTime))
	_, err = nc.Write(b)
	return err
}
