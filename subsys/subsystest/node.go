// SPDX-License-Identifier: Apache-2.0

package subsystest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/internal/harness"
)

// testTimeout is how long a test waits for a state.
const testTimeout = 20 * time.Second

// A node stands for a context, as far as a transport can tell.
type node struct {
	*harness.Harness
	t     *testing.T
	taken chan *sink // sinks of accepted connections

	mu     sync.Mutex
	accept func(subsys.Conn) *sink // nil refuses
}

func newNode(t *testing.T, tr subsys.Transport, d harness.Drive) *node {
	t.Helper()
	return newNodeAt(t, tr, "", d)
}

// newNodeAt is newNode with the address to listen at.
func newNodeAt(t *testing.T, tr subsys.Transport, addr string, d harness.Drive) *node {
	t.Helper()
	n := &node{t: t, taken: make(chan *sink, 1024)}
	n.accept = func(subsys.Conn) *sink { return newSink(t) }
	var err error
	n.Harness, err = harness.Open(tr, addr, d, nil, func(c subsys.Conn) subsys.Sink {
		n.mu.Lock()
		accept := n.accept
		n.mu.Unlock()
		s := accept(c)
		if s == nil {
			return nil
		}
		s.conn = c
		n.taken <- s
		return s
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	return n
}

// accepting sets the function that accepts connections from now on.
func (n *node) accepting(f func(subsys.Conn) *sink) {
	n.mu.Lock()
	n.accept = f
	n.mu.Unlock()
}

// preparing makes n accept connections from now on, with sinks that f has changed.
func (n *node) preparing(f func(s *sink)) {
	n.accepting(func(subsys.Conn) *sink {
		s := newSink(n.t)
		f(s)
		return s
	})
}

// close closes everything and checks that nothing is leaked.
func (n *node) close() {
	if err := n.Close(); err != nil {
		n.t.Error(err)
	}
}

// buffer returns a buffer of n bytes with a pattern that depends on seed.
func (n *node) buffer(size int, seed uint64) *buffers.Buffer {
	b, err := n.Pool.Get(size)
	if err != nil {
		n.t.Fatal(err)
	}
	fill(b.Bytes(), seed)
	return b
}

// dial connects n to another node and returns the sinks of both ends.
func (n *node) dial(to *node) (near, far *sink) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	near = newSink(n.t)
	c, err := n.Port.Dial(ctx, to.Port.Addr(), near)
	for errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil { // a handshake, on a busy machine
		c, err = n.Port.Dial(ctx, to.Port.Addr(), near)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	near.conn = c
	far = eventually.Value(n.t, "an accepted connection", to.taken)
	c.Start()
	return near, far
}

// forbid makes any further call of a sink of n an error, after a call that is in progress. isAll is
// unset if one may have begun.
func (n *node) forbid(s *sink, isAll bool) {
	n.Hold.Lock()
	defer n.Hold.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.late = true, isAll
}

// fill and check write and verify a pattern.
func fill(b []byte, seed uint64) {
	x := seed*2862933555777941757 + 3037000493
	for i := range b {
		if i%8 == 0 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		b[i] = byte(x >> (8 * (i % 8)))
	}
}

func check(b []byte, seed uint64) error {
	x := seed*2862933555777941757 + 3037000493
	for i := range b {
		if i%8 == 0 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		if b[i] != byte(x>>(8*(i%8))) {
			return fmt.Errorf("byte %d of %d is wrong", i, len(b))
		}
	}
	return nil
}

// A sink records what a connection delivers and checks that the connection keeps the contract.
// Every frame has the pattern of its tag.
type sink struct {
	t        *testing.T
	conn     subsys.Conn
	busy     atomic.Bool
	writable chan struct{}
	down     chan error // one value

	onFrames func([]subsys.Frame) error // instead of recording
	onRoom   func(*subsys.Header) error
	skips    func(*subsys.Header) bool // payloads for which Room gives no buffer

	mu    sync.Mutex
	got   []subsys.Header
	ended bool
	late  bool // one call that was in progress at Down has entered since
}

func newSink(t *testing.T) *sink {
	return &sink{t: t, writable: make(chan struct{}, 1), down: make(chan error, 1)}
}

func (s *sink) enter(what string) {
	if !s.busy.CompareAndSwap(false, true) {
		s.t.Errorf("%s overlaps another call of the sink", what)
	}
	s.mu.Lock()
	if s.ended && s.late {
		s.t.Errorf("%s after Down", what)
	}
	s.late = s.ended
	s.mu.Unlock()
}

func (s *sink) leave() { s.busy.Store(false) }

func (s *sink) Frames(_ subsys.Conn, fs []subsys.Frame) error {
	s.enter("Frames")
	defer s.leave()
	if len(fs) == 0 {
		s.t.Error("Frames without frames")
	}
	for i := range fs {
		f := &fs[i]
		if f.Type == subsys.TypeBatch {
			s.t.Error("a batch is delivered as it is")
		}
		if s.skips != nil && s.skips(&f.Header) && f.Data == nil && f.Buf == nil {
			continue
		}
		if len(f.Data) != int(f.Len) {
			s.t.Errorf("frame %d says %d bytes and has %d", f.Seq, f.Len, len(f.Data))
		}
		if err := check(f.Data, f.Tag); err != nil {
			s.t.Errorf("frame %d: %v", f.Seq, err)
		}
		if f.Buf != nil && len(f.Data) > 0 && !within(f.Data, f.Buf.Bytes()[:f.Buf.Len()]) {
			s.t.Errorf("frame %d: its payload does not lie in its buffer", f.Seq)
		}
	}
	s.mu.Lock()
	if f := s.onFrames; f != nil {
		s.mu.Unlock()
		return f(fs)
	}
	defer s.mu.Unlock()
	for i := range fs {
		s.got = append(s.got, fs[i].Header)
	}
	return nil
}

func within(inner, outer []byte) bool {
	if len(outer) == 0 {
		return false
	}
	a, b := uintptr(unsafe.Pointer(&inner[0])), uintptr(unsafe.Pointer(&outer[0]))
	return a >= b && a+uintptr(len(inner)) <= b+uintptr(len(outer))
}

func (s *sink) Room(_ subsys.Conn, h *subsys.Header) (*buffers.Buffer, error) {
	s.enter("Room")
	defer s.leave()
	if s.onRoom != nil {
		if err := s.onRoom(h); err != nil {
			return nil, err
		}
	}
	if s.skips != nil && s.skips(h) {
		return nil, nil
	}
	return roomPool.Get(int(h.Len))
}

// roomPool is separate from the pools of the nodes, as the pool of a mailbox could be.
var roomPool = buffers.New()

func (s *sink) Writable(subsys.Conn) {
	s.mu.Lock()
	if s.ended {
		s.t.Error("Writable after Down")
	}
	s.mu.Unlock()
	select {
	case s.writable <- struct{}{}:
	default:
	}
}

func (s *sink) Down(_ subsys.Conn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		s.t.Error("Down twice")
	}
	if err == nil {
		s.t.Error("Down without a reason")
	}
	s.ended = true
	s.down <- err
}

// handle makes f receive the frames from now on.
func (s *sink) handle(f func([]subsys.Frame) error) {
	s.mu.Lock()
	s.onFrames = f
	s.mu.Unlock()
}

// want waits until n frames have come, and checks that Seq counts from 0.
func (s *sink) want(n int) (got []subsys.Header) {
	s.t.Helper()
	eventually.Within(testTimeout, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		got = s.got
		return len(got) >= n
	})
	for i := range got {
		if got[i].Seq != uint32(i) {
			s.t.Fatalf("frame %d came in place of %d", got[i].Seq, i)
		}
	}
	if len(got) != n {
		s.t.Fatalf("%d frames came, %d were sent", len(got), n)
	}
	return got
}

