// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// raw connects to a port and has all that a peer has, but no code that keeps the protocol.
func raw(t testing.TB, n *node, addr string) *conn {
	t.Helper()
	s := newSink(nil)
	c := try.Get(n.Port.Dial(t.Context(), addr, s))(t)
	return c.(*conn)
}

// good sends a frame over an honest connection, which must not be affected.
func good(t testing.TB, near, far *sink) {
	t.Helper()
	seq, _ := far.frames()
	f := subsys.Frame{Header: subsys.Header{Type: 16, Seq: uint32(seq)}}
	if n, err := near.conn.Send([]subsys.Frame{f}); n != 1 || err != nil {
		t.Fatalf("an honest connection took %d frames: %v", n, err)
	}
	far.wantFrames(t, seq+1)
}

// A peer that writes nonsense is cut off with ErrProtocol. Memory that it names beyond its own is
// not accessed, and other connections are not affected.
//
// Promise (Shared memory): A process that writes nonsense into its shared memory loses the
// connection. It cannot write to another process's memory. See also TestOnlyTheMakerWrites.
func TestNonsense(t *testing.T) {
	evil, n := start(t), start(t)
	near, far := pair(t, start(t), n)
	var word [8]byte
	record := func(kind uint32, size uint32, body ...byte) []byte {
		binary.LittleEndian.PutUint32(word[:], kind)
		binary.LittleEndian.PutUint32(word[4:], size)
		return append(append([]byte(nil), word[:]...), body...)
	}
	lent := func(arena, loan uint32, off uint64, size, said uint32) []byte {
		b := make([]byte, lentLen)
		d := extent{arena, loan, off, size}
		d.put(b)
		h := subsys.Header{Type: 16, Len: said}
		h.Put(b[extentLen:])
		return record(recFrame, lentLen, b...)
	}
	for name, bad := range map[string]func(c *conn){
		"an empty record":         func(c *conn) { write(c, record(recBytes, 0)) },
		"no kind":                 func(c *conn) { write(c, record(0, 8)) },
		"a kind unknown":          func(c *conn) { write(c, record(9, 8, make([]byte, 8)...)) },
		"a record too long":       func(c *conn) { write(c, record(recBytes, 1<<31, 1, 2, 3, 4, 5, 6, 7, 8)) },
		"a record that wraps":     func(c *conn) { write(c, record(recBytes, 1<<32-1)) },
		"a bad header":            func(c *conn) { write(c, record(recBytes, 32, bytes.Repeat([]byte{0xff}, 32)...)) },
		"an unknown arena":        func(c *conn) { write(c, lent(77, 0, 0, 4096, 4096)) },
		"a loan behind the arena": func(c *conn) { own(t, c, evil, 7); write(c, lent(7, 0, 1<<40, 4096, 4096)) },
		"a loan that wraps":       func(c *conn) { own(t, c, evil, 7); write(c, lent(7, 0, 1<<64-8, 4096, 4096)) },
		"a loan too long":         func(c *conn) { own(t, c, evil, 7); write(c, lent(7, 0, 4096, 4096, 4096)) },
		"a loan of nothing":       func(c *conn) { own(t, c, evil, 7); write(c, lent(7, 0, 0, 0, 0)) },
		"a loan number too high":  func(c *conn) { own(t, c, evil, 7); write(c, lent(7, maxLoans, 0, 64, 64)) },
		"two lengths":             func(c *conn) { own(t, c, evil, 7); write(c, lent(7, 0, 0, 64, 65)) },
		"a loan inside a frame": func(c *conn) {
			own(t, c, evil, 7)
			write(c, append(record(recBytes, 24, make([]byte, line-recordLen)...), lent(7, 0, 0, 64, 64)...))
		},
		"returns of nothing":      func(c *conn) { c.mine.giveBack(0, 0); c.wake() },
		"returns of nothing lost": func(c *conn) { c.mine.giveBack(0, lostBit); c.wake() },
		"a frame in a loan that is not out": func(c *conn) {
			b := lent(0, 0, 0, 64, 64)
			binary.LittleEndian.PutUint32(b, recHome)
			write(c, b)
		},
		"a frame in a loan without a number": func(c *conn) {
			b := lent(1<<31, 0, 0, 64, 64)
			binary.LittleEndian.PutUint32(b, recHome)
			write(c, b)
		},
		"an arena passed on too often": func(c *conn) {
			_ = c.sendNoteHops(noteArena, mostHops+1, 7, bellLen, evil.Port.(*port).bell.page)
		},
		"a ring passed on":     func(c *conn) { _ = c.sendNoteHops(noteRing, 1, 0, 0, -1) },
		"a note unknown":       func(c *conn) { _ = c.sendNote(9, 1, 0, -1) },
		"a note cut short":     func(c *conn) { _ = unix.Sendmsg(c.sock, []byte("short"), nil, nil, 0) },
		"an arena without one": func(c *conn) { _ = c.sendNote(noteArena, 1, 4096, -1) },
		"an arena unsealed": func(c *conn) {
			fd, _ := unix.MemfdCreate("open", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			_ = unix.Ftruncate(fd, 4096)
			_ = c.sendNote(noteArena, 1, 4096, fd)
			unix.Close(fd)
		},
		"an arena of another size": func(c *conn) { _ = c.sendNote(noteArena, 1, 8192, evil.Port.(*port).bell.page) },
		"an arena twice":           func(c *conn) { own(t, c, evil, 7); own(t, c, evil, 7) },
		"an arena gone that never was": func(c *conn) {
			_ = c.sendNote(noteGone, 5, 0, -1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			good(t, near, far)
			c := raw(t, evil, n.Port.Addr())
			s := n.accepted(t)
			bad(c)
			c.wake()
			s.wantDownAs(t, subsys.ErrProtocol, subsys.ErrBadHeader, memfd.ErrUnsealed)
			if got, _ := s.frames(); got > 0 {
				t.Errorf("%d frames were delivered", got)
			}
			c.Close()
			good(t, near, far)
		})
	}
}

// A peer that sends back a loan that it does not have is cut off. Loans that it has are accepted.
func TestNonsenseSentBack(t *testing.T) {
	evil, n := start(t), start(t)
	for name, bad := range map[string]extent{
		"behind the loan":          {loan: 1, off: 40_000, n: 1},
		"too long":                 {loan: 1, off: 1, n: 40_000},
		"nothing":                  {loan: 1, off: 7, n: 0},
		"a place that wraps":       {loan: 1, off: 1<<64 - 8, n: 16},
		"another loan":             {arena: 1, loan: 1, n: 64},
		"with a number too high":   {loan: maxLoans, n: 64},
		"with a number that wraps": {loan: 1<<32 - 1, n: 64},
		"":                         {loan: 1, off: 39_000, n: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			c := raw(t, evil, n.Port.Addr())
			defer c.Close()
			s := n.accepted(t)
			s.keep(1)
			n.sendOwn(t, s, 0, 40_000) // loan 0
			bad.put(c.mine.ring[recordLen:])
			s.conn.(*conn).out.mu.Lock()
			data := s.conn.(*conn).out.loans[0].data
			s.conn.(*conn).out.mu.Unlock()
			h := subsys.Header{Type: 16, Len: bad.n, Tag: sum(data[39_000:])}
			h.Put(c.mine.ring[recordLen+extentLen:])
			c.mine.word(0).Store(recHome | lentLen<<32)
			c.wake()
			if name == "" {
				k := s.take(t)
				if &k.data[0] != &data[39_000] || !k.buf.ReadOnly() {
					t.Error("it is not a part of what was lent")
				}
				k.buf.Release()
				eventually.True(t, "the loan for it is back", func() bool {
					loan, ok := c.theirs.givenBack(0)
					return ok && loan == 1
				})
				return
			}
			s.wantDownAs(t, subsys.ErrProtocol)
			if got, _ := s.frames(); got > 0 {
				t.Errorf("%d frames were delivered", got)
			}
		})
	}
	eventually.True(t, "all that was lent is back", func() bool { return n.Pool.Stats().InUse == 0 })
}

