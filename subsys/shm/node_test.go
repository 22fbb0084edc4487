// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/internal/harness"
)

const testTimeout = eventually.Timeout

// A node stands for a context, as far as a transport can tell. Its sinks check every payload and
// keep some.
type node struct {
	*harness.Harness
	taken  chan *sink
	accept func(subsys.Conn) subsys.Sink // replaces the sinks in taken; nil: those are used
}

func open(addr string) (*node, error) { return openOver(New(), addr) }

func openOver(tr subsys.Transport, addr string) (*node, error) {
	n := &node{taken: make(chan *sink, 64)}
	var err error
	n.Harness, err = harness.Open(tr, addr, harness.Sleeping, nil, func(c subsys.Conn) subsys.Sink {
		if n.accept != nil {
			return n.accept(c)
		}
		s := newSink(c)
		n.taken <- s
		return s
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

func start(t testing.TB) *node {
	t.Helper()
	return startOver(t, New())
}

func startOver(t testing.TB, tr subsys.Transport) *node {
	t.Helper()
	n := try.Get(openOver(tr, ""))(t)
	t.Cleanup(func() {
		try.Check(t, n.Close())
	})
	return n
}

// startGroup starts a node whose transport was made for this process's group.
func startGroup(t testing.TB) *node {
	t.Helper()
	needGroups(t)
	return startOver(t, ForGroup(os.Getegid()))
}

// needGroups skips a test where users of a group do not share memory.
func needGroups(t testing.TB) {
	t.Helper()
	if !hasGroups {
		t.Skip("no memory is shared between users on this system")
	}
}

func (n *node) dial(addr string) (*sink, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	s := newSink(nil)
	c, err := n.Port.Dial(ctx, addr, s)
	if err != nil {
		return nil, err
	}
	s.conn = c
	c.Start()
	return s, nil
}

// pair joins two nodes.
func pair(t testing.TB, a, b *node) (near, far *sink) {
	t.Helper()
	near = try.Get(a.dial(b.Port.Addr()))(t)
	return near, b.accepted(t)
}

func (n *node) accepted(t testing.TB) *sink {
	t.Helper()
	return eventually.Value(t, "an accepted connection", n.taken)
}

// socket returns the name or path of the socket at which n listens.
func (n *node) socket(t testing.TB) string {
	a := try.Get(parse(n.Port.Addr()))(t)
	return n.Port.(*port).socket(a.name)
}

// mapped returns how many arenas of the peer of s are mapped in n.
func (n *node) mapped(s *sink) int {
	n.Hold.Lock()
	defer n.Hold.Unlock()
	return len(s.conn.(*conn).in.arenas)
}

// needRoot skips a test that runs a process of another user.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 || os.Getegid() != 0 {
		t.Skip("only root can run a process of another user")
	}
}

// A sink checks the frames that arrive and keeps every n-th payload.
type sink struct {
	conn     subsys.Conn
	writable chan struct{}
	down     chan error

	mu    sync.Mutex
	every int // one payload in every is kept; 0: none
	got   int
	next  uint32
	lax   bool // frames are not checked
	bad   error
	kept  []*kept
	room  *buffers.Pool // for payloads that are copied; nil: a pool that is not shared
}

type kept struct {
	buf  *buffers.Buffer
	data []byte
	tag  uint64
}

func newSink(c subsys.Conn) *sink {
	return &sink{conn: c, writable: make(chan struct{}, 1), down: make(chan error, 1)}
}

func (s *sink) Frames(_ subsys.Conn, fs []subsys.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range fs {
		f := &fs[i]
		if s.lax {
			continue
		}
		if f.Seq != s.next {
			s.bad = fmt.Errorf("frame %d in place of %d", f.Seq, s.next)
		} else if err := verify(f.Data, f.Tag); err != nil {
			s.bad = fmt.Errorf("frame %d of %d bytes: %w", f.Seq, f.Len, err)
		}
		s.next++
		s.got++
		if s.every > 0 && f.Buf != nil && s.got%s.every == 0 && len(s.kept) < 100 {
			s.kept = append(s.kept, &kept{f.Buf.Retain(), f.Data, f.Tag})
		}
	}
	return s.bad
}

func (s *sink) Room(_ subsys.Conn, h *subsys.Header) (*buffers.Buffer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room != nil {
		return s.room.Get(int(h.Len))
	}
	return roomPool.Get(int(h.Len))
}

var roomPool = buffers.New()

func (s *sink) Writable(subsys.Conn) {
	select {
	case s.writable <- struct{}{}:
	default:
	}
}

func (s *sink) Down(_ subsys.Conn, err error) { s.fell(err) }

// fell makes the end visible to all waiting goroutines.
func (s *sink) fell(err error) {
	select {
	case s.down <- err:
	default: // the end was recorded before
	}
}

func (s *sink) frames() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got, s.bad
}

