// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring is a bare queue of messages in memory that both processes have mapped, from one goroutine
// to another: the least cost of passing messages over shared memory. A word with its length
// precedes each message. Both sides poll, and publish their progress after some bytes, not after
// each message.
type ring struct {
	head, tail *atomic.Uint64 // number of bytes read, and of bytes written
	mem        []byte
	all        []byte
}

const (
	ringHeader = 4096
	ringLen    = 1 << 20
	ringMost   = ringLen / 4 // limit of the bytes of a message
	ringSaid   = 4 << 10     // bytes after which a side publishes its progress
	ringSkip   = 1<<64 - 1   // takes the place of a length: the next message is at the beginning
)

func openRing(dir string) (*ring, error) {
	f, err := os.OpenFile(filepath.Join(dir, "ring"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(ringHeader + ringLen); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, ringHeader+ringLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	word := func(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&mem[at])) }
	return &ring{head: word(0), tail: word(1024), mem: mem[ringHeader:], all: mem}, nil
}

func (r *ring) close() { _ = unix.Munmap(r.all) }

// wait polls a word until it is not was.
func (r *ring) wait(ctx context.Context, w *atomic.Uint64, was uint64) (now uint64, err error) {
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
func (r *ring) send(ctx context.Context, size, n int) (err error) {
	b := make([]byte, size)
	tail, head := r.tail.Load(), r.head.Load()
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
				r.tail.Store(tail)
			}
			if head, err = r.wait(ctx, r.head, head); err != nil {
				return err
			}
		}
		if need > length {
			binary.LittleEndian.PutUint64(r.mem[at:], ringSkip)
			tail, at = tail+ringLen-at, 0
		}
		binary.LittleEndian.PutUint64(r.mem[at:], uint64(size))
		copy(r.mem[at+8:], b)
		if tail += length; tail-published >= ringSaid {
			published = tail
			r.tail.Store(tail)
		}
	}
	r.tail.Store(tail)
	for head != tail {
		if head, err = r.wait(ctx, r.head, head); err != nil {
			return err
		}
	}
	return nil
}

// recv copies n messages of at most size bytes out of the ring.
func (r *ring) recv(ctx context.Context, size, n int) (err error) {
	b := make([]byte, size)
	head, tail := r.head.Load(), r.tail.Load()
	published := head
	for range n {
		for head == tail {
			if published != head {
				published = head
				r.head.Store(head)
			}
			if tail, err = r.wait(ctx, r.tail, tail); err != nil {
				return err
			}
		}
		at := head % ringLen
		k := binary.LittleEndian.Uint64(r.mem[at:])
		if k == ringSkip {
			head, at = head+ringLen-at, 0
			k = binary.LittleEndian.Uint64(r.mem)
		}
		if k > uint64(len(b)) {
			return fmt.Errorf("a message of %d bytes in the bare ring, of %d at most", k, len(b))
		}
		copy(b[:k], r.mem[at+8:])
		if head += 8 + (k+7)&^7; head-published >= ringSaid {
			published = head
			r.head.Store(head)
		}
	}
	r.head.Store(head)
	return nil
}

// copyRate returns how many bytes a second one goroutine copies, from count messages to as many
// others, one after the other.
func copyRate(to, from []byte, count int) float64 {
	start := time.Now()
	for range count {
		copy(to, from)
	}
	return float64(len(from)) * float64(count) / time.Since(start).Seconds()
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
