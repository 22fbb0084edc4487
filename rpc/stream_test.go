// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"iter"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A request for more results of a stream that has ended gets the error that ended the stream.
func TestNextAfterEnd(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	s := try.Get(NewServer(t.Context(), cl.Open(0), nil))(t)
	defer s.Close(context.Background())
	release := make(chan struct{})
	defer close(release)
	try.OK(t, RegisterStream(s, "one", func(context.Context, struct{}) iter.Seq2[int64, error] {
		return func(yield func(int64, error) bool) { yield(1, nil); <-release }
	}))
	c := try.Get(NewClient(t.Context(), cl.Open(0)))(t)
	defer c.Close()
	h := requestHeader{flags: flagStream}
	b := try.Get(encodeRequest(t.Context(), c, struct{}{}, &config{}, &h))(t)
	m := try.Get(c.r.Call(t.Context(), s.ID(), callID("one"), b))(t)
	m.Release()
	next := func(number uint64) error {
		var p [controlLen]byte
		putControl(p[:], number, 0)
		m := try.Get(c.r.CallBytes(t.Context(), s.ID(), tagNext, p[:]))(t)
		defer m.Release()
		status, body, err := parseReply(m.Bytes(), 0)
		try.OK(t, err)
		return c.remote("one", s.ID(), status, body)
	}
	try.Fails(next(h.number+1))(t, context.Canceled) // no such stream
	s.callers.stream(c.ID(), h.number).results.close(ErrClosed)
	try.Fails(next(h.number))(t, ErrClosed) // a stream that was closed
	s.end(ErrClosed)
	try.Fails(next(h.number+1))(t, ErrClosed) // a server that was closed
}
