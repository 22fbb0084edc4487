// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// sendOwn sends a payload of size bytes from a buffer of n's pool.
func (n *node) sendOwn(t testing.TB, s *sink, seq uint32, size int) {
	t.Helper()
	b := n.signed(t, size, uint64(seq))
	sendBuffer(t, s, seq, b, b.Bytes())
	b.Release()
}

// sendBuffer sends data, which lies in b.
func sendBuffer(t testing.TB, s *sink, seq uint32, b *buffers.Buffer, data []byte) {
	t.Helper()
	f := frameOf(seq, b, data)
	for {
		k := try.Get(s.conn.Send([]subsys.Frame{f}))(t)
		if k == 1 {
			return
		}
		eventually.Value(t, "Writable", s.writable)
	}
}

// admitted is pair for two nodes that know each other, so that they may have many arenas mapped.
func admitted(t testing.TB, a, b *node) (near, far *sink) {
	t.Helper()
	near, far = pair(t, a, b)
	for _, s := range []*sink{near, far} {
		s.conn.(subsys.Admitter).Admit()
		s.keep(1)
	}
	eventually.True(t, "the grants are known", func() bool {
		return near.conn.(*conn).theirs.arenas.Load() > 0 && far.conn.(*conn).theirs.arenas.Load() > 0
	})
	return near, far
}

// take returns the payload that the sink has kept for longest. The caller owns the buffer.
func (s *sink) take(t testing.TB) *kept {
	t.Helper()
	var k *kept
	eventually.True(t, "a payload comes", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.bad != nil {
			t.Fatal(s.bad)
		}
		if len(s.kept) == 0 {
			return false
		}
		k, s.kept = s.kept[0], s.kept[1:]
		return true
	})
	return k
}

// sendOn sends a received payload on, and releases it.
func sendOn(t testing.TB, s *sink, seq uint32, k *kept) {
	t.Helper()
	sendBuffer(t, s, seq, k.buf, k.data)
	k.buf.Release()
}

func wantCopied(t testing.TB, what string, n *node, want bool) {
	t.Helper()
	if got := n.Count.CopiedB.Load(); got > 0 != want {
		t.Errorf("%s: %d bytes were copied", what, got)
	}
}

func wantBack(t testing.TB, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		eventually.True(t, "all that was lent is back", func() bool { return n.Pool.Stats().InUse == 0 })
	}
}

// Received payloads, and slices of them, are sent on without a copy. They do not change after the
// process that sent them on has released them. Their memory comes back through both processes.
//
// Promise (Shared memory): A received message is sent on without a copy, except beyond the budget
// for arenas or after 8 processes. See also TestForwardWithoutCopy.
func TestForward(t *testing.T) {
	a, b, c := start(t), start(t), start(t)
	ab, ba := admitted(t, a, b)
	bc, cb := admitted(t, b, c)
	const count = 30
	for i := range uint32(count) {
		a.sendOwn(t, ab, i, 5000+int(i)*20_000)
		k := ba.take(t)
		if i%3 == 0 { // a slice of a slice
			part := k.buf.Slice(100, len(k.data)-200)
			inner := part.Slice(7, 4000)
			sendBuffer(t, bc, i, inner, inner.Bytes())
			inner.Release()
			part.Release()
			k.buf.Release()
		} else {
			sendOn(t, bc, i, k)
		}
	}
	cb.wantFrames(t, count)
	scribble(t, a)
	for range count {
		k := cb.take(t)
		if !k.buf.ReadOnly() {
			t.Error("what was sent on is not read-only")
		}
		try.Check(t, verify(k.data, k.tag))
		k.buf.Release()
	}
	wantCopied(t, "the first", a, false)
	wantCopied(t, "the second", b, false)
	wantCopied(t, "the third", c, false)
	wantBack(t, a, b, c)
}

