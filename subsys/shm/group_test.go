// SPDX-License-Identifier: Apache-2.0

//go:build linux && !portable

package shm

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// A group member makes its bell blocking and full, reads nothing, and reports again and again that
// it sleeps. Ringing its bell must not block.
//
// Promise (Shared memory): With `shm.ForGroup`, a process of the group cannot block, stop or end a
// process of another user. See also TestNapMoved.
func TestGroupBellCannotBlock(t *testing.T) {
	evil, n := startGroup(t), startGroup(t)
	near, far := pair(t, startGroup(t), n)
	good(t, near, far)
	evil.Hold.Lock() // the peer reads nothing
	defer evil.Hold.Unlock()
	c := raw(t, evil, n.Port.Addr())
	defer c.Close()
	s := n.accepted(t)
	bell := evil.Port.(*port).bell
	try.OK(t, unix.SetNonblock(bell.fd, false))
	var full [8]byte
	binary.NativeEndian.PutUint64(full[:], 1<<64-2)
	try.Get(unix.Write(bell.fd, full[:]))(t)
	sent := make(chan error)
	go func() {
		var err error
		for i := 0; i < 1000 && err == nil; i++ {
			bell.setMode(subsys.Asleep)
			s.conn.(*conn).ring()
		}
		sent <- err
	}()
	select {
	case err := <-sent:
		try.Check(t, err)
	case <-time.After(testTimeout):
		t.Error("ringing for a peer blocks")
		_, _ = unix.Read(bell.fd, full[:])
		<-sent
	}
	good(t, near, far)
}

// Before its sink knows the peer, a connection maps few of the peer's arenas.
func TestArenasBeforeAdmission(t *testing.T) {
	evil, n := startGroup(t), startGroup(t)
	c := raw(t, evil, n.Port.Addr())
	defer c.Close()
	s := n.accepted(t)
	_, before := resources()
	for id := range uint32(100) {
		if err := c.sendNote(noteArena, id, bellLen, evil.Port.(*port).bell.page); err != nil {
			break // the connection was cut meanwhile
		}
	}
	s.wantDownAs(t, subsys.ErrProtocol)
	if _, after := resources(); after > before+10 {
		t.Errorf("%d more mappings", after-before)
	}
}

// During a flood of notes the reading goroutine stops again and again to do other work.
func TestNotesInTurns(t *testing.T) {
	evil, n := start(t), start(t)
	near, far := pair(t, start(t), n)
	n.Hold.Lock()
	c := raw(t, evil, n.Port.Addr())
	s := n.accepted(t)
	for i := range 200 {
		kind, fd := uint32(noteArena), evil.Port.(*port).bell.page
		size := uint64(bellLen)
		if i%2 == 1 {
			kind, fd, size = noteGone, -1, 0
		}
		try.OK(t, c.sendNote(kind, 1, size, fd))
	}
	if _, again := s.conn.(*conn).Ready(subsys.Readable); !again {
		t.Error("all notes were read at once")
	}
	n.Hold.Unlock()
	good(t, near, far)
	c.Close()
}

// A peer that closes its socket, and whose ring never ends, does not stop the progress goroutine.
func TestEndlessRing(t *testing.T) {
	evil, n := start(t), start(t)
	near, far := pair(t, start(t), n)
	n.Hold.Lock()
	c := raw(t, evil, n.Port.Addr())
	s := n.accepted(t)
	s.mu.Lock()
	s.lax = true
	s.mu.Unlock()
	rec := make([]byte, line)
	binary.LittleEndian.PutUint64(rec, recBytes|subsys.HeaderLen<<32)
	h := subsys.Header{Type: 16}
	h.Put(rec[recordLen:])
	for at := uint64(0); at < ringLen; at += line {
		c.mine.put(at, rec)
	}
	try.OK(t, unix.Shutdown(c.sock, unix.SHUT_RDWR))
	n.Hold.Unlock()
	_ = s.wantDown(t)
	good(t, near, far)
	c.Close()
}

// A file with pages without memory is not accepted as an arena: a reader would allocate the pages,
// or fail.
func TestArenaWithoutMemory(t *testing.T) {
	evil, n := start(t), start(t)
	fd, mem, err := memfd.Reserve("evil", 1<<20)
	if err != nil {
		t.Skip(err)
	}
	defer memfd.Close(fd)
	defer memfd.Unmap(mem)
	c := raw(t, evil, n.Port.Addr())
	defer c.Close()
	s := n.accepted(t)
	try.OK(t, c.sendNote(noteArena, 1, 1<<20, fd))
	s.wantDownAs(t, memfd.ErrUnsealed)
}

