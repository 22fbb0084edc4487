// SPDX-License-Identifier: Apache-2.0

package context_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/dispatch"
)

// A message that is put back is peeked at and received as if it had not been received before.
func TestPutBack(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...context.Option) *context.Context) {
		a, b := open(), open()
		from, to, other := register(t, a, nil), register(t, b, nil), register(t, b, nil)
		send(t, from, to.ID(), "first")
		send(t, from, to.ID(), "second")
		m := recv(t, to)
		if err := other.PutBack(m); !errors.Is(err, dispatch.ErrNotReceived) || !strings.Contains(err.Error(), other.ID().String()) {
			t.Errorf("put back elsewhere: %v", err)
		}
		tag := m.Tag()
		must(t, to.PutBack(m))
		if e, err := to.Peek(); err != nil || e != (dispatch.Envelope{From: from.ID(), Tag: tag, Len: len("first")}) {
			t.Errorf("peek: %+v, %v", e, err)
		}
		expect(t, to, "first")
		if m = recv(t, to); string(m.Bytes()) != "second" {
			t.Fatalf("%q", m.Bytes())
		}
		must(t, to.Close())
		fails(t, to.PutBack(m), dispatch.ErrClosed, "put back at a closed resource")
		m.Release()
	})
}

// RecvAny returns a message and the resource that received it. Its errors name the resource.
func TestRecvAny(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...context.Option) *context.Context) {
		a, b := open(), open()
		from := register(t, a, nil)
		rs := []*context.Resource{register(t, b, nil), register(t, b, nil), register(t, b, nil)}
		for _, to := range rs {
			send(t, from, to.ID(), "hello")
			r, m, err := context.RecvAny(bg, rs, dispatch.From(from.ID()))
			if err != nil || r != to {
				t.Fatal(r, err)
			}
			m.Release()
		}
		for name, rs := range map[string][]*context.Resource{"none": nil, "several contexts": {rs[0], from}, "nil": {rs[0], nil}} {
			if r, m, err := context.RecvAny(bg, rs); r != nil || m != nil || !errors.Is(err, dispatch.ErrSelect) {
				t.Errorf("%s: %v, %v", name, r, err)
			}
		}
		must(t, rs[1].Close())
		r, _, err := context.RecvAny(bg, rs)
		if r != rs[1] || !errors.Is(err, dispatch.ErrClosed) || !strings.Contains(err.Error(), rs[1].ID().String()) {
			t.Errorf("a closed resource: %v, %v", r, err)
		}
	})
}