// A payload that is sent back is delivered where it lies. Nothing is copied, nothing more is
// mapped, and its receiver must not write to it. The number of loans does not grow when a payload
// goes back and forth.
func TestForwardHome(t *testing.T) {
	for i, from := range []func(testing.TB) *node{start, startGroup} {
		if i > 0 && !hasGroups {
			break
		}
		a, b := from(t), from(t)
		ab, ba := pair(t, a, b)
		ba.keep(1)
		ab.keep(1)
		for i := range uint32(600) { // more than the numbers of loans
			a.sendOwn(t, ab, i, 40_000)
			k := ba.take(t)
			if i%2 == 0 {
				part := k.buf.Slice(99, 30_000)
				sendBuffer(t, ba, i, part, part.Bytes()[1:])
				part.Release()
				k.buf.Release()
			} else {
				sendOn(t, ba, i, k)
			}
			k = ab.take(t)
			arena, _, ok := k.buf.Locate(k.data)
			if !ok || arena.FD < 0 || !k.buf.ReadOnly() || k.buf.Pool() != a.Pool {
				t.Fatal("it is not in its own memory, read-only")
			}
			if i%25 == 0 {
				wantBack(t, b)
				eventually.True(t, "the loan is back", func() bool { return !ab.conn.(*conn).hasLoans() && !ba.conn.(*conn).hasLoans() })
			}
			try.OK(t, verify(k.data, k.tag))
			k.buf.Release()
		}
		a.sendOwn(t, ab, 600, 1<<20)
		for i := range uint32(2 * maxLoans) {
			sendOn(t, ba, 600+i, ba.take(t))
			sendOn(t, ab, 601+i, ab.take(t))
		}
		ba.take(t).buf.Release()
		wantCopied(t, "the first", a, false)
		wantCopied(t, "the second", b, false)
		wantBack(t, a, b)
		if n := a.mapped(ab); n > 0 {
			t.Errorf("%d arenas are mapped a second time", n)
		}
	}
}

// A payload goes in a circle. It is copied from time to time, so that the loans before it end.
func TestForwardInCircles(t *testing.T) {
	var nodes [3]*node
	var out, in [3]*sink
	for i := range nodes {
		nodes[i] = start(t)
	}
	for i := range nodes {
		next := (i + 1) % len(nodes)
		out[i], in[next] = admitted(t, nodes[i], nodes[next])
		in[next].mu.Lock()
		in[next].room = nodes[next].Pool
		in[next].mu.Unlock()
	}
	nodes[0].sendOwn(t, out[0], 0, 200_000)
	const laps = 40
	for lap := range uint32(laps) {
		for i := 1; i <= len(nodes); i++ {
			seq := lap
			if i == len(nodes) {
				seq++
			}
			sendOn(t, out[i%len(nodes)], seq, in[i%len(nodes)].take(t))
		}
	}
	in[1].take(t).buf.Release()
	copied := uint64(0)
	for _, n := range nodes {
		copied += n.Count.CopiedB.Load()
	}
	// One hop in so many is a copy, which both ends count.
	if most := uint64(2 * 200_000 * (3*laps/mostHops + 1)); copied > most || copied == 0 {
		t.Errorf("%d bytes were copied, at most %d are to be", copied, most)
	}
	wantBack(t, nodes[:]...)
}

// A context sends on payloads that another context of its process has received or made.
func TestForwardAcrossContexts(t *testing.T) {
	a, b1, b2, c := start(t), start(t), start(t), start(t)
	ab, ba := pair(t, a, b1)
	bc, cb := pair(t, b2, c)
	ba.keep(1)
	cb.keep(1)
	for i := range uint32(20) {
		switch i % 3 {
		case 0: // received
			a.sendOwn(t, ab, i/3, 20_000)
			sendOn(t, bc, i, ba.take(t))
		case 1: // made by the other
			b1.sendOwn(t, bc, i, 20_000)
		case 2:
			b2.sendOwn(t, bc, i, 20_000)
		}
		k := cb.take(t)
		try.OK(t, verify(k.data, k.tag))
		defer k.buf.Release()
	}
	try.Works(cb.frames())(t)
	wantCopied(t, "the one that sends on", b2, false)
	wantCopied(t, "the receiver", c, false)
}

