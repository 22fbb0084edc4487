package tcp

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

type conn struct {
	port   *port
	fd     int
	remote string
	sink   subsys.Sink
	refs   atomic.Int32 // users of fd, and one for being open
	closed atomic.Bool
	poller *subsys.Poller

	in  reader // the progress goroutine's alone
	out writer
}

func newConn(p *port, fd int, remote string, poller *subsys.Poller) *conn {
	c := &conn{port: p, fd: fd, remote: remote, poller: poller}
	c.refs.Store(1)
	c.in.want = firstRead
	return c
}

func (c *conn) Transport() string { return "tcp" }
func (c *conn) Remote() string    { return c.remote }
func (c *conn) Delivers() bool    { return false }

func (c *conn) Start() {
	if !c.hold() {
		return
	}
	defer c.drop()
	if err := c.poller.Add(c.fd, c); err != nil {
		c.fail(err)
	}
	if c.closed.Load() { // meanwhile: then nobody has removed it
		c.poller.Remove(c.fd)
	}
}

// hold makes sure that fd stays ours until drop: a descriptor closed under a
// system call could by then be somebody else's.
func (c *conn) hold() bool {
	for {
		n := c.refs.Load()
		if n == 0 {
			return false
		}
		if c.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (c *conn) drop() {
	if c.refs.Add(-1) == 0 {
		unix.Close(c.fd)
		c.in.free()
	}
}

func (c *conn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	c.port.forget(c)
	c.poller.Remove(c.fd)
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	c.drop()
	return nil
}

// fail takes the conn down because of err and tells the sink, unless somebody
// closed it before.
func (c *conn) fail(err error) {
	if c.closed.Load() {
		return
	}
	c.Close()
	c.sink.Down(c, err)
}

// Ready implements subsys.Source.
func (c *conn) Ready(on subsys.Readiness) (frames int, again bool) {
	if !c.hold() {
		return 0, false
	}
	defer c.drop()
	if on&subsys.Writable != 0 {
		unstuck, err := c.out.resume(c)
		if err != nil && !over(err) {
			c.fail(err)
			return 0, false
		}
		if unstuck {
			c.sink.Writable(c)
		}
	}
	if on&subsys.Readable != 0 && !c.closed.Load() {
		return c.in.run(c, on&subsys.Ended != 0)
	}
	return 0, false
}

// Reading.

const (
	firstRead = 16 << 10  // bytes asked for at first, and after large payloads
	mostRead  = 256 << 10 // and when small frames fill every read
	apart     = 8 << 10   // payloads above this that are not yet here whole get a buffer of their own
	rounds    = 8         // reads before another source gets its turn
)

type reader struct {
	block      *buffers.Buffer
	mem        []byte
	start, end int // bytes read and not yet delivered: mem[start:end]
	want       int // how much to ask for

	large  subsys.Frame // the frame whose payload is being read into its own buffer
	have   int
	frames [256]subsys.Frame
}

func (r *reader) free() {
	if r.block != nil {
		r.block.Release()
		r.block = nil
	}
	if r.large.Buf != nil {
		r.large.Buf.Release()
		r.large.Buf = nil
	}
}

func (r *reader) run(c *conn, ended bool) (frames int, again bool) {
	for range rounds {
		if r.large.Buf == nil {
			if err := r.makeRoom(c); err != nil {
				c.fail(err)
				return frames, false
			}
		}
		space := r.space()
		n, err := c.read(space)
		if err == unix.EAGAIN {
			return frames, false
		}
		if err == nil && n == 0 {
			err = subsys.ErrPeerClosed
		}
		if err != nil {
			c.fail(fmt.Errorf("tcp: reading from %s: %w", c.remote, err))
			return frames, false
		}
		f, err := r.took(c, n)
		frames += f
		if err != nil {
			c.fail(err)
			return frames, false
		}
		if n < len(space) && !ended || c.closed.Load() {
			return frames, false // drained: the next bytes raise a new edge
		}
	}
	return frames, true
}

// makeRoom sees to it that the block has room for the next read and for the
// rest of a frame that has begun.
func (r *reader) makeRoom(c *conn) error {
	rest := r.end - r.start
	if r.block != nil && rest == 0 && r.block.Refs() == 1 { // nobody kept a slice of it
		r.start, r.end = 0, 0
	}
	fresh := r.end == 0
	switch {
	case r.block == nil:
	case fresh && len(r.mem) < r.want: // reads have grown beyond the block
	case len(r.mem)-r.end < apart/2: // too little room to be worth a read
	case len(r.mem)-r.start < subsys.HeaderLen+apart: // the frame may not fit
	default:
		return nil
	}
	b, err := c.port.cfg.Pool.Get(max(r.want, 2*apart))
	if err != nil {
		return fmt.Errorf("tcp: a block to read from %s: %w", c.remote, err)
	}
	mem := b.Bytes()
	if rest > 0 {
		copy(mem, r.mem[r.start:r.end])
		c.port.cfg.Count.Copies.Add(1)
		c.port.cfg.Count.CopiedB.Add(uint64(rest))
	}
	if r.block != nil {
		r.block.Release()
	}
	r.block, r.mem, r.start, r.end = b, mem, 0, rest
	return nil
}

func (r *reader) space() []byte {
	if r.large.Buf != nil {
		return r.large.Data[r.have:]
	}
	return r.mem[r.end:min(len(r.mem), r.end+r.want)]
}

// took delivers what is whole after n more bytes came.
func (r *reader) took(c *conn, n int) (frames int, err error) {
	if r.large.Buf != nil {
		if r.have += n; r.have < len(r.large.Data) {
			return 0, nil
		}
		r.frames[0] = r.large
		r.large, r.have = subsys.Frame{}, 0
		err := c.sink.Frames(c, r.frames[:1])
		r.frames[0].Buf.Release()
		r.frames[0] = subsys.Frame{}
		return 1, err
	}
	filled := n == min(r.want, len(r.mem)-r.end)
	r.end += n
	for {
		k := 0
		for k < len(r.frames) && r.end-r.start >= subsys.HeaderLen {
			f := &r.frames[k]
			if err := f.Parse(r.mem[r.start:]); err != nil {
				return frames, fmt.Errorf("tcp: from %s: %w", c.remote, err)
			}
			body := r.start + subsys.HeaderLen
			if r.end-body < int(f.Len) {
				break
			}
			f.Data, f.Buf = r.mem[body:body+int(f.Len):body+int(f.Len)], r.block
			r.start = body + int(f.Len)
			k++
		}
		if k == 0 {
			break
		}
		err := c.sink.Frames(c, r.frames[:k])
		frames += k
		if err != nil || c.closed.Load() {
			return frames, err
		}
	}
	if filled && frames > 8 {
		r.want = min(r.want*2, mostRead)
	}
	return frames, r.apart(c)
}

// apart gives the payload that has begun, if it is large, a buffer of its own.
func (r *reader) apart(c *conn) error {
	if r.end-r.start < subsys.HeaderLen {
		return nil
	}
	var h subsys.Header
	if err := h.Parse(r.mem[r.start:]); err != nil {
		return fmt.Errorf("tcp: from %s: %w", c.remote, err)
	}
	if h.Len <= apart {
		return nil
	}
	b, err := c.sink.Room(c, &h)
	if err != nil {
		return fmt.Errorf("tcp: from %s: %w", c.remote, err)
	}
	r.large = subsys.Frame{Header: h, Data: b.Bytes()[:h.Len:h.Len], Buf: b}
	r.have = copy(r.large.Data, r.mem[r.start+subsys.HeaderLen:r.end])
	if r.have > 0 {
		c.port.cfg.Count.Copies.Add(1)
		c.port.cfg.Count.CopiedB.Add(uint64(r.have))
	}
	r.start = r.end
	r.want = firstRead
	return nil
}

func (c *conn) read(b []byte) (int, error) {
	c.port.cfg.Count.Reads.Add(1)
	for {
		var n uintptr
		var e syscall.Errno
		if len(b) <= firstRead {
			n, _, e = syscall.RawSyscall(syscall.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		} else { // may copy for long: let the runtime know
			n, _, e = syscall.Syscall(syscall.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		}
		switch e {
		case 0:
			return int(n), nil
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return 0, e
		}
		return 0, os.NewSyscallError("read", e)
	}
}

// Writing.

const (
	inline  = 2 << 10   // payloads up to this are copied behind their header
	gather  = 128 << 10 // bytes of headers and inline payloads in one write
	vectors = 64
)

type writer struct {
	mu    sync.Mutex
	buf   []byte // headers and inline payloads
	n     int
	seg   int // start of the part of buf not yet in iov
	iov   [vectors]unix.Iovec
	niov  int
	first int // iov[first:niov] is still to be written
	stuck bool
}

func (c *conn) Send(fs []subsys.Frame) (int, error) {
	if !c.hold() {
		return 0, fmt.Errorf("tcp: sending to %s: %w", c.remote, subsys.ErrClosed)
	}
	defer c.drop()
	w := &c.out
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := 0
	for taken < len(fs) && !w.stuck {
		taken += w.fill(c, fs[taken:])
		if err := w.flush(c); over(err) && !c.closed.Load() {
			// What the peer said last, perhaps its goodbye, may be unread: the
			// reader comes to the end behind it, and takes the conn down.
			w.stuck = true
		} else if err != nil {
			return taken, fmt.Errorf("tcp: sending to %s: %w", c.remote, err)
		}
	}
	return taken, nil
}

// over says whether err means that the peer has closed the connection.
func over(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}

// fill puts as many frames as fit in front of the next write.
func (w *writer) fill(c *conn, fs []subsys.Frame) (taken int) {
	copies, copied := 0, 0
	for i := range fs {
		f := &fs[i]
		if f.Type == subsys.TypeRun {
			if w.niov+2 >= vectors {
				break
			}
			w.cut()
			w.vec(f.Data)
			taken++
			continue
		}
		need := subsys.HeaderLen
		small := len(f.Data) <= inline
		if small {
			need += len(f.Data)
		}
		if w.n+need > len(w.buf) && !w.grow(w.n+need) {
			break
		}
		if !small && w.niov+2 >= vectors {
			break
		}
		f.Put(w.buf[w.n:])
		if small {
			if len(f.Data) > 0 {
				copy(w.buf[w.n+subsys.HeaderLen:], f.Data)
				copies++
				copied += len(f.Data)
			}
			w.n += need
		} else {
			w.n += need
			w.cut()
			w.vec(f.Data)
		}
		taken++
	}
	if copies > 0 {
		c.port.cfg.Count.Copies.Add(uint64(copies))
		c.port.cfg.Count.CopiedB.Add(uint64(copied))
	}
	w.cut()
	return taken
}

// grow makes buf larger, up to gather, when nothing in it is referred to yet.
func (w *writer) grow(need int) bool {
	if need > gather || w.niov > 0 {
		return false
	}
	size := max(len(w.buf)*4, 4<<10)
	for size < need {
		size *= 2
	}
	b := make([]byte, min(size, gather))
	copy(b, w.buf[:w.n])
	w.buf = b
	return true
}

func (w *writer) cut() {
	if w.n > w.seg {
		w.vec(w.buf[w.seg:w.n])
		w.seg = w.n
	}
}

func (w *writer) vec(b []byte) {
	w.iov[w.niov].Base = &b[0]
	w.iov[w.niov].SetLen(len(b))
	w.niov++
}

// flush writes until everything is written or the socket is full.
func (w *writer) flush(c *conn) error {
	for w.first < w.niov {
		n, err := c.write(w.iov[w.first:w.niov])
		if err == unix.EAGAIN {
			if !w.stuck {
				w.stuck = true
				c.poller.WantWrite(c.fd, true)
			}
			return nil
		}
		if err != nil {
			return err
		}
		for n > 0 {
			v := &w.iov[w.first]
			if l := int(v.Len); n >= l {
				n -= l
				w.first++
				continue
			}
			v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
			v.SetLen(int(v.Len) - n)
			n = 0
		}
	}
	clear(w.iov[:w.niov])
	w.first, w.niov, w.n, w.seg = 0, 0, 0, 0
	return nil
}

// resume goes on writing after the socket was full.
func (w *writer) resume(c *conn) (unstuck bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stuck {
		return false, nil
	}
	if err := w.flush(c); err != nil {
		return false, fmt.Errorf("tcp: sending to %s: %w", c.remote, err)
	}
	if w.first < w.niov {
		return false, nil
	}
	w.stuck = false
	c.poller.WantWrite(c.fd, false)
	return true, nil
}

func (c *conn) write(iov []unix.Iovec) (int, error) {
	c.port.cfg.Count.Writes.Add(1)
	for {
		var n uintptr
		var e syscall.Errno
		if len(iov) == 1 && iov[0].Len <= inline {
			n, _, e = syscall.RawSyscall(syscall.SYS_WRITE, uintptr(c.fd), uintptr(unsafe.Pointer(iov[0].Base)), uintptr(iov[0].Len))
		} else {
			n, _, e = syscall.Syscall(syscall.SYS_WRITEV, uintptr(c.fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
		}
		switch e {
		case 0:
			return int(n), nil
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return 0, e
		}
		return 0, os.NewSyscallError("write", e)
	}
}
