// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/internal/os/futex"
)

// The bare loops: the least that moves the same bytes with Go and the kernel alone.

// A fd is a socket outside the runtime's poller. While no bytes have arrived, its reads do what the
// waiters of the library do that are compared with it.
type fd struct {
	n    int
	wait waiting
}

type waiting int

const (
	polls  waiting = iota // read again and again
	sleeps                // sleep in poll(2)
	blocks                // sleep in read(2); the socket must be a blocking one
)

// hangUp ends reads and writes of a connection, including those of its duplicates, which closing it
// would not end.
func hangUp(c io.Closer) {
	switch c := c.(type) {
	case fd:
		c.shut()
	case interface {
		CloseRead() error
		CloseWrite() error
	}:
		_, _ = c.CloseRead(), c.CloseWrite()
	default:
		c.Close()
	}
}

// A wire is what bare round trips go over.
type wire interface {
	ping()                 // makes a round trip
	echo(more func() bool) // answers pings
}

// raw is the wire of a connection, with requests and replies of fixed sizes.
type raw struct {
	io.ReadWriter
	request, reply []byte
	part           int // bytes of a write; 0: all
}

func newRaw(rw io.ReadWriter, request, reply, part int) *raw {
	return &raw{rw, make([]byte, request), make([]byte, reply), part}
}

// writeParts writes b in parts, so that the other side copies the first while this side writes the
// next. part 0 means that there is one.
func writeParts(w io.Writer, b []byte, part int) {
	for some := range slices.Chunk(b, cmp.Or(part, len(b), 1)) {
		must(w.Write(some))
	}
}

func (r *raw) ping() {
	writeParts(r, r.request, r.part)
	must(io.ReadFull(r.ReadWriter, r.reply))
}

func (r *raw) echo(more func() bool) {
	for again := true; again; {
		must(io.ReadFull(r.ReadWriter, r.request))
		again = more()
		writeParts(r, r.reply, r.part)
	}
}

// sendRaw writes count messages through a 64 KiB buffer and waits for one byte. With lengths, four
// bytes with the length precede each message. Without, both sides know the length beforehand, which
// is less work than passing messages.
func sendRaw(nc net.Conn, size, count int, lengths bool) {
	w := bufio.NewWriterSize(nc, 64<<10)
	b := make([]byte, size)
	var head [4]byte
	for range count {
		if lengths {
			binary.LittleEndian.PutUint32(head[:], uint32(size))
			must(w.Write(head[:]))
		}
		must(w.Write(b))
	}
	check(w.Flush())
	must(io.ReadFull(nc, b[:1]))
}

func recvRaw(nc net.Conn, size, count int, lengths bool) {
	r := bufio.NewReaderSize(nc, 64<<10)
	b := make([]byte, size)
	var head [4]byte
	for range count {
		n := size
		if lengths {
			must(io.ReadFull(r, head[:]))
			if n = int(binary.LittleEndian.Uint32(head[:])); n > len(b) {
				check(errors.New("the message is longer than any that was sent"))
			}
		}
		must(io.ReadFull(r, b[:n]))
	}
	must(nc.Write([]byte{1}))
}

// A stream is a way to move large messages over a bare TCP connection. The machine decides which
// one is the fastest, so a bench tries all of them and compares with the fastest.
type stream struct {
	isPolled bool
	buffers  int // bytes of the socket's buffers; 0: the kernel's default
	part     int // bytes of a write; 0: all of a message
}

var streams = func() (all []stream) {
	for _, size := range []int{0, 256 << 10, 1 << 20, 4 << 20} {
		for _, part := range []int{0, 64 << 10, 256 << 10} {
			all = append(all, stream{false, size, part}, stream{true, size, part})
		}
	}
	return all
}()

// numbers returns s as arguments of a task, and streamOf returns the stream.
func (s stream) numbers() []int {
	kind := 0
	if s.isPolled {
		kind = 1
	}
	return []int{kind, s.buffers, s.part}
}

func streamOf(n []int) stream { return stream{n[0] == 1, n[1], n[2]} }