// A port for a group lends no memory of other contexts, because it may not be for the group.
func TestForwardAcrossContextsOfGroup(t *testing.T) {
	a, b1, b2, c := start(t), start(t), startGroup(t), startGroup(t)
	ab, ba := pair(t, a, b1)
	bc, cb := pair(t, b2, c)
	ba.keep(1)
	a.sendOwn(t, ab, 0, 20_000)
	sendOn(t, bc, 0, ba.take(t))
	b1.sendOwn(t, bc, 1, 20_000)
	cb.wantFrames(t, 2)
	try.Equal(t, b2.Count.CopiedB.Load(), 40_000, "bytes were copied")
	if n := c.mapped(cb); n > 0 {
		t.Errorf("%d arenas were handed to the group", n)
	}
}

// If the peer grants no more arenas, or this process may keep no more descriptors, payloads are
// copied when they are sent on.
func TestForwardBeyondBudget(t *testing.T) {
	t.Run("arenas", func(t *testing.T) {
		forwardMany(t, 3*fewArenas, 2*fewArenas)
	})
	t.Run("descriptors", func(t *testing.T) {
		eventually.True(t, "no other test keeps a descriptor", func() bool { return keptFDs.Load() == 0 })
		const most = 3
		defer func(was func() int64) { mostKept = was }(mostKept)
		mostKept = func() int64 { return most }
		forwardMany(t, fewArenas, fewArenas-2) // of each arena the last keeps one too
	})
}

// forwardMany sends on count payloads, each in an arena of its own, of which copied must be copied.
func forwardMany(t *testing.T, count, copied int) {
	const size = 1 << 20
	a, b, c := start(t), start(t), start(t)
	defer func() { // before mostKept changes
		for _, n := range []*node{a, b, c} {
			_ = n.Port.Close()
		}
	}()
	ab, ba := pair(t, a, b)
	bc, cb := pair(t, b, c)
	ba.conn.(subsys.Admitter).Admit()
	eventually.True(t, "the quota is known", func() bool { return ab.conn.(*conn).theirs.arenas.Load() > 0 })
	ba.keep(1)
	cb.keep(1)
	for i := range count {
		a.sendOwn(t, ab, uint32(i), size)
		sendOn(t, bc, uint32(i), ba.take(t))
		cb.wantFrames(t, i+1) // c may keep a descriptor of it, before b does of the next
	}
	try.Gives(cb.release())(t, count, "held")
	try.Equal(t, b.Count.CopiedB.Load(), uint64(copied)*size, "bytes were copied")
	wantBack(t, a, b, c)
}

// An arena that its owner unmaps is unmapped by all processes that it was passed on to.
func TestForwardedArenaForgotten(t *testing.T) {
	b, c := start(t), start(t)
	before := keptFDs.Load()
	a := try.Get(open(""))(t)
	ab, ba := pair(t, a, b)
	bc, cb := pair(t, b, c)
	ba.keep(1)
	cb.keep(1)
	a.sendOwn(t, ab, 0, 40_000)
	k := ba.take(t)
	sendBuffer(t, bc, 0, k.buf, k.data)
	at := cb.take(t)
	if err := a.Close(); err != nil { // abandoned buffers do not count as leaked
		t.Error(err)
	}
	_ = ba.wantDown(t)
	try.Check(t, verify(at.data, at.tag))
	at.buf.Release()
	try.Check(t, verify(k.data, k.tag))
	k.buf.Release()
	eventually.True(t, "the last reader has let go", func() bool { return b.mapped(ba)+c.mapped(cb) == 0 })
	eventually.True(t, "no descriptor is kept", func() bool { return keptFDs.Load() == before })
	// The connection over which it was sent still works.
	b.sendOwn(t, bc, 1, 40_000)
	cb.take(t).buf.Release()
}