// keep makes the sink retain one in every payloads from now on.
func (s *sink) keep(every int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.every = every
}

// release verifies the kept payloads and releases them.
func (s *sink) release() (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept {
		if e := verify(k.data, k.tag); e != nil {
			err = fmt.Errorf("a held message: %w", e)
		}
		k.buf.Release()
	}
	n, s.kept = len(s.kept), nil
	return n, err
}

func (s *sink) wantDown(t testing.TB) error {
	t.Helper()
	return eventually.Value(t, "the connection goes down", s.down)
}

// wantDownAs waits for the end of the connection, for one of the given reasons.
func (s *sink) wantDownAs(t testing.TB, reasons ...error) {
	t.Helper()
	err := s.wantDown(t)
	if !slices.ContainsFunc(reasons, func(r error) bool { return errors.Is(err, r) }) {
		t.Errorf("the end is reported as %v", err)
	}
}

// wantFrames waits until n frames have come, and checks that they are whole and in order.
func (s *sink) wantFrames(t testing.TB, n int) {
	t.Helper()
	eventually.True(t, fmt.Sprint(n, " frames come"), func() bool { got, bad := s.frames(); return got == n || bad != nil })
	if got, bad := s.frames(); bad != nil {
		t.Fatalf("%d frames came: %v", got, bad)
	}
}

// sign fills b so that verify can tell whether it is whole, and returns its tag.
func sign(b []byte, rnd *rand.Rand) (tag uint64) {
	if len(b) > 0 {
		x := rnd.Uint64()
		i := 0
		for ; i+8 <= len(b); i += 8 {
			x = x*6364136223846793005 + 1442695040888963407
			binary.LittleEndian.PutUint64(b[i:], x)
		}
		for ; i < len(b); i++ {
			b[i] = byte(x >> (8 * (i % 8)))
		}
	}
	return sum(b)
}

// signed returns a buffer of n's pool whose content depends on seed.
func (n *node) signed(t testing.TB, size int, seed uint64) *buffers.Buffer {
	b := try.Get(n.Pool.Get(size))(t)
	sign(b.Bytes(), rand.New(rand.NewPCG(seed, 17)))
	return b
}

// frameOf returns a frame with data, which lies in b.
func frameOf(seq uint32, b *buffers.Buffer, data []byte) subsys.Frame {
	return subsys.Frame{Header: subsys.Header{Type: 16, Seq: seq, Len: uint32(len(data)), Tag: sum(data)}, Data: data, Buf: b}
}

// sum returns the tag of whole data.
func sum(b []byte) uint64 { return uint64(crc32.Checksum(b, castagnoli)) | uint64(len(b))<<32 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func verify(b []byte, tag uint64) error {
	if sum(b) != tag {
		return errors.New("the checksum is wrong")
	}
	return nil
}

// load sends frames of all sizes until the connection is down, or until it has sent that many
// frames.
func (n *node) load(s *sink, frames int, seed uint64) error {
	rnd := rand.New(rand.NewPCG(seed, 7))
	sizes := []int{0, 1, 64, 1000, 2048, 2049, 4096, 10_000, 65536, 200_000}
	for seq := 0; frames < 0 || seq < frames; seq++ {
		f := subsys.Frame{Header: subsys.Header{Type: 16, Seq: uint32(seq)}}
		if size := sizes[rnd.IntN(len(sizes))]; size > 0 {
			b, err := n.Pool.Get(size)
			if err != nil {
				return err
			}
			f.Tag, f.Len, f.Data, f.Buf = sign(b.Bytes(), rnd), uint32(size), b.Bytes(), b
			if rnd.IntN(10) == 0 { // as plain memory, which is sent in pieces
				f.Data, f.Buf = bytes.Clone(f.Data), nil
				b.Release()
			}
		}
		for {
			k, err := s.conn.Send([]subsys.Frame{f})
			if err != nil || k == 1 {
				if f.Buf != nil {
					f.Buf.Release() // the connection holds its own reference
				}
				if err != nil {
					return err
				}
				break
			}
			select {
			case <-s.writable:
			case err := <-s.down:
				s.fell(err)
			case <-time.After(testTimeout):
				return errors.New("no Writable")
			}
		}
	}
	return nil
}

// resources returns the numbers of open descriptors and of mappings of shared memory in this
// process.
func resources() (fds, maps int) {
	es, _ := os.ReadDir("/proc/self/fd")
	for _, e := range es {
		if l, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(l, "pidfd") && !strings.Contains(l, "pidfd") {
			fds++
		}
	}
	b, _ := os.ReadFile("/proc/self/maps")
	return fds, strings.Count(string(b), "memfd:") + strings.Count(string(b), "/rocl-arena-") + strings.Count(string(b), "/rocl-shm-")
}

// conns returns how many connections a node still holds.
func conns(n *node) int {
	p := n.Port.(*port)
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}
