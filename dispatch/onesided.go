// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// A one-sided transfer moves bytes between local memory and memory that another context exposes,
// and no goroutine of that context's program takes part. The transport of a connection does it
// ([subsys.OneSided]). Keys travel in messages of the program.
const (
	remotePiece = 1 << 20 // bytes that one operation moves through a buffer
	remoteDepth = 2       // such operations of one Read or Write that are in progress at a time
)

// An ExposedMemory is memory of this process that other contexts read and write. Any goroutine may
// call its methods.
type ExposedMemory struct {
	key  []byte
	each []subsys.Exposure // one for each port that can expose memory
}

// Expose gives other contexts access to mem until Close is called on the result. Without a port
// that can expose memory, the error matches errors.ErrUnsupported.
func (d *Dispatcher) Expose(mem []byte, access subsys.Access) (*ExposedMemory, error) {
	d.mu.RLock()
	ports := d.ports
	d.mu.RUnlock()
	e, err := &ExposedMemory{}, errors.ErrUnsupported
	for _, p := range ports {
		x, ok := p.(subsys.Exposer)
		if !ok {
			continue
		}
		var one subsys.Exposure
		if one, err = x.Expose(mem, access); err != nil {
			continue
		}
		name := transportOf(p.Addr())
		e.key = append(append(append(e.key, byte(len(name))), name...), byte(len(one.Key())))
		e.key = append(e.key, one.Key()...)
		e.each = append(e.each, one)
	}
	if len(e.each) == 0 {
		return nil, err
	}
	return e, nil
}

// Key returns the key by which other contexts get access, some hundred bytes at most: see
// [Dispatcher.RemoteMemory]. It must not be changed.
func (e *ExposedMemory) Key() []byte { return e.key }

// Close ends the access: later operations fail, and may break the connections of the contexts that
// make them. The caller first learns from the contexts that have the key and have not ended that
// they have closed their [RemoteMemory]. Otherwise an operation that has begun may go on.
func (e *ExposedMemory) Close() {
	for _, x := range e.each {
		x.Close()
	}
}

// A RemoteMemory is memory that another context exposes. Its methods may be called concurrently.
type RemoteMemory struct {
	d    *Dispatcher
	peer resource.GID
	keys []transportKey

	mu       sync.Mutex
	isClosed bool
	begun    int           // operations in progress
	idle     chan struct{} // closed when isClosed is set and begun is 0
}

// A transportKey is the key of memory for the connections of a transport.
type transportKey struct {
	transport string
	key       []byte
}

// IsOneSided reports whether there is a connection with a context over which it reads and writes
// exposed memory now.
func (d *Dispatcher) IsOneSided(peer resource.GID) bool {
	return d.oneSided(peer, func(subsys.OneSided) bool { return true }) != nil
}

// oneSided returns a connection with a context that is one-sided and suits, or nil.
func (d *Dispatcher) oneSided(peer resource.GID, suits func(subsys.OneSided) bool) subsys.OneSided {
	for _, l := range d.lanes(peer.Context()) {
		l.mu.Lock()
		c := l.conn
		l.mu.Unlock()
		if o, ok := c.(subsys.OneSided); ok && suits(o) {
			return o
		}
	}
	return nil
}

// RemoteMemory returns the memory of another context for which Key has returned key there. It fails
// with ErrProtocol if the key is malformed.
func (d *Dispatcher) RemoteMemory(peer resource.GID, key []byte) (*RemoteMemory, error) {
	m := &RemoteMemory{d: d, peer: peer.Context(), idle: make(chan struct{})}
	cut := func() (part []byte, ok bool) {
		if len(key) == 0 || len(key) <= int(key[0]) {
			return nil, false
		}
		end := 1 + int(key[0])
		part, key = slices.Clone(key[1:end]), key[end:]
		return part, true
	}
	for len(key) > 0 {
		name, hasName := cut()
		k, hasKey := cut()
		if !hasName || !hasKey || len(k) > subsys.MostKey {
			return nil, fmt.Errorf("%w: the key of memory of %v", ErrProtocol, m.peer)
		}
		m.keys = append(m.keys, transportKey{string(name), k})
	}
	return m, nil
}

// Read fills all slices of dst with the bytes from off of the memory. If it fails, some bytes may
// have been written to dst; none are after it has returned. When ctx ends, it returns the cause at
// once. Without a one-sided connection its error matches errors.ErrUnsupported, and after Close
// ErrClosed. A connection that breaks is an error.
//
// If ctx never ends (its Done is nil), the transport writes to a single slice itself. Otherwise the
// bytes are copied once, because no transport can be stopped at once. In the first case Read waits
// until the transport has given up a peer out of reach, which may take minutes.
func (m *RemoteMemory) Read(ctx context.Context, off int64, dst ...[]byte) error {
	read := func(a *access, c subsys.OneSided, key []byte) error { return c.ReadMemory(a.mem, key, a.off, a.done) }
	if ctx.Done() == nil && len(dst) == 1 && len(dst[0]) > 0 {
		return m.wrap("read", m.directly(ctx, off, dst[0], read))
	}
	dst = slices.Clone(dst)
	return m.inPieces(ctx, off, total(dst), read, func(p []byte) {
		for len(p) > 0 {
			n := copy(dst[0], p)
			if dst[0], p = dst[0][n:], p[n:]; len(dst[0]) == 0 {
				dst = dst[1:]
			}
		}
	})
}

