// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
)

// Functions of a target that keeps no rule.

const (
	TagRead  = tagRead
	TagWrite = tagWrite
)

// Widen adds a step to a handle without a check.
func Widen(h Handle, off, n uint64, r Rights) Handle {
	h, _ = h.narrow(step{off, n, r})
	return h
}

// Ask asks for bytes that the handle may not name.
func Ask(ctx context.Context, ep *Endpoint, h Handle, off, n uint64) error {
	return ask(ctx, ep, tagRead, request{rawHandle(h), off, n}, nil)
}

// AskWrite writes, whatever the rights.
func AskWrite(ctx context.Context, ep *Endpoint, h Handle, off uint64, data []byte) error {
	return ask(ctx, ep, tagWrite, request{rawHandle(h), off, uint64(len(data))}, data)
}

// Offer offers size bytes of one handle for n bytes of another.
func Offer(ctx context.Context, ep *Endpoint, to, from Handle, off, at, n, size uint64) error {
	m, err := ep.ask(ctx, to.origin, tagOffer, nil, request{rawHandle(to), off, n}, request{rawHandle(from), at, size})
	if err != nil {
		return err
	}
	return done(m)
}

func ask(ctx context.Context, ep *Endpoint, tag uint64, q request, data []byte) error {
	p, err := codec.Append(nil, &q)
	if err != nil {
		return err
	}
	m, err := ep.r.CallBytes(ctx, q.Handle.origin, tag, append(p, data...))
	if err != nil {
		return err
	}
	n := int64(q.Len)
	if tag == tagWrite {
		n = 0
	}
	if m, err = granted(m, n); err == nil {
		m.Release()
	}
	return err
}

// HookReadProcess replaces the function that reads the memory of other processes. The hook gets the
// replaced function.
func HookReadProcess(hook func(read func() error, local [][]byte) error) (undo func()) {
	was := readProcess
	readProcess = func(pid int, local [][]byte, remote []extent) error {
		return hook(func() error { return was(pid, local, remote) }, local)
	}
	return func() { readProcess = was }
}

// Sizes of a locator.
const (
	TagLocate   = tagLocate
	TagTake     = tagTake
	LocatorHead = locatorHead
)

var (
	ErrElsewhere = errElsewhere
	ErrProtocol  = errProtocol
)

// Locator returns a message with a locator of memory of this process.
func (ep *Endpoint) Locator(p []byte) (*rocl.Buffer, error) {
	mem, n := newLocal([][]byte{p})
	return ep.newLocator(nil, &mem, 0, n)
}

// HandleOf returns a handle of n bytes of an endpoint that did not give one.
func HandleOf(origin rocl.GID, n int64) Handle {
	h := Handle{origin: origin}
	h.steps[0] = step{0, uint64(n), ReadWrite}
	return h
}

// PullInPlace pulls by a locator only.
func PullInPlace(ctx context.Context, ep *Endpoint, h Handle, dst []byte) error {
	mem, n := newLocal([][]byte{dst})
	return ep.pullInPlace(ctx, &move{h: &h, local: &mem, n: n}, 0, n)
}

// InFlight returns how many transfers an endpoint makes now.
func InFlight(ep *Endpoint) int64 { return ep.flight.transfers.Load() }

// Retired returns how many regions are revoked, but may still be used.
func (ep *Endpoint) Retired() int {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return len(ep.retired)
}
