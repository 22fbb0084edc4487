// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/shm"
)

// A chain is three contexts that reach each other over shared memory only, and have exchanged
// messages.
type chain struct {
	t         testing.TB
	nodes     [3]*lib.Context
	resources [3]*lib.Resource
}

func newChain(t testing.TB) *chain {
	cl := rocltest.Cluster(t, 1)
	c := &chain{t: t}
	for i := range c.nodes {
		c.nodes[i] = cl.Open(0, lib.WithTransports(shm.New()))
		r := got(c.nodes[i].Register(context.Background(), nil))(t)
		c.resources[i] = r
	}
	for from := range c.nodes {
		for to := range c.nodes {
			if from != to {
				c.own(from, to, 1).Release()
			}
		}
	}
	return c
}

// own sends a buffer of the sender's own from one context to another, which receives it.
func (c *chain) own(from, to, size int) *lib.Message {
	b := got(c.nodes[from].Buffer(size))(c.t)
	b.Bytes()[0], b.Bytes()[size-1] = 1, 2
	return c.send(from, to, b)
}

func (c *chain) send(from, to int, b *lib.Buffer) *lib.Message {
	ctx := context.Background()
	must(c.t, c.resources[from].Send(ctx, c.resources[to].ID(), 0, b))
	m := got(c.resources[to].Recv(ctx))(c.t)
	return m
}

// copied returns how many bytes all contexts have copied.
func (c *chain) copied() (n uint64) {
	for _, of := range c.nodes {
		n += of.Stats().CopiedBytes
	}
	return n
}

// A received message and a slice of it are sent on over shared memory without a copy. So is a
// message that is sent back.
func TestForwardWithoutCopy(t *testing.T) {
	const size = 1 << 20
	c := newChain(t)
	before := c.copied()
	for range 50 {
		first := c.own(0, 1, size)
		second := c.send(1, 2, first.Buffer())
		whole := first.Buffer()
		part := c.send(1, 2, whole.Slice(size/2, size/2))
		home := c.send(1, 0, whole)
		first.Release()
		back := c.send(2, 1, second.Buffer())
		again := c.send(2, 0, part.Buffer())
		want := second.Bytes()
		for i, m := range []*lib.Message{second, part, home, back, again} {
			if got := m.Bytes(); !bytes.Equal(got, want[len(want)-len(got):]) || !m.ReadOnly() {
				t.Fatalf("message %d of %d bytes is not as it was sent, or not read-only", i, m.Len())
			}
		}
		for _, m := range []*lib.Message{part, home, back, again, second} {
			m.Release()
		}
	}
	if n := c.copied() - before; n >= size/2 {
		t.Errorf("%d bytes were copied", n)
	}
}