// wantDown waits for Down and returns its error.
func (s *sink) wantDown() error {
	s.t.Helper()
	return eventually.Value(s.t, "the connection goes down", s.down)
}

// send gives all of fs to the connection, and waits for Writable when it takes too little.
func (s *sink) send(fs ...subsys.Frame) error {
	for len(fs) > 0 {
		if fs[0].Seq%2 == 0 && s.sendBriefly(&fs[0]) {
			fs = fs[1:]
			continue
		}
		n, err := s.conn.Send(fs)
		if n < 0 || n > len(fs) {
			s.t.Fatalf("Send took %d of %d frames", n, len(fs))
		}
		if fs = fs[n:]; err != nil {
			return err
		}
		if len(fs) > 0 {
			select {
			case <-s.writable:
			case err := <-s.down:
				s.down <- err
				return err
			case <-time.After(testTimeout):
				return errors.New("subsystest: no Writable after Send took too little")
			}
		}
	}
	return nil
}

// sendBriefly reports whether the connection is a [subsys.Brief] and has taken f so.
func (s *sink) sendBriefly(f *subsys.Frame) bool {
	c, ok := s.conn.(subsys.Brief)
	if !ok || !c.Retain() {
		return false
	}
	defer c.Release()
	p := f.Data
	if f.Type != subsys.TypeBatch {
		p = append(make([]byte, subsys.HeaderLen), p...)
		f.Put(p)
	}
	return len(p) <= subsys.BriefMost && c.SendBriefly(p)
}

// frame returns a frame with the pattern of its number.
func frame(seq uint32, b *buffers.Buffer) subsys.Frame {
	f := subsys.Frame{Header: subsys.Header{Type: 16, Seq: seq, Tag: uint64(seq), Src: seq ^ 7, Dst: seq ^ 9, Ack: seq ^ 11}}
	if b != nil {
		f.Len, f.Data, f.Buf = uint32(b.Len()), b.Bytes(), b
	}
	return f
}

// batchOf encodes frames with the given sizes of payload as one batch, numbered from seq.
func batchOf(n *node, seq uint32, sizes ...int) subsys.Frame {
	total := 0
	for _, size := range sizes {
		total += subsys.HeaderLen + size
	}
	b, err := n.Pool.Get(total)
	if err != nil {
		n.t.Fatal(err)
	}
	at := b.Bytes()
	for i, size := range sizes {
		f := frame(seq+uint32(i), nil)
		f.Len = uint32(size)
		f.Put(at)
		fill(at[subsys.HeaderLen:subsys.HeaderLen+size], f.Tag)
		at = at[subsys.HeaderLen+size:]
	}
	r := subsys.Frame{Data: b.Bytes(), Buf: b}
	r.Type, r.Seq = subsys.TypeBatch, seq
	return r
}
