// SPDX-License-Identifier: Apache-2.0

// Package protobuf encodes values as Protocol Buffers, for programs whose messages have that format
// already.
//
//	err := rpc.Register(s, "find", find, rpc.WithCodecs(protobuf.Codec[pb.Query](), protobuf.Codec[pb.Answer]()))
//	err = rocl.SendValue(ctx, me, to, tag, query, protobuf.Codec[pb.Query]())
//
// The values are pointers to the generated types, such as *pb.Query.
package protobuf

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/rocl-go/rocl/codec"
)

// A Message is a pointer to a generated type.
type Message[T any] interface {
	*T
	proto.Message
}

// Codec returns the codec of a generated type. Decoded values share no memory with the payload. The
// error for a payload that is not a message of the type matches codec.ErrValue. Fields that the
// type lacks are kept, as usual for Protocol Buffers.
func Codec[T any, M Message[T]]() codec.Codec[M] { return format[T, M]{} }

type format[T any, M Message[T]] struct{}

func (format[T, M]) Append(p []byte, v M) ([]byte, error) {
	p, err := proto.MarshalOptions{}.MarshalAppend(p, v)
	if err != nil {
		return nil, fmt.Errorf("%w: encode %T: %w", codec.ErrValue, v, err)
	}
	return p, nil
}

func (format[T, M]) Decode(p []byte) (M, error) {
	v := M(new(T))
	if err := proto.Unmarshal(p, v); err != nil {
		return nil, fmt.Errorf("%w: decode %T: %w", codec.ErrValue, v, err)
	}
	return v, nil
}
