// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"fmt"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// SendValue sends the value v as a message from r to the resource with identifier to, as
// [Resource.Send] sends a buffer. See rocl.SendValue.
func SendValue[T any](ctx stdctx.Context, r *Resource, to resource.GID, tag uint64, v T, c ...codec.Codec[T]) error {
	b, err := encode(ctx, r.c, &v, c)
	if err != nil {
		return fmt.Errorf("rocl: send a value to %v: %w", to, err)
	}
	if err := r.Send(ctx, to, tag, b); err != nil {
		b.Release()
		return err
	}
	return nil
}

// EncodeValue returns a buffer with the payload that [SendValue] would send. See rocl.EncodeValue.
func EncodeValue[T any](ctx stdctx.Context, c *Context, v T, own ...codec.Codec[T]) (*buffers.Buffer, error) {
	b, err := encode(ctx, c, &v, own)
	if err != nil {
		return nil, fmt.Errorf("rocl: encode a value: %w", err)
	}
	return b, nil
}

// Value returns the value that a message from [SendValue] has as its payload. See rocl.Value.
func Value[T any](m *dispatch.Message, c ...codec.Codec[T]) (v T, err error) {
	own, err := only(c)
	switch {
	case err != nil:
	case own == nil:
		err = codec.Decode(m.Bytes(), &v)
	default:
		v, err = own.Decode(m.Bytes())
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("rocl: decode the value of a message from %v with tag %d: %w", m.From(), m.Tag(), err)
	}
	return v, nil
}

// only returns the only codec of cs. Without one it returns nil, which stands for package codec.
func only[T any](cs []codec.Codec[T]) (codec.Codec[T], error) {
	switch len(cs) {
	case 0:
		return nil, nil
	case 1:
		return cs[0], nil
	}
	return nil, fmt.Errorf("%w: more than one codec is given", codec.ErrValue)
}

// encode returns a buffer with the payload of a value.
func encode[T any](ctx stdctx.Context, c *Context, v *T, cs []codec.Codec[T]) (*buffers.Buffer, error) {
	own, err := only(cs)
	if err != nil {
		return nil, err
	}
	size := 256 // a guess for a codec of the program
	if own == nil {
		size = codec.Size(v)
	}
	guess, err := c.disp.BufferWait(ctx, size)
	if err != nil {
		return nil, err
	}
	held := guess // released in the end, also if a codec of the program panics
	defer func() {
		if held != nil {
			held.Release()
		}
	}()
	if err := guess.Resize(guess.Cap()); err != nil {
		return nil, err
	}
	mem := guess.Bytes()
	var p []byte
	if own == nil {
		p, err = codec.Append(mem[:0], v)
	} else {
		p, err = own.Append(mem[:0], *v)
	}
	if err != nil {
		return nil, err
	}
	if len(p) == 0 || &p[0] == &mem[0] && len(p) <= len(mem) {
		held = nil
		return guess, guess.Resize(len(p))
	}
	// The payload is longer than the guess.
	guess.Release()
	held = nil
	b, err := c.disp.BufferWait(ctx, len(p))
	if err != nil {
		return nil, err
	}
	copy(b.Bytes(), p)
	c.disp.CountCopy(len(p))
	return b, nil
}
