// SPDX-License-Identifier: Apache-2.0

package protobuf_test

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/codec/protobuf"
)

func TestCodec(t *testing.T) {
	c := protobuf.Codec[structpb.Struct]()
	in, err := structpb.NewStruct(map[string]any{"a": 1.5, "b": []any{"x", nil}})
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := c.Decode(p[4:]); !errors.Is(err, codec.ErrValue) {
		t.Error(err)
	}
	s := protobuf.Codec[wrapperspb.StringValue]()
	if _, err := s.Append(nil, wrapperspb.String("\xff")); !errors.Is(err, codec.ErrValue) {
		t.Errorf("a string that is no UTF-8: %v", err)
	}
	if v, err := s.Decode(nil); err != nil || v.GetValue() != "" {
		t.Errorf("nothing: %v, %v", v, err)
	}
}
