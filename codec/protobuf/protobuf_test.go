// SPDX-License-Identifier: Apache-2.0

package protobuf_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/codec/protobuf"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

func TestCodec(t *testing.T) {
	c := protobuf.Codec[structpb.Struct]()
	in := try.Get(structpb.NewStruct(map[string]any{"a": 1.5, "b": []any{"x", nil}}))(t)
	head := []byte("head")
	p, err := c.Append(head, in)
	if err != nil || string(p[:4]) != "head" {
		t.Fatalf("%q, %v", p, err)
	}
	out, err := c.Decode(p[4:])
	if err != nil || !proto.Equal(in, out) {
		t.Errorf("%v, %v", out, err)
	}
	for i := range p[4:] {
		p[4+i] = 0xff // out shares nothing with it
	}
	if !proto.Equal(in, out) {
		t.Errorf("the value refers to the payload: %v", out)
	}
	try.Fails(c.Decode(p[4:]))(t, codec.ErrValue)
	s := protobuf.Codec[wrapperspb.StringValue]()
	try.Fails(s.Append(nil, wrapperspb.String("\xff")))(t, codec.ErrValue) // a string that is no UTF-8
	try.Equal(t, try.Get(s.Decode(nil))(t).GetValue(), "", "nothing")
}

// Of two versions of a message, the receiver skips the fields that it lacks, also in a call. An
// Int64Value is a Timestamp without its second field.
func TestTwoVersions(t *testing.T) {
	at := try.Get(rocl.Open(t.Context(), rocl.WithSocket(filepath.Join(t.TempDir(), "s"))))(t)
	defer at.Close()
	s := try.Get(rpc.NewServer(t.Context(), at, nil))(t)
	defer s.Close(t.Context())
	c := try.Get(rpc.NewClient(t.Context(), at))(t)
	defer c.Close()
	older, newer := protobuf.Codec[wrapperspb.Int64Value](), protobuf.Codec[timestamppb.Timestamp]()
	try.OK(t,
		errors.Join(rpc.Register(s, "old", func(_ context.Context, v *wrapperspb.Int64Value) (int64, error) { return v.Value, nil }, rpc.WithCodecs[*wrapperspb.Int64Value, int64](older, nil)),
			rpc.Register(s, "new", func(_ context.Context, v *timestamppb.Timestamp) (int64, error) {
				return v.Seconds + int64(v.Nanos), nil
			}, rpc.WithCodecs[*timestamppb.Timestamp, int64](newer, nil)),
		))
	try.Gives(rpc.Call[*timestamppb.Timestamp, int64](t.Context(), c, s.ID(), "old", &timestamppb.Timestamp{Seconds: 5, Nanos: 7}, rpc.WithCodecs[*timestamppb.Timestamp, int64](newer, nil)))(t, 5)
	try.Gives(rpc.Call[*wrapperspb.Int64Value, int64](t.Context(), c, s.ID(), "new", wrapperspb.Int64(5), rpc.WithCodecs[*wrapperspb.Int64Value, int64](older, nil)))(t, 5)
}
