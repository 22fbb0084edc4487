// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A server refuses requests whose arguments are not in the memory that they name, whatever length
// they claim, and continues.
//
// A server refuses arguments that are not in the memory that the request
// names.
func TestElsewhereForged(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	s := try.Get(NewServer(t.Context(), cl.Open(0, rocltest.TCP()), nil))(t)
	defer s.Close(context.Background())
	try.OK(t, Register(s, "echo", func(_ context.Context, p []byte) ([]byte, error) { return p, nil }))
	c := try.Get(NewClient(t.Context(), cl.Open(0, rocltest.TCP())))(t)
	defer c.Close()
	ep := try.Get(bulk.Open(t.Context(), c.c))(t)
	defer ep.Close(context.Background())
	region := try.Get(ep.Expose(bulk.ReadWrite, bulk.Bytes([]byte("arguments"))))(t)
	good := elsewhere{Memory: region.Handle()}
	encode := func(e elsewhere) []byte {
		return try.Get(codec.Append(nil, &e))(t)
	}
	// claim returns a handle of that memory which names more bytes.
	claim := func(n uint64) []byte {
		for i := range encode(good) {
			p := encode(good)
			binary.LittleEndian.PutUint64(p[i:], n)
			var e elsewhere
			if err := codec.Decode(p, &e); err == nil && e.Memory.Origin() == good.Memory.Origin() && e.Memory.Len() == int64(n) {
				return p
			}
		}
		t.Fatal("the length was not found")
		return nil
	}
	revoked := try.Get(ep.Expose(bulk.ReadOnly, bulk.Bytes(make([]byte, 10))))(t)
	gone := elsewhere{Memory: revoked.Handle()}
	revoked.Release()
	for _, test := range []struct {
		what  string
		args  []byte
		flags byte
		want  error
	}{
		{"as it should be", encode(good), 0, nil},
		{"nothing", nil, 0, ErrProtocol},
		{"half a handle", encode(good)[:40], 0, ErrProtocol},
		{"the zero handle", encode(elsewhere{}), 0, ErrProtocol},
		{"memory that was given back", encode(gone), 0, bulk.ErrRevoked},
		{"a wrong checksum", encode(good), flagChecksum, ErrChecksum},
		{"2 GiB", claim(2 << 30), 0, bulk.ErrKey},
		{"nearly all that 64 bits have", claim(math.MaxInt64), 0, bulk.ErrKey},
		{"a negative length", claim(math.MaxUint64), 0, ErrProtocol},
	} {
		h := requestHeader{flags: flagElsewhere | test.flags, number: c.numbers.Add(1)}
		p := append(make([]byte, requestHead), test.args...)
		h.put(p)
		m, err := c.r.CallBytes(t.Context(), s.ID(), callID("echo"), p)
		if err != nil {
			t.Fatal(test.what, err)
		}
		status, body, err := parseReply(m.Bytes(), 0)
		if err == nil && status != statusResult {
			err = c.remote("echo", s.ID(), status, body)
		}
		var e *Error
		if test.want == nil && (err != nil || string(body) != "arguments") || test.want != nil && (!errors.Is(err, test.want) || !errors.As(err, &e) || e.Ran) {
			t.Errorf("%s: %v", test.what, err)
		}
		m.Release()
	}
	try.Equal(t, string(try.Get(Call[[]byte, []byte](t.Context(), c, s.ID(), "echo", []byte("more")))(t)), "more")
}

// A server holds a result until the caller reports that it has it, or the call ends in another way.
//
// A large result is held until its call has ended, and no longer. See also
// TestDamagedReplyReleasesResult.
func TestElsewhereHeld(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	at := cl.Open(0)
	var s *Server
	serve := func() {
		s = try.Get(NewServer(t.Context(), at, nil, WithOverflow(0)))(t)
		try.OK(t, Register(s, "echo", func(_ context.Context, p []byte) ([]byte, error) { return p, nil }))
	}
	for what, end := range map[string]func(c *Client, number uint64) error{
		"the caller has the result": func(c *Client, number uint64) error { c.tell(s.ID(), tagReceipt, number, 0); return nil },
		"the caller cancels":        func(c *Client, number uint64) error { c.tell(s.ID(), tagCancel, number, whyCancelled); return nil },
		"the caller closes":         func(c *Client, _ uint64) error { return c.Close() },
		"the caller's context ends": func(c *Client, _ uint64) error { return c.c.Close() },
		"the server gives up": func(*Client, uint64) error {
			if err := s.Close(ended); !errors.Is(err, errEnded) {
				return err
			}
			return nil
		},
	} {
		for _, isNumbered := range []bool{false, true} {
			if !isNumbered && what == "the caller cancels" { // it cannot
				continue
			}
			serve()
			c := try.Get(NewClient(t.Context(), cl.Open(0)))(t)
			var h requestHeader
			if isNumbered {
				h.number = 1
			}
			p := append(make([]byte, requestHead), "argument"...)
			h.put(p)
			m := try.Get(c.r.CallBytes(t.Context(), s.ID(), callID("echo"), p))(t)
			var where elsewhere
			if err := codec.Decode(m.Bytes()[replyHead:], &where); err != nil || where.Number == 0 || s.Moves().Regions != 1 {
				t.Errorf("%s: %+v, %v, %d regions", what, where, err, s.Moves().Regions)
			}
			m.Release()
			try.Check(t, end(c, where.Number), "%v", what)
			eventually.True(t, what+": the server holds no result", func() bool { return s.Moves().Regions == 0 })
			try.Check(t, s.Close(context.Background()), "%v", what)
			_ = c.Close()
		}
	}
}

// A server holds a result no longer when its caller got a damaged reply, and so does not know where
// the result is.
func TestDamagedReplyReleasesResult(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	s := try.Get(NewServer(t.Context(), cl.Open(0), nil, WithOverflow(0)))(t)
	defer s.Close(context.Background())
	try.OK(t, Register(s, "echo", func(_ context.Context, p []byte) ([]byte, error) { return p, nil }))
	c := try.Get(NewClient(t.Context(), cl.Open(0)))(t)
	defer c.Close()
	for what, test := range map[string]struct {
		ctx    context.Context
		config config
		damage func(p []byte)
		want   error
	}{
		"its checksum":                 {context.Background(), config{checksum: true}, func(p []byte) { p[4]++ }, ErrChecksum},
		"its header":                   {context.Background(), config{checksum: true}, func(p []byte) { p[0]++ }, ErrProtocol},
		"where the result is":          {context.Background(), config{checksum: true}, func(p []byte) { p[replyHead]++ }, ErrChecksum},
		"its header, without checksum": {t.Context(), config{}, func(p []byte) { p[0]++ }, ErrProtocol},
		"all, without checksum":        {t.Context(), config{}, func(p []byte) { clear(p[replyHead:]) }, ErrProtocol},
	} {
		var h requestHeader
		b := try.Get(encodeRequest(test.ctx, c, []byte("argument"), &test.config, &h))(t)
		m := try.Get(c.r.Call(test.ctx, s.ID(), callID("echo"), b))(t)
		if n := s.Moves().Regions; n != 1 {
			t.Errorf("%s: the server holds %d results", what, n)
		}
		test.damage(m.Bytes())
		try.Fails(result[[]byte](test.ctx, c, s.ID(), "echo", m, h.number, h.flags, nil, nil))(t, test.want, "%s", what)
		eventually.True(t, what+": the server holds no result", func() bool { return s.Moves().Regions == 0 })
	}
}