// Write writes the bytes of all slices of src to the memory from off. When it returns nil, the
// other context can read them. If it fails, any of them may have been written, and may still be
// written. Otherwise it is as Read. If ctx ends, bytes of src that are being sent may be read
// later.
func (m *RemoteMemory) Write(ctx context.Context, off int64, src ...[]byte) error {
	write := func(a *access, c subsys.OneSided, key []byte) error {
		if a.buf != nil {
			for p := a.mem; len(p) > 0; {
				n := copy(p, src[0])
				if p, src[0] = p[n:], src[0][n:]; len(src[0]) == 0 {
					src = src[1:]
				}
			}
		}
		return c.WriteMemory(a.mem, key, a.off, a.done)
	}
	if len(src) == 1 && len(src[0]) > 0 {
		return m.wrap("write", m.directly(ctx, off, src[0], write))
	}
	src = slices.Clone(src)
	return m.inPieces(ctx, off, total(src), write, func([]byte) {})
}

func total(all [][]byte) (n int64) {
	for _, p := range all {
		n += int64(len(p))
	}
	return n
}

// wrap returns the error of an operation.
func (m *RemoteMemory) wrap(what string, err error) error {
	if err != nil {
		err = fmt.Errorf("dispatch: %s memory of %v: %w", what, m.peer, err)
	}
	return err
}

// An access is one operation in progress.
type access struct {
	m   *RemoteMemory
	w   *waiter
	off uint64
	mem []byte          // local memory
	buf *buffers.Buffer // which has mem; nil: the program has it
	err error           // valid when w has fired
}

// beginFunc begins an operation over a connection, with its key for the memory.
type beginFunc func(a *access, c subsys.OneSided, key []byte) error

// start begins an operation. It returns a.
func (m *RemoteMemory) start(a *access, begin beginFunc) (*access, error) {
	var key []byte
	c := m.d.oneSided(m.peer, func(c subsys.OneSided) bool {
		i := slices.IndexFunc(m.keys, func(k transportKey) bool { return k.transport == c.Transport() })
		if i >= 0 {
			key = m.keys[i].key
		}
		return i >= 0
	})
	if c == nil {
		return nil, errors.ErrUnsupported
	}
	m.mu.Lock()
	isClosed := m.isClosed
	if !isClosed {
		m.begun++
	}
	m.mu.Unlock()
	if isClosed {
		return nil, ErrClosed
	}
	a.w = m.d.waiter()
	if a.buf != nil {
		a.buf.Retain()
	}
	if err := begin(a, c, key); err != nil {
		m.d.doneWaiting(a.w)
		a.free()
		m.end()
		return nil, err
	}
	return a, nil
}

// done is called when the operation has ended.
func (a *access) done(err error) {
	a.err = err
	a.free()
	a.m.end()
	a.w.Fire()
}

// free releases the operation's reference to buf.
func (a *access) free() {
	if a.buf != nil {
		a.buf.Release()
	}
}

// directly moves the bytes of memory of the program in one operation.
func (m *RemoteMemory) directly(ctx context.Context, off int64, mem []byte, begin beginFunc) error {
	a, err := m.start(&access{m: m, off: uint64(off), mem: mem}, begin)
	if err == nil {
		err = a.wait(ctx)
	}
	return err
}

// wait waits until the operation has ended, or ctx ends.
func (a *access) wait(ctx context.Context) error {
	d := a.m.d
	if err := d.progress.Wait(ctx, &a.w.Waiter); err != nil {
		return err // w is not used again, because done will fire it
	}
	d.doneWaiting(a.w)
	return a.err
}

// end counts the end of an operation.
func (m *RemoteMemory) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun--; m.begun == 0 && m.isClosed {
		close(m.idle)
	}
}

// inPieces moves n bytes through buffers, remoteDepth at a time, and calls took with those of each
// operation in order.
func (m *RemoteMemory) inPieces(ctx context.Context, off, n int64, begin beginFunc, took func([]byte)) (err error) {
	var under []*access // the oldest first
	defer func() {
		for _, a := range under {
			a.free() // done releases another reference
		}
		err = m.wrap("access", err)
	}()
	for at := int64(0); at < n || len(under) > 0; {
		if at < n && len(under) < remoteDepth {
			b, err := m.d.cfg.Pool.GetWithin(ctx, int(min(n-at, remotePiece)))
			if err == nil {
				var a *access
				if a, err = m.start(&access{m: m, off: uint64(off + at), mem: b.Bytes(), buf: b}, begin); err != nil {
					b.Release()
					return err
				}
				under = append(under, a)
				at += int64(b.Len())
				continue
			}
			if len(under) == 0 {
				return err
			}
		}
		if err := under[0].wait(ctx); err != nil {
			return err
		}
		took(under[0].mem)
		under[0].free()
		under = under[1:]
	}
	return nil
}

// Close lets no further operation begin, and waits until those in progress have ended, or ctx ends.
// Then it returns the cause, and another Close waits for the rest.
func (m *RemoteMemory) Close(ctx context.Context) error {
	m.mu.Lock()
	if !m.isClosed {
		if m.isClosed = true; m.begun == 0 {
			close(m.idle)
		}
	}
	isIdle := m.begun == 0
	m.mu.Unlock()
	if isIdle {
		return nil
	}
	select {
	case <-m.idle:
		return nil
	case <-ctx.Done():
		return m.wrap("close", context.Cause(ctx))
	}
}
