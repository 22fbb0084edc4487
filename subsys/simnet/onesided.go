// SPDX-License-Identifier: Apache-2.0

package simnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/subsys"
)

var errAccess = errors.New("simnet: the key, the range or the access is not one that the peer has exposed")

// An exposure implements [subsys.Exposure]. Network.mu guards it.
type exposure struct {
	port   *port
	key    []byte // by which Network.exposed has it
	mem    []byte
	access subsys.Access
}

// Expose implements [subsys.Exposer].
func (p *port) Expose(mem []byte, access subsys.Access) (subsys.Exposure, error) {
	n := p.process.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	x := &exposure{port: p, mem: mem, access: access}
	x.key = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, n.rnd.Uint64()), uint64(len(mem)))
	n.exposed[string(x.key)] = x
	return x, nil
}

// Key implements [subsys.Exposure].
func (x *exposure) Key() []byte { return x.key }

// Close implements [subsys.Exposure].
func (x *exposure) Close() {
	n := x.port.process.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.exposed, string(x.key))
}

// ReadMemory implements [subsys.OneSided].
func (c *conn) ReadMemory(dst, key []byte, off uint64, done func(error)) error {
	return c.access(subsys.MayRead, dst, key, off, done)
}

// WriteMemory implements [subsys.OneSided].
func (c *conn) WriteMemory(src, key []byte, off uint64, done func(error)) error {
	return c.access(subsys.MayWrite, src, key, off, done)
}

// access moves bytes between local memory and that of the key, after the delay of a round trip.
func (c *conn) access(how subsys.Access, local, key []byte, off uint64, done func(error)) error {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed || c.closed.Load() {
		return fmt.Errorf("simnet: memory of %s: %w", c.Remote(), subsys.ErrClosed)
	}
	if len(key) != 16 || len(local) == 0 || !fits(off, local, binary.LittleEndian.Uint64(key[8:])) {
		return fmt.Errorf("simnet: memory of %s: %w", c.Remote(), errAccess)
	}
	p.running.Go(func() {
		n, near, far := p.process.host.n, c.nc.host, c.nc.out.to.host
		n.mu.Lock()
		delay := n.drawDelayLocked(near, far) + n.drawDelayLocked(far, near)
		n.mu.Unlock()
		time.Sleep(delay)
		n.mu.Lock()
		err := c.accessLocked(how, local, key, off)
		n.mu.Unlock()
		p.cfg.Progress.Lock()
		defer p.cfg.Progress.Unlock()
		done(err)
	})
	return nil
}

func fits(off uint64, local []byte, size uint64) bool {
	return uint64(len(local)) <= size && off <= size-uint64(len(local))
}

// accessLocked moves the bytes. Network.mu must be held.
func (c *conn) accessLocked(how subsys.Access, local, key []byte, off uint64) error {
	far := c.nc.out.to
	x := c.port.process.host.n.exposed[string(key)]
	switch {
	case c.closed.Load():
		return subsys.ErrClosed
	case c.nc.err != nil || far.isClosed || far.p.isKilled || !far.host.n.isOpenLocked(c.nc.host, far.host):
		return subsys.ErrPeerClosed
	case x == nil || x.port.process != far.p || x.access&how == 0 || !fits(off, local, uint64(len(x.mem))):
		return errAccess
	}
	if mem := x.mem[off:][:len(local)]; how == subsys.MayRead {
		copy(local, mem)
	} else {
		copy(mem, local)
	}
	return nil
}
