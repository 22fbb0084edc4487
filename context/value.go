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
	switch len(c) {
	case 0:
		err = codec.Decode(m.Bytes(), &v)
	case 1:
		v, err = c[0].Decode(m.Bytes())
	default:
		err = errCodecs
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("rocl: decode the value of a message from %v with tag %d: %w", m.From(), m.Tag(), err)
	}
	return v, nil
}

// errCodecs is the error of a call with more than one codec.
var errCodecs = fmt.Errorf("%w: more than one codec is given", codec.ErrValue)

// encode returns a buffer with the payload of a value.
func encode[T any](ctx stdctx.Context, c *Context, v *T, own []codec.Codec[T]) (*buffers.Buffer, error) {
	size := 256 // a guess for a codec of the program
	switch len(own) {
	case 0:
		size = codec.Size(v)
	case 1:
	default:
		return nil, errCodecs
	}
	b, err := c.disp.BufferWait(ctx, size)
	if err != nil {
		return nil, err
	}
	if err = b.Resize(b.Cap()); err != nil {
		b.Release()
		return nil, err
	}
	mem := b.Bytes()
	var p []byte
	if len(own) == 0 {
		p, err = codec.Append(mem[:0], v)
	} else {
		p, err = appendOwn(b, mem[:0], *v, own[0])
	}
	if err == nil && (len(p) == 0 || &p[0] == &mem[0] && len(p) <= len(mem)) {
		if err = b.Resize(len(p)); err == nil {
			return b, nil
		}
	}
	b.Release()
	if err != nil {
		return nil, err
	}
	// The payload is longer than the guess.
	if b, err = c.disp.BufferWait(ctx, len(p)); err != nil {
		return nil, err
	}
	copy(b.Bytes(), p)
	c.disp.CountCopy(len(p))
	return b, nil
}

// appendOwn appends v to p with a codec of the program. p lies in b. If the codec panics, appendOwn
// releases b.
func appendOwn[T any](b *buffers.Buffer, p []byte, v T, c codec.Codec[T]) (out []byte, err error) {
	done := false
	defer func() {
		if !done {
			b.Release()
		}
	}()
	out, err = c.Append(p, v)
	done = true
	return out, err
}