// what returns what is measured with the stream, if it is the fastest of streams.
func (s stream) what() string {
	how, size, parts := "blocking", "the kernel's", ""
	if s.isPolled {
		how = "polled"
	}
	if s.buffers > 0 {
		size = strconv.Itoa(s.buffers>>10) + " KiB"
	}
	if s.part > 0 {
		parts = fmt.Sprintf(", in parts of %d KiB", s.part>>10)
	}
	return fmt.Sprintf("the best of %d bare Go loops: %s, with socket buffers of %s%s", len(streams), how, size, parts)
}

// run runs f with a separate connection, which it closes.
func (s stream) run(nc net.Conn, f func(io.ReadWriter)) {
	if s.buffers > 0 {
		tc := nc.(*net.TCPConn)
		check(errors.Join(tc.SetReadBuffer(s.buffers), tc.SetWriteBuffer(s.buffers)))
	}
	if !s.isPolled {
		f(nc)
		return
	}
	p := fd{dup(nc.(*net.TCPConn)), polls}
	defer p.Close()
	f(p)
}

// sendBulk writes b count times, in parts, and waits for one byte.
func sendBulk(rw io.ReadWriter, b []byte, part, count int) {
	for range count {
		writeParts(rw, b, part)
	}
	must(io.ReadFull(rw, make([]byte, 1)))
}

// bulkBlock is how many bytes the bare loops read at once.
const bulkBlock = 1 << 20

// recvBulk reads count messages of size bytes, and writes one byte. It fills memory again and
// again, a block at a time.
func recvBulk(rw io.ReadWriter, memory []byte, size, count int) {
	at, block := 0, min(bulkBlock, len(memory))
	for range count {
		for left := size; left > 0; {
			if at+block > len(memory) {
				at = 0
			}
			n := must(rw.Read(memory[at : at+min(left, block)]))
			left -= n
			at += n
		}
	}
	must(rw.Write([]byte{1}))
}

// shared is memory that both sides have mapped: words, and a ring.
//
// The parent writes the word there and the peer writes back: their exchange is the shortest
// possible round trip over shared memory. last says that the next message of an echo is the last.
//
// The ring is a queue of messages from one goroutine to another: the least cost of passing messages
// over shared memory. A word with its length precedes each message. Both sides poll, and publish
// their progress after some bytes, not after each message.
type shared struct {
	there, back, last *atomic.Uint32
	head, tail        *atomic.Uint64 // number of bytes read from the ring, and of bytes written
	ring, all         []byte
}

const (
	ringAt   = 8192
	ringLen  = 1 << 20
	ringMost = ringLen / 4 // limit of the bytes of a message
	ringSaid = 4 << 10     // bytes after which a side publishes its progress
	ringSkip = 1<<64 - 1   // takes the place of a length: the next message is at the beginning
)

func openShared(dir string) *shared {
	f := must(os.OpenFile(filepath.Join(dir, "shared"), os.O_RDWR|os.O_CREATE, 0o600))
	defer f.Close()
	check(f.Truncate(ringAt + ringLen))
	mem := must(mapShared(f, ringAt+ringLen))
	at := func(n int) unsafe.Pointer { return unsafe.Pointer(&mem[n]) }
	return &shared{(*atomic.Uint32)(at(0)), (*atomic.Uint32)(at(1024)), (*atomic.Uint32)(at(2048)), (*atomic.Uint64)(at(4096)), (*atomic.Uint64)(at(4096 + 1024)), mem[ringAt:], mem}
}

func (s *shared) close() { unmapShared(s.all) }

// words is the wire of the words of shared, which are polled or slept on.
type words struct {
	*shared
	ctx    context.Context
	sleeps bool
}

// ping increments the word there and waits until the word back is equal.
func (w *words) ping() {
	x := w.there.Load() + 1
	set(w.there, x, w.sleeps)
	await(w.ctx, w.back, x, w.sleeps)
}

func (w *words) echo(more func() bool) {
	for again := true; again; {
		x := w.back.Load() + 1
		await(w.ctx, w.there, x, w.sleeps)
		again = more()
		set(w.back, x, w.sleeps)
	}
}

func set(w *atomic.Uint32, x uint32, wakes bool) {
	if w.Store(x); wakes {
		futex.Wake(w)
	}
}