// A sender with more arenas than its peer maps at once lends from them in turn.
func TestMoreArenasThanMapped(t *testing.T) {
	a, b := startGroup(t), startGroup(t)
	near, far := pair(t, a, b)
	const size, rounds, arenas = 2 << 20, 3, 3 * fewArenas // each buffer is an arena
	var bufs [arenas]*buffers.Buffer
	for k := range bufs {
		bufs[k] = a.signed(t, size, uint64(k))
		defer bufs[k].Release()
	}
	for i := range rounds {
		for k, buf := range bufs {
			copies := a.Count.Copies.Load()
			sendBuffer(t, near, uint32(i*arenas+k), buf, buf.Bytes())
			far.wantFrames(t, i*arenas+k+1)
			eventually.True(t, "it comes back", func() bool {
				return near.conn.(*conn).out.loansOut.Load() == 0 || near.conn.(*conn).out.hasReturns(near.conn.(*conn))
			})
			if a.Count.Copies.Load() != copies {
				t.Fatal("a payload was copied")
			}
			if n := b.mapped(far); n > fewArenas {
				t.Errorf("%d arenas are mapped", n)
			}
		}
	}
}

// Another user of the group that opens sockets and sends nothing gets few of the places for
// handshakes.
func TestSilentUsers(t *testing.T) {
	needRoot(t)
	n := startGroup(t)
	try.Equal(t, run(t, "crowd "+n.socket(t), &syscall.Credential{Uid: 65534, Gid: uint32(os.Getegid())}), "the last one was closed first")
}

// Another user of the group whose connections are never admitted has few of them, until they are
// admitted or end.
func TestUnadmittedUsers(t *testing.T) {
	needRoot(t)
	n := startGroup(t)
	other := &syscall.Credential{Uid: 65534, Gid: 0}
	for range 2 { // the places of the first round are free when it has ended
		try.Equal(t, run(t, "callers "+n.Port.Addr(), other), fmt.Sprint(maxSilent), "connections made")
		for range maxSilent {
			s := n.accepted(t)
			_ = s.wantDown(t)
		}
		eventually.True(t, "the connections are gone", func() bool { return conns(n) == 0 })
	}
	exe := launch(t, "member "+n.Port.Addr(), other)
	s := n.accepted(t)
	p := n.Port.(*port)
	pending := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.silentTotal
	}
	try.Equal(t, pending(), 1, "not admitted")
	s.conn.(subsys.Admitter).Admit()
	try.Equal(t, pending(), 0, "not admitted after Admit")
	exe.Kill()
	_ = s.wantDown(t)
	_, _ = s.release()
}

// Admitted peers share what a port maps. Each has the minimum, all together have no more than the
// port's limit, and the quota of a connection comes back at its end.
func TestBudget(t *testing.T) {
	a, b := startGroup(t), startGroup(t)
	near, far := pair(t, a, b)
	far.conn.(subsys.Admitter).Admit()
	far.conn.(subsys.Admitter).Admit() // has no effect
	eventually.True(t, "the quota is known", func() bool { return near.conn.(*conn).theirs.arenas.Load() == peerArenas-fewArenas })
	p := b.Port.(*port)
	if p.budget.arenas != peerArenas-fewArenas || p.budget.gib != peerGiB-fewBytes>>30 {
		t.Errorf("one peer has %d arenas, %d GiB", p.budget.arenas, p.budget.gib)
	}
	var all [1000]quota
	for i := range all {
		p.budget.grow(&all[i])
	}
	if p.budget.arenas > portArenas || p.budget.gib > portGiB {
		t.Errorf("%d arenas, %d GiB are granted", p.budget.arenas, p.budget.gib)
	}
	if arenas, bytes := all[999].get(); arenas < fewArenas || bytes < fewBytes {
		t.Errorf("the last has %d arenas, %d bytes", arenas, bytes)
	}
	for i := range all {
		p.budget.reclaim(&all[i])
	}
	near.conn.Close()
	_ = far.wantDown(t)
	eventually.True(t, "all comes back", func() bool {
		p.budget.mu.Lock()
		defer p.budget.mu.Unlock()
		return p.budget.arenas == 0 && p.budget.gib == 0
	})
}
