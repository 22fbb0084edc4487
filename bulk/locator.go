// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
)

// A locator tells another process of this node where bytes lie in the memory of the process that
// gives it, so that the other process reads them there. A locator is a message in registered
// memory, which the receiver does not copy. The receiver holds the message while it reads the
// bytes. The giver learns from the reference count of the buffer when the locator has been
// returned. This works also if the receiver's process ends in any way.
//
// A process identifier names another process in another PID namespace. So the receiver first reads
// the locator itself at the address that the locator gives, and compares: the cookie cannot be
// guessed. The receiver repeats this after it has read the bytes, which shows that the process was
// the same all the time.
//
//	0   16  cookie
//	16   8  address of the cookie
//	24   8  identifier of the process
//	32   8  number of extents
//	40      of each extent: address, length
const (
	locatorHead  = 40
	cookieLen    = 16
	extentLen    = 16
	extentsMost  = 8192
	extentLeast  = 4 << 10   // least bytes of an extent on average; copying is faster for smaller ones
	locatorLeast = 4 << 10   // least bytes of the message, so that the transport lends it and does not copy it
	inPlaceLeast = 256 << 10 // least bytes of a transfer with locators; more than a locator has
)

// An extent is a piece of the memory of a process.
type extent struct{ addr, n uint64 }

// Errors of locators. A transfer that gets one continues by messages.
var (
	errElsewhere = errors.New("bulk: the bytes cannot be read where they lie")
	errDenied    = fmt.Errorf("%w: this process may not read the memory of the other one", errElsewhere)
)

// isCoarse reports whether the parts of the memory are large enough on average to describe n bytes
// of it by extents.
func (m *memory) isCoarse(n int64) bool {
	return int64(len(m.parts))*extentLeast <= max(n, extentLeast)
}

// newLocator returns a locator for the n bytes of memory from off, after the encoded request if q
// is not nil. It fails with errElsewhere if the bytes are too scattered, or if no buffer is free.
func (ep *Endpoint) newLocator(q *request, mem *memory, off, n int64) (*rocl.Buffer, error) {
	var head []byte
	if q != nil {
		var err error
		if head, err = codec.Append(nil, q); err != nil {
			return nil, err
		}
	}
	var extents []byte
	for p := range mem.within(off, n) {
		if len(extents) == extentsMost*extentLen {
			return nil, errElsewhere
		}
		extents = binary.LittleEndian.AppendUint64(extents, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))))
		extents = binary.LittleEndian.AppendUint64(extents, uint64(len(p)))
	}
	b, err := ep.c.Buffer(max(len(head)+locatorHead+len(extents), locatorLeast))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errElsewhere, err)
	}
	clear(b.Bytes())
	t := b.Bytes()[copy(b.Bytes(), head):]
	_, _ = rand.Read(t[:cookieLen]) // never fails
	binary.LittleEndian.PutUint64(t[16:], uint64(uintptr(unsafe.Pointer(&t[0]))))
	binary.LittleEndian.PutUint64(t[24:], uint64(os.Getpid()))
	binary.LittleEndian.PutUint64(t[32:], uint64(len(extents)/extentLen))
	copy(t[locatorHead:], extents)
	return b, nil
}

// A locator is a received locator. It is valid while its message is held.
type locator struct {
	head    []byte // the first locatorHead bytes, with the cookie
	addr    uint64 // address of head in the giver's memory
	pid     int
	extents []extent
	size    int64
}

// parseLocator returns the locator at an offset of a message. It refuses a copy of a locator,
// because the giver would not wait for the release of a copy.
func parseLocator(m *rocl.Message, at int) (t locator, err error) {
	p := m.Bytes()
	if !m.ReadOnly() || len(p) < max(locatorLeast, at+locatorHead) {
		return t, fmt.Errorf("%w: the locator has %d bytes", errProtocol, len(p))
	}
	p = p[at:]
	count := binary.LittleEndian.Uint64(p[32:])
	if count > extentsMost || uint64(len(p)-locatorHead) < count*extentLen {
		return t, fmt.Errorf("%w: the locator has %d extents", errProtocol, count)
	}
	t = locator{head: bytes.Clone(p[:locatorHead]), addr: binary.LittleEndian.Uint64(p[16:]), pid: int(int32(binary.LittleEndian.Uint64(p[24:])))}
	for p = p[locatorHead:]; count > 0; count, p = count-1, p[extentLen:] {
		e := extent{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])}
		if e.n == 0 || e.n > rocl.MaxMessage || e.addr+e.n < e.addr {
			return t, fmt.Errorf("%w: an extent has %d bytes", errProtocol, e.n)
		}
		t.extents, t.size = append(t.extents, e), t.size+int64(e.n)
	}
	return t, nil
}

// readLocated reads all n bytes that a locator names into memory at an offset. It fails with
// errElsewhere if that is not possible, and with errDenied if it never will be.
func (ep *Endpoint) readLocated(ctx context.Context, t locator, mem *memory, at, n int64) error {
	if t.size != n {
		return fmt.Errorf("%w: the locator describes %d bytes, not %d", errProtocol, t.size, n)
	}
	if err := t.verify(); err != nil {
		return err
	}
	err := ep.eachCopied(ctx, n, func(off, n int64) error { return t.read(mem, at, off, n) })
	if err == nil {
		err = t.verify()
	}
	return err
}

// verify returns errDenied if the locator does not lie at the address that it gives.
func (t *locator) verify() error {
	p := make([]byte, locatorHead)
	if err := readProcess(t.pid, [][]byte{p}, []extent{{t.addr, locatorHead}}); err != nil {
		return fmt.Errorf("%w: %w", errDenied, err)
	}
	if !bytes.Equal(p, t.head) {
		return fmt.Errorf("%w: process %d is another one", errDenied, t.pid)
	}
	return nil
}

// callMost is how many pieces of memory one system call takes on either side.
const callMost = 1024

// read copies the n bytes from off of the locator's bytes to memory. The locator's first byte
// belongs at offset at of the memory.
func (t *locator) read(mem *memory, at, off, n int64) error {
	var local [][]byte
	var remote []extent
	i, skip := t.find(uint64(off))
	for p := range mem.within(at+off, n) {
		for len(p) > 0 {
			e := t.extents[i]
			k := min(e.n-skip, uint64(len(p)))
			local, remote = append(local, p[:k]), append(remote, extent{e.addr + skip, k})
			if p, skip = p[k:], skip+k; skip == e.n {
				i, skip = i+1, 0
			}
			if len(local) < callMost {
				continue
			}
			if err := t.readAll(local, remote); err != nil {
				return err
			}
			local, remote = local[:0], remote[:0]
		}
	}
	return t.readAll(local, remote)
}

// find returns the extent that has the byte at off, and the offset in it.
func (t *locator) find(off uint64) (i int, skip uint64) {
	for i < len(t.extents) && off >= t.extents[i].n {
		off -= t.extents[i].n
		i++
	}
	return i, off
}

// readAll fills each slice from the extent of the same size.
func (t *locator) readAll(local [][]byte, remote []extent) error {
	if len(local) == 0 {
		return nil
	}
	if err := readProcess(t.pid, local, remote); err != nil {
		return fmt.Errorf("%w: %w", errElsewhere, err)
	}
	return nil
}
