// SPDX-License-Identifier: Apache-2.0

// Package harness gives the tests of transports what a transport needs of a context: a pool, a port
// and a goroutine that makes progress.
package harness

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys"
)

// A Drive is a way to make progress.
type Drive string

// The drives.
const (
	Polling  Drive = "polling"
	Sleeping Drive = "sleeping"
	Parked   Drive = "parked"
)

// A Harness is a port and what it needs.
type Harness struct {
	Pool  *buffers.Pool
	Count subsys.Counters
	Port  subsys.Port
	Hold  sync.Mutex // a test that holds it stops progress

	drive Drive
	ended chan struct{} // closed when the goroutine that makes progress has ended
	stop  atomic.Bool

	mu       sync.Mutex
	poller   *subsys.Poller // nil until the transport asks for it
	isClosed bool
}

// Open listens at an address of a transport. The goroutine that makes progress begins when the
// transport first asks for the poller. A nil log discards all lines.
func Open(tr subsys.Transport, addr string, d Drive, log *slog.Logger, accept func(subsys.Conn) subsys.Sink) (*Harness, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	h := &Harness{Pool: buffers.New(), drive: d, ended: make(chan struct{})}
	var err error
	h.Port, err = tr.Listen(addr, subsys.Config{
		Pool: h.Pool, Poller: h.Poller, Logger: log, Count: &h.Count, Progress: &h.Hold, Accept: accept,
	})
	if err != nil {
		return nil, errors.Join(err, h.end())
	}
	return h, nil
}

// Poller returns the poller, or nil if it cannot be made or the harness is closed.
func (h *Harness) Poller() *subsys.Poller {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.poller == nil && !h.isClosed {
		p, err := subsys.NewPoller(&h.Count)
		if err != nil {
			return nil
		}
		h.poller = p
		go h.progress(p)
	}
	if h.isClosed {
		return nil
	}
	return h.poller
}

// HasPoller reports whether the transport has asked for the poller.
func (h *Harness) HasPoller() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.poller != nil
}

func (h *Harness) progress(p *subsys.Poller) {
	defer close(h.ended)
	var never atomic.Uint32
	for !h.stop.Load() {
		h.Hold.Lock()
		switch h.drive {
		case Polling:
			p.Poll()
			runtime.Gosched()
		case Sleeping:
			if p.Naps() {
				p.Nap(time.Millisecond, &never)
			} else {
				p.Sleep(time.Millisecond, &never)
			}
		case Parked:
			if more := p.Drain(); !more {
				p.Arm()
				h.Hold.Unlock()
				if !p.Park() {
					return
				}
				continue
			}
		}
		h.Hold.Unlock()
	}
}

// Close closes the port and what it needs. It returns an error if something is left in the poller
// or in the pool. A second call does nothing.
func (h *Harness) Close() error {
	h.mu.Lock()
	wasClosed := h.isClosed
	h.isClosed = true
	h.mu.Unlock()
	if wasClosed {
		return nil
	}
	return errors.Join(h.Port.Close(), h.end())
}

// end ends progress, and closes the poller and the pool.
func (h *Harness) end() (err error) {
	h.mu.Lock()
	h.isClosed = true
	p := h.poller
	h.mu.Unlock()
	h.stop.Store(true)
	if p != nil {
		p.EndPark()
		<-h.ended
		if n := p.Len(); n > 0 {
			err = fmt.Errorf("harness: close: %d sources are left in the poller", n)
		}
		p.Close()
	}
	return errors.Join(err, h.Pool.Close())
}
