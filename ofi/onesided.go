// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/ofi/internal/fabric"
	"github.com/rocl-go/rocl/subsys"
)

// A key names exposed memory of a port:
//
//	hash of the endpoint's name u64 | address of the first byte u64 | length u64 | key of the provider u64
const keyLen = 32

// mostRemote limits the reads and writes of peers' memory that are in progress at once, so that
// messages find room beside them. Further ones wait.
const mostRemote = 64

var errKey = errors.New("the key is not of the peer's port, or the bytes are not within its memory")

// An exposure implements [subsys.Exposure].
type exposure struct {
	port   *port
	region *fabric.Region // nil when it is closed; memory.mu guards it
	key    [keyLen]byte
}

// Expose implements [subsys.Exposer].
func (p *port) Expose(mem []byte, access subsys.Access) (subsys.Exposure, error) {
	if p.isRXD() {
		return nil, fmt.Errorf("%s: exposing memory: %w", p.name, errors.ErrUnsupported)
	}
	if len(mem) == 0 {
		return nil, fmt.Errorf("%s: exposing memory: %w", p.name, errKey)
	}
	var key [8]byte
	_, _ = rand.Read(key[:]) // a peer must not guess the key
	x := &exposure{port: p}
	m := &p.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isClosed {
		return nil, fmt.Errorf("%s: exposing memory: %w", p.name, subsys.ErrClosed)
	}
	r, err := p.ep.Expose(mem, binary.LittleEndian.Uint64(key[:]), access&subsys.MayRead != 0, access&subsys.MayWrite != 0)
	if err != nil {
		return nil, fmt.Errorf("%s: exposing memory: %w", p.name, err)
	}
	x.region = r
	binary.LittleEndian.PutUint64(x.key[:], p.hashOf(p.ep.Name()))
	binary.LittleEndian.PutUint64(x.key[8:], r.Base)
	binary.LittleEndian.PutUint64(x.key[16:], uint64(len(mem)))
	binary.LittleEndian.PutUint64(x.key[24:], r.Key)
	m.exposed[x] = struct{}{}
	return x, nil
}

// hashOf returns the hash of an endpoint's name without the host: the peer knows another one of an
// endpoint that is bound to all addresses. See checkName.
func (p *port) hashOf(name []byte) uint64 {
	if p.ep.IsSocketName() {
		name = name[:4] // family and port
	}
	h := fnv.New64a()
	_, _ = h.Write(name)
	return h.Sum64()
}

// Key implements [subsys.Exposure].
func (x *exposure) Key() []byte { return x.key[:] }

// Close implements [subsys.Exposure].
func (x *exposure) Close() {
	p := x.port
	p.cfg.Progress.Lock()
	for range 2 { // the provider may still have what a peer that has ended has written
		if p.poller.Load() != nil {
			p.progress()
		}
	}
	p.cfg.Progress.Unlock()
	m := &p.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if x.region != nil {
		m.ep.Unregister(x.region)
		x.region = nil
		delete(m.exposed, x)
	}
}

// A remote is a read or write of a peer's memory.
type remote struct {
	conn    *conn
	kind    opKind          // opRemoteRead or opRemoteWrite
	local   []byte          // memory of the caller
	mem     []byte          // local, or of buf
	buf     *buffers.Buffer // if the provider needs registered memory, and local is not
	at, key uint64
	done    func(error)
}

// ReadMemory implements [subsys.OneSided].
func (c *conn) ReadMemory(dst, key []byte, off uint64, done func(error)) error {
	return c.access(&remote{conn: c, kind: opRemoteRead, local: dst, done: done}, key, off)
}

// WriteMemory implements [subsys.OneSided].
func (c *conn) WriteMemory(src, key []byte, off uint64, done func(error)) error {
	return c.access(&remote{conn: c, kind: opRemoteWrite, local: src, done: done}, key, off)
}

// access begins r with the memory that a key names, or lets it wait. If it fails, done is not
// called.
func (c *conn) access(r *remote, key []byte, off uint64) (err error) {
	p := c.port
	r.mem = r.local
	if _, isRegistered := p.memory.desc(r.mem); !isRegistered {
		if r.buf, err = p.own.Get(len(r.local)); err != nil {
			return c.sendError(err)
		}
		if r.mem = r.buf.Bytes(); r.kind == opRemoteWrite {
			copy(r.mem, r.local)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() {
		if err != nil {
			r.free()
			err = fmt.Errorf("%s: memory of %s: %w", p.name, c.remote, err)
		}
	}()
	if c.isClosed || p.isClosed || c.cause != nil || c.isOver || c.peer == nil {
		return subsys.ErrClosed
	}
	if len(key) != keyLen || binary.LittleEndian.Uint64(key) != p.hashOf([]byte(c.peer.name)) {
		return errKey
	}
	n, size := uint64(len(r.mem)), binary.LittleEndian.Uint64(key[16:])
	if n == 0 || n > size || off > size-n {
		return errKey
	}
	r.at, r.key = binary.LittleEndian.Uint64(key[8:])+off, binary.LittleEndian.Uint64(key[24:])
	p.waiting = append(p.waiting, r)
	if p.startRemotesLocked(); len(p.waiting) > 0 {
		p.wake()
	}
	return nil
}

func (r *remote) free() {
	if r.buf != nil {
		r.buf.Release()
	}
}

// end ends r. port.mu must be held, or the port stopped.
func (r *remote) end(err error) {
	if r.buf != nil && r.kind == opRemoteRead && err == nil {
		copy(r.local, r.mem)
	}
	r.free()
	r.done(err)
}

// startRemotesLocked gives the provider the reads and writes that wait. mu must be held.
func (p *port) startRemotesLocked() {
	for len(p.waiting) > 0 && p.remotes < mostRemote && p.startRemoteLocked(p.waiting[0]) {
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
	}
}

// startRemoteLocked begins r, or ends it if that fails. It reports false if the provider cannot
// take it now. mu must be held.
func (p *port) startRemoteLocked(r *remote) bool {
	c := r.conn
	if c.isClosed || c.cause != nil {
		r.end(subsys.ErrClosed)
		return true
	}
	desc, isRegistered := p.memory.desc(r.mem)
	if !isRegistered {
		r.end(errUnregistered)
		return true
	}
	n, ok := p.beginLocked(r.kind, nil, c)
	if !ok {
		return false
	}
	p.ops[n].remote = r
	begin := p.ep.Read
	if r.kind == opRemoteWrite {
		begin = p.ep.Write
	}
	err := begin(n, r.mem, desc, c.peer.at, r.at, r.key)
	if err == nil {
		p.remotes++
		return true
	}
	p.finishLocked(n)
	if isAgain(err) {
		return false
	}
	c.breakLocked(err)
	r.end(err)
	return true
}

// remoteEndedLocked ends a read or write. mu must be held.
func (p *port) remoteEndedLocked(o *operation, err error) {
	p.remotes--
	if err != nil {
		o.conn.breakLocked(err) // over some providers nothing passes any more
	}
	o.remote.end(err)
}

// endRemotes ends all reads and writes after the endpoint was closed.
func (p *port) endRemotes() {
	err := fmt.Errorf("%s: %w", p.name, subsys.ErrClosed)
	for i := range p.ops {
		if r := p.ops[i].remote; r != nil {
			r.end(err)
		}
	}
	for _, r := range p.waiting {
		r.end(err)
	}
	p.waiting = nil
}
