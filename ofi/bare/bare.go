// SPDX-License-Identifier: Apache-2.0

// Package bare moves messages over libfabric alone: without frames, windows of the receiver, or
// contexts. The command rocl bench compares package ofi with it.
package bare

import (
	"context"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/ofi/internal/fabric"
)

// mostMemory limits the receive buffers of an End, in bytes, if one message is not larger.
const mostMemory = 64 << 20

// An End is an endpoint that polls. It exchanges messages of one size with one other. One goroutine
// at a time may use it.
type End struct {
	ctx     context.Context
	ep      *fabric.Endpoint
	peer    fabric.Address
	region  *fabric.Region
	mem     []byte // for as many messages as window, and one that is sent
	size    int
	window  int   // receives; and as many sends may be in progress
	arrived int   // messages that have come, and that Recv has not returned for
	idle    []int // numbers of sends that are not in progress
	done    [16]fabric.Completion
}

// Open opens an endpoint of a provider at 127.0.0.1, for messages of size bytes. Waits end when ctx
// ends.
func Open(ctx context.Context, provider string, size int) (*End, error) {
	host := "127.0.0.1"
	if provider == "shm" {
		host = ""
	}
	if size = max(size, 1); size > 1<<30 {
		return nil, fmt.Errorf("bare: messages of %d bytes are too large", size)
	}
	e := &End{ctx: ctx, size: size, window: min(max(mostMemory/size, 1), 64)}
	var err error
	if e.ep, err = fabric.Open(provider, host, 2*e.window); err != nil {
		return nil, err
	}
	e.mem, err = fabric.Map((e.window + 1) * size)
	if err == nil && e.ep.NeedsLocal() {
		e.region, err = e.ep.Register(e.mem, 1)
	}
	if err != nil {
		e.Close()
		return nil, fmt.Errorf("bare: memory of %d bytes: %w", (e.window+1)*size, err)
	}
	for i := range e.window {
		e.idle = append(e.idle, e.window+i)
	}
	return e, nil
}

// Name returns the endpoint's address, for Connect of the other end.
func (e *End) Name() []byte { return e.ep.Name() }

// Connect sets the other end, by its name, and begins to receive.
func (e *End) Connect(name []byte) (err error) {
	if e.peer, err = e.ep.Insert(name); err != nil {
		return err
	}
	for i := range e.window {
		if err := e.recv(i); err != nil {
			return err
		}
	}
	return nil
}

func (e *End) desc() uintptr {
	if e.region == nil {
		return 0
	}
	return e.region.Desc
}

func (e *End) recv(i int) error {
	return e.ep.Recv(i, e.mem[i*e.size:(i+1)*e.size], e.desc())
}

// Send sends a message. It waits while too many are in progress.
func (e *End) Send() error {
	for {
		if n := len(e.idle); n > 0 {
			err := e.ep.Send(e.idle[n-1], e.mem[e.window*e.size:], e.desc(), e.peer)
			if err == nil {
				e.idle = e.idle[:n-1]
			}
			if !errors.Is(err, fabric.ErrAgain) {
				return err
			}
		}
		if err := e.poll(); err != nil {
			return err
		}
	}
}

// Recv waits for a message.
func (e *End) Recv() error {
	for e.arrived == 0 {
		if err := e.poll(); err != nil {
			return err
		}
	}
	e.arrived--
	return nil
}

// Flush waits until what was sent needs no further call of this end.
func (e *End) Flush() error {
	for len(e.idle) < e.window {
		if err := e.poll(); err != nil {
			return err
		}
	}
	return nil
}

func (e *End) poll() error {
	n, err := e.ep.Poll(e.done[:])
	if err != nil {
		return err
	}
	for i := range e.done[:n] {
		d := &e.done[i]
		switch {
		case d.Err != nil:
			return d.Err
		case d.Op >= e.window:
			e.idle = append(e.idle, d.Op)
		case d.Op >= 0:
			e.arrived++
			if err := e.recv(d.Op); err != nil {
				return err
			}
		}
	}
	if n == 0 {
		return e.ctx.Err()
	}
	return nil
}

// Close frees the endpoint.
func (e *End) Close() {
	if e.region != nil {
		e.ep.Unregister(e.region)
	}
	e.ep.Close()
	if e.mem != nil {
		fabric.Unmap(e.mem)
	}
}
