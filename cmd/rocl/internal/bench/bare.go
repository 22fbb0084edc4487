// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
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

// dup returns a duplicate of a connection's socket.
func dup(nc syscall.Conn) (n int, err error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return 0, err
	}
	if e := raw.Control(func(s uintptr) { n, err = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return 0, e
	}
	return n, err
}

func (f fd) Read(b []byte) (int, error) {
	for {
		var n uintptr
		var e syscall.Errno
		if f.wait == blocks {
			n, _, e = syscall.Syscall(syscall.SYS_READ, uintptr(f.n), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		} else {
			n, _, e = syscall.RawSyscall(syscall.SYS_READ, uintptr(f.n), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		}
		switch {
		case e == 0 && n == 0:
			return 0, io.EOF
		case e == 0:
			return int(n), nil
		case e == syscall.EAGAIN && f.wait == sleeps:
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(f.n), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
				return 0, err
			}
		case e != syscall.EAGAIN && e != syscall.EINTR:
			return 0, e
		}
	}
}

func (f fd) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n, _, e := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(f.n), uintptr(unsafe.Pointer(&b[done])), uintptr(len(b)-done))
		if e != 0 && e != syscall.EAGAIN && e != syscall.EINTR {
			return done, e
		}
		if e == 0 {
			done += int(n)
		}
	}
	return len(b), nil
}

func (f fd) Close() error { return unix.Close(f.n) }

// The methods make hangUp work.

func (f fd) CloseRead() error  { return unix.Shutdown(f.n, unix.SHUT_RD) }
func (f fd) CloseWrite() error { return unix.Shutdown(f.n, unix.SHUT_WR) }

// hangUp ends reads and writes of a connection, including those of its duplicates, which closing it
// would not end.
func hangUp(c io.Closer) {
	if s, ok := c.(interface {
		CloseRead() error
		CloseWrite() error
	}); ok {
		_, _ = s.CloseRead(), s.CloseWrite()
		return
	}
	c.Close()
}

// newUDP returns a socket at a port of its own.
func newUDP() (f fd, port int, err error) {
	if f.n, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return f, 0, err
	}
	if err = unix.Bind(f.n, loopback(0)); err == nil {
		var sa unix.Sockaddr
		if sa, err = unix.Getsockname(f.n); err == nil {
			return f, sa.(*unix.SockaddrInet4).Port, nil
		}
	}
	f.Close()
	return f, 0, err
}

// connect makes a socket of newUDP that of the datagrams from and to another port.
func (f *fd) connect(port int, poll bool) error {
	if f.wait = blocks; poll {
		f.wait = polls
	}
	return errors.Join(unix.Connect(f.n, loopback(port)), unix.SetNonblock(f.n, poll))
}

func loopback(port int) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
}

// echoRaw answers requests with as many bytes, or with those of reply.
func echoRaw(rw io.ReadWriter, request, reply int, more func() bool) error {
	in, out := make([]byte, request), make([]byte, reply)
	for again := true; again; {
		if _, err := io.ReadFull(rw, in); err != nil {
			return err
		}
		again = more()
		if _, err := rw.Write(out); err != nil {
			return err
		}
	}
	return nil
}