// write publishes raw records.
func write(c *conn, b []byte) {
	c.mine.put(recordLen, b[recordLen:])
	c.mine.word(0).Store(binary.LittleEndian.Uint64(b))
}

// own announces a page to the peer as arena id.
func own(t testing.TB, c *conn, n *node, id uint32) {
	t.Helper()
	try.OK(t, c.sendNote(noteArena, id, bellLen, n.Port.(*port).bell.page))
}

// Arenas that a peer withdraws while messages in them are held stay readable.
func TestArenaTakenBack(t *testing.T) {
	evil, n := start(t), start(t)
	c := raw(t, evil, n.Port.Addr())
	s := n.accepted(t)
	s.keep(1)
	fd, mem, err := memfd.Create(context.Background(), "evil", 8192)
	try.OK(t, err)
	tag := sign(mem, rand.New(rand.NewPCG(1, 1)))
	_ = c.sendNote(noteArena, 7, 8192, fd)
	b := make([]byte, recordLen+lentLen)
	binary.LittleEndian.PutUint64(b, recFrame|lentLen<<32)
	d := extent{7, 0, 0, 8192}
	d.put(b[recordLen:])
	h := subsys.Header{Type: 16, Len: 8192, Tag: tag}
	h.Put(b[recordLen+extentLen:])
	write(c, b)
	c.ring()
	s.wantFrames(t, 1)
	_ = c.sendNote(noteGone, 7, 0, -1)
	memfd.Unmap(mem)
	memfd.Close(fd)
	c.Close()
	_ = s.wantDown(t)
	try.Gives(s.release())(t, 1, "held")
}

