// SPDX-License-Identifier: Apache-2.0

package bulk_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/simnet"
)

// pair returns an origin and a target on two hosts of a network in memory, whose transport is
// one-sided.
func pair(t *testing.T, opts ...bulk.Option) (breakAll func(), origin, target side) {
	cl, n := rocltest.Cluster(t, 1), simnet.New(1)
	var hosts [2]*simnet.Host
	var sides [2]side
	for i := range sides {
		hosts[i] = n.AddHost("")
		sides[i] = endpoint(t, cl.Open(0, rocl.WithTransports(hosts[i].Start().Transport())), opts...)
	}
	breakAll = func() { n.Break(hosts[0], hosts[1], 0); n.Break(hosts[1], hosts[0], 0) }
	return breakAll, sides[0], sides[1]
}

// accessed makes transfers with h until the target accesses the memory itself.
func accessed(t *testing.T, target side, h bulk.Handle) {
	t.Helper()
	p := make([]byte, 1)
	for begun := target.Stats().OneSided; target.Stats().OneSided == begun; {
		if h.Rights()&bulk.ReadOnly != 0 {
			try.Get(target.Pull(deadline(t), h, 0, p))(t)
		} else {
			try.Get(target.Push(deadline(t), h, 0, p))(t)
		}
	}
}

// The second transfer with a handle asks for keys, and a large first one does. Later ones need no
// request, over several segments too. Each handle has keys of its own.
//
// Promise (Package bulk): Over a transport that accesses remote memory, Pull and Push of a handle
// used before send no message, and the origin's program does nothing.
func TestOneSided(t *testing.T) {
	_, origin, target := pair(t)
	mem := [][]byte{counting(10_000), make([]byte, 3), counting(3 << 20)}
	r := expose(t, origin, bulk.ReadWrite, bulk.Bytes(mem[0]), bulk.Bytes(nil), bulk.Bytes(mem[1]), bulk.Bytes(mem[2]))
	accessed(t, target, r.Handle())
	before, served := target.Stats(), origin.Stats()
	want := bytes.Join(mem, nil)
	pulls(t, target, r.Handle(), 5, want[5:])
	cancellable, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make([]byte, len(want))
	try.Get(target.Pull(cancellable, r.Handle(), 0, got[:7], nil, got[7:9999], got[9999:]))(t)
	if !bytes.Equal(got, want) {
		t.Error("wrong bytes in three slices")
	}
	src := counting(len(want))
	try.Get(target.Push(cancellable, r.Handle(), 0, src[:20_000], nil, src[20_000:]))(t)
	if !bytes.Equal(bytes.Join(mem, nil), src) {
		t.Error("wrong bytes were pushed")
	}
	if s := target.Stats(); s.Transfers != before.Transfers || s.OneSided < before.OneSided+3 || origin.Stats() != served {
		t.Errorf("%+v, then %+v; the origin %+v, then %+v", before, s, served, origin.Stats())
	}
	part := try.Get(r.Handle().Slice(9_000, 2<<20))(t)
	pulls(t, target, part, 0, src[9_000:][:2<<20])
	if s := target.Stats(); s.Transfers != before.Transfers+1 {
		t.Errorf("%d requests for keys of a part", s.Transfers-before.Transfers)
	}
	ro := try.Get(part.Narrow(bulk.ReadOnly))(t)
	accessed(t, target, ro)
	try.Fails(bulk.AskWrite(deadline(t), target.Endpoint, ro, 0, []byte{1}))(t, bulk.ErrRights)
}

// Revoke waits until the target's operations have ended, also those that the target has cancelled.
// Then the origin's memory is not accessed any more.
func TestRevokeOneSided(t *testing.T) {
	_, origin, target := pair(t)
	mem := make([]byte, 100_000)
	r := expose(t, origin, bulk.WriteOnly, bulk.Bytes(mem))
	accessed(t, target, r.Handle())
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		p := target.StartPush(ctx, r.Handle(), 0, bytes.Repeat([]byte{byte(i + 1)}, len(mem)))
		if i%2 == 0 {
			cancel()
		}
		if _, err := p.Wait(deadline(t)); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		cancel()
	}
	try.OK(t, r.Revoke(deadline(t)))
	was := bytes.Clone(mem) // the race detector notices a later write
	for range 3 {
		try.Fails(target.Push(deadline(t), r.Handle(), 0, make([]byte, len(mem))))(t, bulk.ErrRevoked)
	}
	if !bytes.Equal(mem, was) {
		t.Error("the memory was written after Revoke")
	}
	released := expose(t, origin, bulk.ReadOnly, bulk.Bytes(mem))
	accessed(t, target, released.Handle())
	released.Release()
	eventually.True(t, "the region is free", func() bool { return origin.Retired() == 0 })
	try.Fails(target.Pull(deadline(t), released.Handle(), 0, make([]byte, 1)))(t, bulk.ErrRevoked)
}

// A connection that breaks lets transfers go on by messages.
func TestOneSidedBroken(t *testing.T) {
	breakAll, origin, target := pair(t)
	mem := counting(1 << 20)
	r := expose(t, origin, bulk.ReadWrite, bulk.Bytes(mem))
	accessed(t, target, r.Handle())
	for range 3 {
		breakAll()
		pulls(t, target, r.Handle(), 0, mem)
		breakAll()
		try.Get(target.Push(deadline(t), r.Handle(), 0, mem))(t)
	}
}
