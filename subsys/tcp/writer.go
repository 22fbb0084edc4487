// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"syscall"
	"unsafe"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

const (
	inline  = 2 << 10   // payloads up to this size are copied after their header
	gather  = 128 << 10 // bytes of headers and inline payloads in one write
	vectors = 64
)

// A writer is a [stream.Writer] that collects frames and writes them with writev.
type writer struct {
	buf   []byte // headers and inline payloads
	n     int
	seg   int // start of the part of buf not yet in iov
	iov   [vectors]stream.Iovec
	niov  int
	first int // iov[first:niov] is still to be written

	kept []*buffers.Buffer // buffers of the frames that the socket has not taken completely
}

func (w *writer) Send(c *stream.Conn, fs []subsys.Frame) (taken int, isFull bool, err error) {
	for taken < len(fs) {
		from := taken
		taken += w.fill(c, fs[taken:])
		isFull, err = w.flush(c)
		if isFull {
			w.keep(fs[from:taken])
		}
		if isFull || err != nil {
			break
		}
	}
	return taken, isFull, err
}

func (w *writer) Resume(c *stream.Conn) (isFull bool, err error) {
	isFull, err = w.flush(c)
	if !isFull && err == nil {
		w.Free()
	}
	return isFull, err
}

func (w *writer) Free() {
	for i, b := range w.kept {
		b.Release()
		w.kept[i] = nil
	}
	w.kept = w.kept[:0]
}

// keep retains the frames that the socket has no room for, because the sender may release them
// while they are written.
func (w *writer) keep(fs []subsys.Frame) {
	for i := range fs {
		if b := fs[i].Buf; b != nil {
			w.kept = append(w.kept, b.Retain())
		}
	}
}

// fill adds frames to the next write, as many as fit, and returns how many it took.
func (w *writer) fill(c *stream.Conn, fs []subsys.Frame) (taken int) {
	copies, copied := 0, 0
	for i := range fs {
		f := &fs[i]
		if f.Type == subsys.TypeBatch {
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
		c.CountCopies(copies, copied)
	}
	w.cut()
	return taken
}

// grow makes buf larger, up to gather. It reports false if need is more, or if iov already refers
// to buf.
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
func (w *writer) flush(c *stream.Conn) (isFull bool, err error) {
	for w.first < w.niov {
		n, err := c.Writev(w.iov[w.first:w.niov])
		if err == syscall.EAGAIN {
			return true, nil
		}
		if err != nil {
			return false, err
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
	return false, nil
}
