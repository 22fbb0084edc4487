// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A message that is put back is peeked at and received as if it had not been received before.
func TestPutBack(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		from, to, other := newResource(t, a, nil), newResource(t, b, nil), newResource(t, b, nil)
		send(t, from, to.ID(), "first")
		send(t, from, to.ID(), "second")
		m := recv(t, to)
		if err := other.PutBack(m); !errors.Is(err, dispatch.ErrNotReceived) || !strings.Contains(err.Error(), other.ID().String()) {
			t.Errorf("put back elsewhere: %v", err)
		}
		tag := m.Tag()
		try.OK(t, to.PutBack(m))
		if e, err := to.Peek(); err != nil || e != (dispatch.Envelope{From: from.ID(), Tag: tag, Len: len("first")}) {
			t.Errorf("peek: %+v, %v", e, err)
		}
		expect(t, to, "first")
		if m = recv(t, to); string(m.Bytes()) != "second" {
			t.Fatalf("%q", m.Bytes())
		}
		try.OK(t, to.Close())
		try.Fails(to.PutBack(m))(t, dispatch.ErrClosed, "put back at a closed resource")
		m.Release()
	})
}

// RecvAny returns a message and the resource that received it. Its errors name the resource.
func TestRecvAny(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		from := newResource(t, a, nil)
		rs := []*rocl.Resource{newResource(t, b, nil), newResource(t, b, nil), newResource(t, b, nil)}
		for _, to := range rs {
			send(t, from, to.ID(), "hello")
			r, m, err := rocl.RecvAny(bg, rs, dispatch.From(from.ID()))
			if err != nil || r != to {
				t.Fatal(r, err)
			}
			m.Release()
		}
		for name, rs := range map[string][]*rocl.Resource{"none": nil, "several contexts": {rs[0], from}, "nil": {rs[0], nil}} {
			if r, m, err := rocl.RecvAny(bg, rs); r != nil || m != nil || !errors.Is(err, dispatch.ErrSelect) {
				t.Errorf("%s: %v, %v", name, r, err)
			}
		}
		try.OK(t, rs[1].Close())
		r, _, err := rocl.RecvAny(bg, rs)
		if r != rs[1] || !errors.Is(err, dispatch.ErrClosed) || !strings.Contains(err.Error(), rs[1].ID().String()) {
			t.Errorf("a closed resource: %v, %v", r, err)
		}
	})
}
