// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
)

// Register makes a server answer calls of a name with f. In and Out are any types that package
// codec can encode: raw structs of numbers are copied, bytes and strings are sent as they are,
// other types as CBOR. [WithCodecs] sets formats of the program's own. If the types of server and
// caller do not fit, the call fails with rocl.ErrValue.
//
// ctx belongs to f until f returns. It ends with the caller's deadline, when the caller cancels or
// its process ends, and when Close of the server stops waiting. The result of f is encoded at once,
// so f may not change it afterwards. An error of f goes to the caller as an [Error]. A panic of f
// ends only this call, with ErrPanic, and its stack goes to the server's log.
//
// Register fails with ErrExists if the name is registered, with ErrCollision if another name has
// the same 64-bit identifier, and with ErrClosed after Close.
func Register[In, Out any](s *Server, name string, f func(ctx context.Context, in In) (Out, error), opts ...Option) error {
	if f == nil {
		return fmt.Errorf("rpc: register %q: no function", name)
	}
	cfg := newConfig(opts)
	in, out := formatOf[In](cfg.in), formatOf[Out](cfg.out)
	m := newMethod[In, Out](s, name, FormCall, &cfg)
	m.serve = func(r *request) (*rocl.Buffer, error) {
		in, out := formatFor(r, in), formatFor(r, out)
		arg, err := in.decode(r.args)
		if err = r.decoded(err); err != nil {
			return nil, err
		}
		var result Out
		if len(r.s.around) == 0 {
			result, err = f(r.ctx, arg)
		} else {
			result, err = serveAround(r, f, arg)
		}
		if err != nil {
			return nil, err
		}
		return replyWith(r, out, result)
	}
	return s.register(m)
}

// newMethod returns a method without its function serve.
func newMethod[In, Out any](s *Server, name string, f Form, cfg *config) *method {
	return &method{s: s, name: name, executor: cfg.executor, stats: new(methodStats), form: f, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out]()}
}

// replyWith returns the reply with the result of a handler, as method.serve does.
func replyWith[Out any](r *request, out format[Out], result Out) (*rocl.Buffer, error) {
	if !r.wantsReply() {
		return nil, nil
	}
	if r.nested != nil {
		var err error
		r.nested.result, err = out.append(nil, result)
		return nil, err
	}
	b, err := out.encode(&r.s.overflow, replyHead, result)
	if err == nil && b.Len()-replyHead <= r.s.overflow.limit {
		putReply(b.Bytes(), statusResult, r.h.flags&flagChecksum)
		return b, nil
	}
	v, err := unsentOf(&r.s.overflow, out, replyHead, result, b, err)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the result of %q: %w", r.method.name, err)
	case r.method.executor.isReceiver(): // the receiving goroutine does not wait
		r.toExpose = v
		return nil, nil
	}
	return r.resultElsewhere(v)
}

// serveAround runs f through the interceptors of the server.
func serveAround[In, Out any](r *request, f func(context.Context, In) (Out, error), in In) (out Out, err error) {
	err = intercept(r.ctx, r.s.around, &Invocation{Info: r.ctx.info, In: &in, Out: &out}, func(ctx context.Context) (err error) {
		out, err = f(ctx, in)
		return err
	})
	return out, err
}

// A format encodes and decodes values of one type: with the codec of the program, or, if own is
// nil, with package codec.
type format[T any] struct{ own rocl.Codec[T] }

func formatOf[T any](own any) format[T] {
	c, _ := own.(rocl.Codec[T])
	return format[T]{c}
}

// formatFor returns the format of a value of r, which is JSON if the caller asks for it.
func formatFor[T any](r *request, f format[T]) format[T] {
	if r.h.flags&flagJSON != 0 {
		return format[T]{asJSON[T]{}}
	}
	return f
}

func (f format[T]) decode(p []byte) (v T, err error) {
	if f.own != nil {
		return f.own.Decode(p)
	}
	err = codec.Decode(p, &v)
	return v, err
}

// encode returns a buffer with the encoding of v after head free bytes. head must be at least 8. It
// does not wait. It fails with rocl.ErrTooLarge if v is to be elsewhere, and is not in the
// context's memory yet.
func (f format[T]) encode(o *overflow, head int, v T) (*rocl.Buffer, error) {
	size := 512 // a guess
	if f.own == nil {
		size = codec.Size(&v)
	}
	b, err := o.buffer(head + size)
	if errors.Is(err, errEnded) && size <= o.limit {
		var p []byte
		if p, err = f.appendAfter(make([]byte, head, head+size), v); err == nil {
			return o.lend(p, head)
		}
	}
	if errors.Is(err, errEnded) {
		err = fmt.Errorf("%w: %d bytes", rocl.ErrTooLarge, size)
	}
	if err != nil {
		return nil, err
	}
	isKept := false
	defer func() {
		if !isKept { // runs also if a codec of the program panics
			b.Release()
		}
	}()
	mem := b.Bytes()
	p, err := f.appendAfter(mem[:head], v)
	if err != nil {
		return nil, err
	}
	if &p[0] == &mem[0] {
		if isKept = true; len(p) == len(mem) {
			return b, nil
		}
		return b, b.Resize(len(p))
	}
	larger, err := o.buffer(len(p)) // the guess was too low
	if errors.Is(err, errEnded) {
		return o.lend(p, head)
	}
	if err == nil {
		copy(larger.Bytes(), p)
	}
	return larger, err
}

// appendMark is in the place of the header while a codec appends a value. It shows that the codec
// has kept the bytes before its own.
const appendMark = "append!!"

// appendAfter appends v to the free bytes in head, and checks that its codec has kept them.
func (f format[T]) appendAfter(head []byte, v T) ([]byte, error) {
	if f.own == nil {
		return codec.Append(head, &v)
	}
	copy(head, appendMark)
	p, err := f.own.Append(head, v)
	if err == nil && (len(p) < len(head) || string(p[:len(appendMark)]) != appendMark) {
		err = fmt.Errorf("%w: the codec has not appended to the bytes that it was given", codec.ErrValue)
	}
	return p, err
}

func (f format[T]) append(p []byte, v T) ([]byte, error) {
	if f.own != nil {
		return f.own.Append(p, v)
	}
	return codec.Append(p, &v)
}