// Words of a peer's memory are flipped at random while frames flow both ways. The connection may
// end; nothing else happens.
func TestFlippedWords(t *testing.T) {
	evil, n := start(t), start(t)
	near, far := pair(t, start(t), n)
	rounds := 150
	if short.Form(t) {
		rounds = 20
	}
	broken := 0
	for i := range rounds {
		s := try.Get(evil.dial(n.Port.Addr()))(t)
		f := n.accepted(t)
		f.mu.Lock()
		f.next, f.every = 0, 7
		f.mu.Unlock()
		c := s.conn.(*conn)
		if !c.tryRetain() {
			t.Fatal("the connection is gone at once")
		}
		sent := make(chan struct{}, 2)
		go func() { _ = evil.load(s, 300, uint64(i)); sent <- struct{}{} }()
		go func() { _ = n.load(f, 300, uint64(i)); sent <- struct{}{} }()
		rnd := rand.New(rand.NewPCG(uint64(i), 5))
		for range 30 {
			at := rnd.IntN(segmentLen/4) * 4
			if rnd.IntN(3) == 0 {
				at = rnd.IntN(256/4) * 4 // among the words of the segment
			}
			w := (*atomic.Uint32)(unsafe.Pointer(&c.mine.mem[at]))
			w.Store(w.Load() ^ 1<<rnd.IntN(32))
			time.Sleep(20 * time.Microsecond) // frames travel between two changes
		}
		c.Close()
		if err := f.wantDown(t); errors.Is(err, subsys.ErrProtocol) || errors.Is(err, subsys.ErrBadHeader) {
			broken++
		}
		f.fell(nil) // ends the wait of the sending goroutine
		s.fell(nil)
		<-sent
		<-sent
		_, _ = f.release()
		c.drop()
	}
	// How many connections are cut off is chance: most of the words are free or used by the hostile
	// side only. TestNonsense checks that each kind of nonsense is noticed.
	t.Logf("%d of %d connections were cut off", broken, rounds)
	good(t, near, far)
	eventually.True(t, "all that was lent is back", func() bool { return n.Pool.Stats().InUse <= 1 && evil.Pool.Stats().InUse == 0 })
	eventually.True(t, "the connections are gone", func() bool { return conns(n) == 1 && conns(evil) == 0 })
}

