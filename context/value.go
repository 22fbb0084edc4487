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
// [Resource.Send] sends a buffer. The receiver can select the message by its tag, and calls [Value]
// with the same T. T alone decides the format; package codec has the table. With a codec c, of
// which at most one may be given, the payload is what that codec appends.
//
// SendValue waits, until ctx ends, for memory, as [Context.BufferWait] does, and for credit. It
// fails with rocl.ErrValue if values of T, or v, cannot be encoded, with the error of the codec c,
// and otherwise as BufferWait and Send do. The caller may change what v refers to as soon as
// SendValue returns.
func SendValue[T any](ctx stdctx.Context, r *Resource, to resource.GID, tag uint64, v T, c ...codec.Codec[T]) error {
	b, err := encode(ctx, r.c, &v, c)
	if err != nil {
		return fmt.Errorf("rocl: sending a value to %v: %w", to, err)
	}
	if err := r.Send(ctx, to, tag, b); err != nil {
		b.Release()
		return err
	}
	return nil
}

// EncodeValue returns a buffer of the context c with the payload that [SendValue] would send. It is
// for methods that take a buffer, such as [Resource.Call], [Resource.Reply] and [Resource.SendAll].
// The receiver of the message calls [Value]. The caller owns the buffer. EncodeValue waits for
// memory until ctx ends, and fails as SendValue does before it sends.
func EncodeValue[T any](ctx stdctx.Context, c *Context, v T, own ...codec.Codec[T]) (*buffers.Buffer, error) {
	b, err := encode(ctx, c, &v, own)
	if err != nil {
		return nil, fmt.Errorf("rocl: encoding a value: %w", err)
	}
	return b, nil
}

// Value returns the value that a message from [SendValue] has as its payload. T, and the codec if
// one was given, must be those of the sender. The value shares no memory with the message, which
// stays the caller's to release.
//
// Value fails with rocl.ErrValue if the payload is not a value of type T: it was sent as another
// type, or is too short or too long. With a codec it fails with the error of the codec.
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
		return none, fmt.Errorf("rocl: the value of a message from %v with tag %d: %w", m.From(), m.Tag(), err)
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