// await polls a word, or sleeps, until it is x.
func await(ctx context.Context, w *atomic.Uint32, x uint32, sleeps bool) {
	for i := 1; ; i++ {
		now := w.Load()
		if now == x {
			return
		}
		if sleeps {
			futex.Wait(w, now, 10*time.Millisecond)
		}
		if i%128 == 0 {
			others(ctx)
		}
	}
}

// changed polls a word until it is not was.
func changed(ctx context.Context, w *atomic.Uint64, was uint64) uint64 {
	for i := 1; ; i++ {
		if now := w.Load(); now != was {
			return now
		}
		if i%128 == 0 {
			others(ctx)
		}
	}
}

// others lets other goroutines run, and fails if ctx has ended.
func others(ctx context.Context) {
	runtime.Gosched()
	proceed(ctx)
}

// send puts n messages of size bytes into the ring, and waits until all of them are read.
func (s *shared) send(ctx context.Context, size, n int) {
	b := make([]byte, size)
	tail, head := s.tail.Load(), s.head.Load()
	published := tail
	length := uint64(8 + (size+7)&^7)
	for range n {
		at := tail % ringLen
		need := length
		if ringLen-at < length {
			need += ringLen - at
		}
		for tail+need-head > ringLen {
			if published != tail {
				published = tail
				s.tail.Store(tail)
			}
			head = changed(ctx, s.head, head)
		}
		if need > length {
			binary.LittleEndian.PutUint64(s.ring[at:], ringSkip)
			tail, at = tail+ringLen-at, 0
		}
		binary.LittleEndian.PutUint64(s.ring[at:], uint64(size))
		copy(s.ring[at+8:], b)
		if tail += length; tail-published >= ringSaid {
			published = tail
			s.tail.Store(tail)
		}
	}
	s.tail.Store(tail)
	for head != tail {
		head = changed(ctx, s.head, head)
	}
}

// recv copies n messages of at most size bytes out of the ring.
func (s *shared) recv(ctx context.Context, size, n int) {
	b := make([]byte, size)
	head, tail := s.head.Load(), s.tail.Load()
	published := head
	for range n {
		for head == tail {
			if published != head {
				published = head
				s.head.Store(head)
			}
			tail = changed(ctx, s.tail, tail)
		}
		at := head % ringLen
		k := binary.LittleEndian.Uint64(s.ring[at:])
		if k == ringSkip {
			head, at = head+ringLen-at, 0
			k = binary.LittleEndian.Uint64(s.ring)
		}
		copy(b[:k], s.ring[at+8:])
		if head += 8 + (k+7)&^7; head-published >= ringSaid {
			published = head
			s.head.Store(head)
		}
	}
	s.head.Store(head)
}

// channels join the two sides of a bench within this process.
type channels struct {
	there, back chan *[64]byte
	conns       chan net.Conn
}

// ping passes a pointer there and back.
func (c *channels) ping() {
	c.there <- nil
	<-c.back
}

// echo answers pings, until the channel is closed at the latest.
func (c *channels) echo(more func() bool) {
	for again := true; again; {
		m, ok := <-c.there
		if !ok {
			return
		}
		again = more()
		c.back <- m
	}
}

// throughChannel passes n messages of some goroutines to one.
func throughChannel(ctx context.Context, senders, n int) {
	c := make(chan *[64]byte, 1024)
	go func() {
		defer close(c)
		concurrently(senders, func(i int) {
			var b [64]byte
			for k := range (n + i) / senders { // the sum over all senders is n
				if k%4096 == 0 && ctx.Err() != nil {
					return
				}
				c <- &b
			}
		})
	}()
	for range c {
	}
	proceed(ctx)
}

func fillCounting(p []byte) []byte {
	for i := range p {
		p[i] = byte(i)
	}
	return p
}

// sum reads every byte of b, eight at a time, and returns their sum.
func sum(b []byte) (s uint64) {
	var s0, s1, s2, s3 uint64
	for ; len(b) >= 32; b = b[32:] {
		s0 += binary.LittleEndian.Uint64(b)
		s1 += binary.LittleEndian.Uint64(b[8:])
		s2 += binary.LittleEndian.Uint64(b[16:])
		s3 += binary.LittleEndian.Uint64(b[24:])
	}
	for _, c := range b {
		s += uint64(c)
	}
	return s + s0 + s1 + s2 + s3
}
