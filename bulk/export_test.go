// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"

	"github.com/rocl-go/rocl/codec"
)

// What a target does that keeps to no rule.

const (
	TagRead  = tagRead
	TagWrite = tagWrite
)

// Widen adds a step to a handle without looking at it.
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