// A badHello is what a peer sends instead of a hello, with descriptors.
type badHello struct {
	b   []byte
	fds []int
}

// helloParts returns a segment as a peer makes it, and a pipe that is none.
func helloParts(t *testing.T) (seg int, p [2]int) {
	t.Helper()
	try.OK(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	seg, mem, err := memfd.Create(context.Background(), "peer", segmentLen)
	try.OK(t, err)
	t.Cleanup(func() {
		memfd.Unmap(mem)
		for _, fd := range []int{seg, p[0], p[1]} {
			unix.Close(fd)
		}
	})
	return seg, p
}

// refuses checks that n refuses each of the hellos, and no descriptor stays. Another connection
// works all the time.
func (n *node) refuses(t *testing.T, hellos []badHello) {
	near, far := pair(t, start(t), n)
	at := &net.UnixAddr{Name: n.socket(t), Net: network}
	good(t, near, far) // maps the memory that the connection needs
	before, _ := resources()
	for i, s := range hellos {
		c := try.Get(net.DialUnix(network, nil, at))(t)
		if s.b != nil {
			var oob []byte
			if s.fds != nil {
				oob = unix.UnixRights(s.fds...)
			}
			if _, _, err := c.WriteMsgUnix(s.b, oob, nil); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(testTimeout))
			if k, err := c.Read(make([]byte, 100)); k > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("peer %d was answered with %d bytes, %v", i, k, err)
			}
		}
		c.Close()
	}
	good(t, near, far)
	eventually.True(t, "no descriptor stays", func() bool { f, _ := resources(); return f <= before })
	select {
	case <-n.taken:
		t.Error("a peer without access was admitted")
	default:
	}
}

// A silent listener at an address delays a dial for a limited time only, and the dial ends with its
// context.
func TestSilentListener(t *testing.T) {
	n := start(t)
	node := n.Port.(*port).addr.node
	name := newName()
	l := try.Get(net.ListenUnix(network, &net.UnixAddr{Name: n.Port.(*port).socket(name), Net: network}))(t)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	try.Fails(n.Port.Dial(ctx, scheme+node+"/"+name, newSink(nil)))(t, context.Canceled, "dialling a peer that says nothing")
}

// Addresses of other nodes, or of other namespaces, are not dialled.
func TestReaches(t *testing.T) {
	n := start(t)
	if !strings.HasPrefix(n.Port.Addr(), scheme) || !n.Port.Reaches(n.Port.Addr()) {
		t.Errorf("%s does not reach itself", n.Port.Addr())
	}
	for _, a := range []string{
		"shm://0011223344556677/1-abc", n.Port.Addr() + "/x/y", n.Port.Addr() + "/", strings.ToUpper(n.Port.Addr()), "tcp://127.0.0.1:1",
		"shm:///x", "shm://" + strings.Repeat("a", 100) + "/x", n.Port.Addr() + "\x00",
	} {
		if n.Port.Reaches(a) {
			t.Errorf("%q is reached", a)
		}
		try.Fails(n.Port.Dial(t.Context(), a, newSink(nil)))(t, subsys.ErrAddress, "dialling %q", a)
	}
}

// A frame that is given up half written, because the peer writes nonsense, is released.
func TestHalfWritten(t *testing.T) {
	a, b := start(t), start(t)
	near, _ := pair(t, a, b)
	c := near.conn.(*conn)
	c.out.seen.Store(returnsEnded) // nothing is lent
	buf := try.Get(a.Pool.Get(1 << 20))(t)
	defer buf.Release()
	c.out.peerHead.Store(c.out.tail + line) // the peer claims to have read bytes that were not written
	f := subsys.Frame{Header: subsys.Header{Type: 16, Len: 1 << 20}, Data: buf.Bytes(), Buf: buf}
	if _, err := c.Send([]subsys.Frame{f}); !errors.Is(err, subsys.ErrProtocol) {
		t.Fatal(err)
	}
	c.Close()
	try.Equal(t, buf.Refs(), 1, "references")
}