// sendRaw writes count messages through a 64 KiB buffer and waits for one byte. With lengths, four
// bytes with the length precede each message. Without, both sides know the length beforehand, which
// is less work than passing messages.
func sendRaw(nc net.Conn, size, count int, lengths bool) error {
	w := bufio.NewWriterSize(nc, 64<<10)
	b := make([]byte, size)
	var head [4]byte
	for range count {
		if lengths {
			binary.LittleEndian.PutUint32(head[:], uint32(size))
			if _, err := w.Write(head[:]); err != nil {
				return err
			}
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := io.ReadFull(nc, b[:1])
	return err
}

func recvRaw(nc net.Conn, size, count int, lengths bool) error {
	r := bufio.NewReaderSize(nc, 64<<10)
	b := make([]byte, size)
	var head [4]byte
	for range count {
		n := size
		if lengths {
			if _, err := io.ReadFull(r, head[:]); err != nil {
				return err
			}
			if n = int(binary.LittleEndian.Uint32(head[:])); n > len(b) {
				return errors.New("the message is longer than any that was sent")
			}
		}
		if _, err := io.ReadFull(r, b[:n]); err != nil {
			return err
		}
	}
	_, err := nc.Write([]byte{1})
	return err
}

// A stream is a way to move large messages over a bare TCP connection. The machine decides which
// one is the fastest, so bw tries all of them and compares with the fastest.
type stream struct {
	isPolled bool
	buffers  int // bytes of the socket's buffers; 0: the kernel's default
}

var streams = func() (all []stream) {
	for _, size := range []int{0, 256 << 10, 1 << 20, 4 << 20} {
		all = append(all, stream{false, size}, stream{true, size})
	}
	return all
}()

// what returns what is measured with the stream, if it is the fastest of streams.
func (s stream) what() string {
	how, size := "blocking", "the kernel's"
	if s.isPolled {
		how = "polled"
	}
	if s.buffers > 0 {
		size = strconv.Itoa(s.buffers>>10) + " KiB"
	}
	return fmt.Sprintf("the best of eight bare Go loops: %s, with socket buffers of %s", how, size)
}

// prepare sets up a separate connection for a stream. done closes it.
func (s stream) prepare(nc net.Conn) (rw io.ReadWriter, done func(), err error) {
	tc := nc.(*net.TCPConn)
	if s.buffers > 0 {
		if err := errors.Join(tc.SetReadBuffer(s.buffers), tc.SetWriteBuffer(s.buffers)); err != nil {
			return nil, nil, err
		}
	}
	if !s.isPolled {
		return tc, func() { tc.Close() }, nil
	}
	n, err := dup(tc)
	return fd{n, polls}, func() { tc.Close(); unix.Close(n) }, err
}

// bulkBlock is how many bytes the bare loops read at once.
const bulkBlock = 1 << 20

// sendBulk writes b count times, and waits for one byte.
func sendBulk(rw io.ReadWriter, b []byte, count int) error {
	for range count {
		if _, err := rw.Write(b); err != nil {
			return err
		}
	}
	var ack [1]byte
	_, err := io.ReadFull(rw, ack[:])
	return err
}

// recvBulk reads count messages of size bytes, and writes one byte. It fills memory again and
// again, a block at a time.
func recvBulk(rw io.ReadWriter, memory []byte, size, count int) error {
	at, block := 0, min(bulkBlock, len(memory))
	for range count {
		for left := size; left > 0; {
			if at+block > len(memory) {
				at = 0
			}
			n, err := rw.Read(memory[at : at+min(left, block)])
			if err != nil {
				return err
			}
			left -= n
			at += n
		}
	}
	_, err := rw.Write([]byte{1})
	return err
}

// shared is memory that both sides have mapped: words, and a ring.
//
// The parent writes the word there and the peer writes back: their exchange is the shortest
// possible round trip over shared memory. last says that the next message of an echo is the last.
// paused is how long the peer did something else before it answered.
//
// The ring is a queue of messages from one goroutine to another: the least cost of passing messages
// over shared memory. A word with its length precedes each message. Both sides poll, and publish
// their progress after some bytes, not after each message.
type shared struct {
	there, back, last *atomic.Uint32
	paused            *atomic.Int64
	head, tail        *atomic.Uint64 // number of bytes read from the ring, and of bytes written
	ring, all         []byte
}

const (
	ringAt     = 8192
	ringLen    = 1 << 20
	ringMost   = ringLen / 4 // limit of the bytes of a message
	ringSaid   = 4 << 10     // bytes after which a side publishes its progress
	ringSkip   = 1<<64 - 1   // takes the place of a length: the next message is at the beginning
	patientFor = 1 << 12     // number of looks between two checks of ctx
)

func openShared(dir string) (*shared, error) {
	f, err := os.OpenFile(filepath.Join(dir, "shared"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(ringAt + ringLen); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, ringAt+ringLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	at := func(n int) unsafe.Pointer { return unsafe.Pointer(&mem[n]) }
	return &shared{(*atomic.Uint32)(at(0)), (*atomic.Uint32)(at(1024)), (*atomic.Uint32)(at(3072)), (*atomic.Int64)(at(2048)),
		(*atomic.Uint64)(at(4096)), (*atomic.Uint64)(at(4096 + 1024)), mem[ringAt:], mem}, nil
}

func (s *shared) close() { _ = unix.Munmap(s.all) }

// ping increments the word there and waits until the word back is equal.
func (s *shared) ping(ctx context.Context, futex bool) error {
	x := s.there.Load() + 1
	set(s.there, x, futex)
	return await(ctx, s.back, x, futex)
}

// echo answers the pings of the other process.
func (s *shared) echo(ctx context.Context, more func() bool, futex bool) error {
	for again := true; again; {
		x := s.back.Load() + 1
		if err := await(ctx, s.there, x, futex); err != nil {
			return err
		}
		again = more()
		set(s.back, x, futex)
	}
	return nil
}

const (
	futexWait = 0
	futexWake = 1
)

func set(w *atomic.Uint32, x uint32, futex bool) {
	w.Store(x)
	if futex {
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake, 1, 0, 0, 0)
	}
}

func await(ctx context.Context, w *atomic.Uint32, x uint32, futex bool) error {
	short := unix.NsecToTimespec(int64(10 * time.Millisecond))
	for i := 1; ; i++ {
		now := w.Load()
		if now == x {
			return nil
		}
		if futex {
			_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWait, uintptr(now), uintptr(unsafe.Pointer(&short)), 0, 0)
		}
		if i%128 == 0 && !futex {
			runtime.Gosched()
		}
		if i%patientFor == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// pause sleeps for about d, and stores how long that took.
func (s *shared) pause(d time.Duration) {
	start := time.Now()
	time.Sleep(d)
	s.paused.Store(int64(time.Since(start)))
}

// changed polls a word until it is not was.
func changed(ctx context.Context, w *atomic.Uint64, was uint64) (now uint64, err error) {
	for i := 1; ; i++ {
		if now = w.Load(); now != was {
			return now, nil
		}
		if i%128 == 0 {
			runtime.Gosched()
		}
		if i%patientFor == 0 && ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
	}
}

// send puts n messages of size bytes into the ring, and waits until all of them are read.
func (s *shared) send(ctx context.Context, size, n int) (err error) {
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
			if head, err = changed(ctx, s.head, head); err != nil {
				return err
			}
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
		if head, err = changed(ctx, s.head, head); err != nil {
			return err
		}
	}
	return nil
}

// recv copies n messages of at most size bytes out of the ring.
func (s *shared) recv(ctx context.Context, size, n int) (err error) {
	b := make([]byte, size)
	head, tail := s.head.Load(), s.tail.Load()
	published := head
	for range n {
		for head == tail {
			if published != head {
				published = head
				s.head.Store(head)
			}
			if tail, err = changed(ctx, s.tail, tail); err != nil {
				return err
			}
		}
		at := head % ringLen
		k := binary.LittleEndian.Uint64(s.ring[at:])
		if k == ringSkip {
			head, at = head+ringLen-at, 0
			k = binary.LittleEndian.Uint64(s.ring)
		}
		if k > uint64(len(b)) {
			return fmt.Errorf("a message of %d bytes in the bare ring, of %d at most", k, len(b))
		}
		copy(b[:k], s.ring[at+8:])
		if head += 8 + (k+7)&^7; head-published >= ringSaid {
			published = head
			s.head.Store(head)
		}
	}
	s.head.Store(head)
	return nil
}

// events are two eventfds that both processes share, in the pollers of their runtimes. They are the
// fastest way to wake a goroutine that sleeps for long.
type events struct{ there, back *os.File }

// openEvents opens duplicates of two eventfds. The original ones may have become blocking when the
// peer was started.
func openEvents(there, back int) (*events, error) {
	var fs [2]*os.File
	for i, n := range []int{there, back} {
		again, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			err = unix.SetNonblock(again, true)
		}
		if err != nil {
			return nil, os.NewSyscallError("fcntl", err)
		}
		fs[i] = os.NewFile(uintptr(again), "eventfd")
	}
	return &events{fs[0], fs[1]}, nil
}

func (e *events) close() {
	e.there.Close()
	e.back.Close()
}

func (e *events) ping() error {
	if err := signalEvent(e.there); err != nil {
		return err
	}
	return awaitEvent(e.back)
}

// echo answers pings. It calls first before each answer.
func (e *events) echo(more func() bool, first func()) error {
	for again := true; again; {
		if err := awaitEvent(e.there); err != nil {
			return err
		}
		again = more()
		first()
		if err := signalEvent(e.back); err != nil {
			return err
		}
	}
	return nil
}

func signalEvent(f *os.File) error {
	_, err := f.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	return err
}

func awaitEvent(f *os.File) error {
	_, err := f.Read(make([]byte, 8))
	return err
}

// channels join the two sides of a bench within this process.
type channels struct {
	there, back chan *[64]byte
	conns       chan net.Conn
}

func newChannels() *channels {
	return &channels{make(chan *[64]byte), make(chan *[64]byte), make(chan net.Conn, 1)}
}

var channelMessage [64]byte

// ping passes a pointer there and back.
func (c *channels) ping() error {
	c.there <- &channelMessage
	<-c.back
	return nil
}

// echo answers pings, until the channel is closed at the latest.
func (c *channels) echo(more func() bool) error {
	for again := true; again; {
		m, ok := <-c.there
		if !ok {
			return io.EOF
		}
		again = more()
		c.back <- m
	}
	return nil
}

// throughChannel passes messages of some goroutines to one, until ctx ends.
func throughChannel(ctx context.Context, senders, each int) error {
	c := make(chan *[64]byte, 1024)
	go func() {
		_ = concurrently(senders, func(int) error {
			var b [64]byte
			for i := range each {
				if i%4096 == 0 && ctx.Err() != nil {
					break
				}
				c <- &b
			}
			return nil
		})
		close(c)
	}()
	for range c {
	}
	return ctx.Err()
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
