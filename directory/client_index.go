// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/internal/index"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/resource"
)

// A context can find resources of its node without asking the server. The server makes an index of
// its database (package index) when the first context asks for it, and hands a descriptor to each
// context that asks. A context uses an index only as long as its registration connection to the
// server that made it. So a context never waits for what its server did not live to write. If the
// index cannot tell, the context asks the server over the socket.

const (
	// indexAfter is the number of questions over the socket after which a context asks for the
	// index, which costs the server memory.
	indexAfter = 32
	// indexTime limits how long the server may take to make an index.
	indexTime = 30 * time.Second
)

// ClientStats are counts of a client's questions since it joined.
type ClientStats struct {
	Mapped   uint64 // finds and lookups answered from the index, without a system call
	Asked    uint64 // finds and lookups that went over the socket
	HasIndex bool   // the client has an index now
}

// Stats returns the present counts.
func (c *Client) Stats() ClientStats {
	return ClientStats{c.fromIndex.Load(), c.fromSocket.Load(), c.index.Load() != nil}
}

// Mapped reports whether the client has an index of its node's resources.
func (c *Client) Mapped() bool { return c.index.Load() != nil }

// WithoutClientIndex keeps a client from using the index. All its questions go over the socket.
func WithoutClientIndex() ClientOption { return func(c *Client) { c.noIndex = true } }

// countQuestion counts a question over the socket. After indexAfter questions it starts a goroutine
// that fetches the index.
func (c *Client) countQuestion() {
	c.fromSocket.Add(1)
	if c.noIndex {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	lc := c.conn
	if lc == nil || c.closed || lc.asked > indexAfter {
		return
	}
	if lc.asked++; lc.asked > indexAfter {
		c.busy.Go(func() { c.openIndex(lc) })
	}
}

// openIndex fetches the index of the server that lc leads to. The client uses it until lc ends.
func (c *Client) openIndex(lc *registrationConn) {
	r, err := c.fetchIndex()
	if err != nil {
		if c.lifetime.Err() == nil && !errors.Is(err, errNotUnix) {
			// Cause: the program cannot map the index; questions are slower.
			c.log.Info("directory: all questions go over the socket", "err", err)
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != lc || c.closed {
		r.Close()
		return
	}
	c.index.Store(r)
}

// fetchIndex asks for the index over a connection of its own and maps it. errNotUnix says that the
// directory is not reached over a Unix socket.
func (c *Client) fetchIndex() (*index.Reader, error) {
	nc, err := c.dial(c.lifetime)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return nil, errNotUnix
	}
	stop := context.AfterFunc(c.lifetime, func() { nc.Close() })
	defer stop()
	_ = nc.SetDeadline(time.Now().Add(indexTime))
	if _, err := nc.Write(wire.Greeting(wire.KindIndex)); err != nil {
		return nil, err
	}
	k := wire.NewConn(nc)
	k.Begin(wire.MsgIndex, 0)
	k.GID(c.self)
	k.Append(c.token[:])
	if err := k.Send(); err != nil {
		return nil, err
	}
	m, fd, err := wire.ReceiveDescriptor(uc)
	if err != nil {
		return nil, err
	}
	if fd < 0 {
		return nil, fmt.Errorf("%w: no index came", ErrProtocol)
	}
	defer memfd.Close(fd)
	p := m.Parser()
	size := p.U64()
	if m.Type != wire.MsgDone || p.End() != nil || size > 1<<40 || uint64(int(size)) != size {
		return nil, fmt.Errorf("%w: not an index", ErrProtocol)
	}
	return index.Open(fd, int(size))
}

// dropIndexLocked stops using the index, if there is one. mu must be held.
func (c *Client) dropIndexLocked() {
	if r := c.index.Swap(nil); r != nil {
		r.Close()
	}
}

// dropEndedIndex stops using r, which has ended. After indexAfter further questions the client
// fetches another.
func (c *Client) dropEndedIndex(r *index.Reader) {
	if !c.index.CompareAndSwap(r, nil) {
		return
	}
	r.Close()
	c.mu.Lock()
	if c.conn != nil {
		c.conn.asked = 0
	}
	c.mu.Unlock()
}

// inIndex asks the index. ok is false if the index cannot tell; then the server must be asked. If
// all is true, no other node can have the resource, so a "no" of the index is certain. A "no" is
// also certain if the node is alone.
func (c *Client) inIndex(ctx context.Context, pattern *resource.List, all bool, ask func(r *index.Reader, buf []byte) (resource.Record, index.Verdict)) (a resource.Record, err error, ok bool) {
	r := c.index.Load()
	if r == nil || ctx.Err() != nil {
		return a, nil, false
	}
	var buf []byte
	complete := pattern.Complete()
	if !complete { // the answer is a copy of a part of it
		b := scratch.Get().(*[scratchLen]byte)
		defer scratch.Put(b)
		buf = b[:]
	}
	rec, v := ask(r, buf)
	switch {
	case v == index.Ended:
		c.dropEndedIndex(r)
		return a, nil, false
	case v == index.None && (all || r.Alone()):
		c.fromIndex.Add(1)
		return a, ErrNotFound, true
	case v != index.Found:
		return a, nil, false
	}
	c.fromIndex.Add(1)
	if !complete {
		rec.Attrs = pattern.Answer(&rec.Attrs)
	}
	return rec, nil, true
}

// scratchLen is the size of the buffers in scratch.
const scratchLen = 2 << 10

// scratch has buffers for lists of which an answer copies a part.
var scratch = sync.Pool{New: func() any { return new([scratchLen]byte) }}