// Whatever ends in the middle of a chain, payloads held at its end do not change. The memory comes
// back, or is not used again.
func TestForwardHeldWhenSomethingCloses(t *testing.T) {
	for _, what := range []string{"first connection, near", "first connection, far", "second connection, near", "second connection, far", "first port", "second port"} {
		t.Run(what, func(t *testing.T) {
			a, b, c := start(t), start(t), start(t)
			ab, ba := pair(t, a, b)
			bc, cb := pair(t, b, c)
			ba.keep(1)
			cb.keep(1)
			const count = 20
			for i := range uint32(count) {
				a.sendOwn(t, ab, i, 40_000)
				sendOn(t, bc, i, ba.take(t))
			}
			cb.wantFrames(t, count)
			switch what {
			case "first connection, near":
				ab.conn.Close()
				_ = ba.wantDown(t)
			case "first connection, far":
				ba.conn.Close()
				_ = ab.wantDown(t)
			case "second connection, near":
				bc.conn.Close()
				_ = cb.wantDown(t)
			case "second connection, far":
				cb.conn.Close()
				_ = bc.wantDown(t)
			case "first port":
				_ = a.Port.Close()
				_ = ba.wantDown(t)
			case "second port":
				_ = b.Port.Close()
				_ = ab.wantDown(t)
				_ = cb.wantDown(t)
				wantBack(t, a) // abandoned: it cannot be known when the readers have ended
			}
			scribble(t, a)
			try.Gives(cb.release())(t, count, "held")
			wantBack(t, a, b, c)
		})
	}
}

// A port closes before its peer has read payloads that were sent on, or back. A payload sent on
// arrives whole. A payload sent back may be lost with the connection; no other one arrives in its
// place.
func TestForwardUnread(t *testing.T) {
	a, c := start(t), start(t)
	b := try.Get(open(""))(t)
	ab, ba := admitted(t, a, b)
	bc, cb := admitted(t, b, c)
	a.sendOwn(t, ab, 0, 40_000)
	k := ba.take(t)
	a.Hold.Lock()
	c.Hold.Lock()
	sendBuffer(t, bc, 0, k.buf, k.data)
	sendOn(t, ba, 0, k)
	try.Check(t, b.Close())
	conn := ab.conn.(*conn)
	for range 3 { // later loans have other numbers
		buf := try.Get(a.Pool.Get(40_000))(t)
		clear(buf.Bytes())
		_, _ = conn.Send([]subsys.Frame{frameOf(1, buf, buf.Bytes())})
		buf.Release()
	}
	a.Hold.Unlock()
	scribble(t, a)
	c.Hold.Unlock()
	at := cb.take(t)
	try.Check(t, verify(at.data, at.tag))
	at.buf.Release()
	for _, s := range []*sink{ab, cb} {
		s.wantDownAs(t, subsys.ErrPeerClosed)
		try.Works(s.frames())(t)
		_, _ = s.release()
	}
	wantBack(t, a, c)
}

// Memory of a process of another user is not passed on, because that process would not believe this
// one that third processes read it.
//
// Promise (Shared memory): Memory of another user is not passed on to third processes. See also
// TestForwardAcrossContextsOfGroup.
func TestForwardOfOtherUser(t *testing.T) {
	needRoot(t)
	b, c := startGroup(t), startGroup(t)
	bc, cb := pair(t, b, c)
	exe := launch(t, "member "+b.Port.Addr(), &syscall.Credential{Uid: 65534, Gid: 0})
	ba := b.accepted(t)
	ba.keep(1)
	ba.wantFrames(t, 50)
	ba.mu.Lock()
	all := ba.kept
	ba.kept = nil
	ba.mu.Unlock()
	seq, size := uint32(0), uint64(0)
	for _, k := range all {
		if k.buf.ReadOnly() {
			sendBuffer(t, bc, seq, k.buf, k.data)
			seq++
			size += uint64(len(k.data))
		}
	}
	if size == 0 {
		t.Fatal("nothing was lent")
	}
	cb.wantFrames(t, int(seq))
	if copied := c.Count.CopiedB.Load(); copied < size {
		t.Errorf("%d bytes of %d were copied", copied, size)
	}
	if n := c.mapped(cb); n > 0 {
		t.Errorf("%d arenas were passed on", n)
	}
	// But the payload may be sent back.
	for _, k := range all {
		if k.buf.ReadOnly() {
			if _, ok := ba.conn.(*conn).locate(&subsys.Frame{Header: subsys.Header{Type: 16}, Data: k.data, Buf: k.buf}); !ok {
				t.Error("it cannot go back")
			}
		}
		k.buf.Release()
	}
	exe.Kill()
	_ = ba.wantDown(t)
}
