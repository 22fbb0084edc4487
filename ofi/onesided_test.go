// SPDX-License-Identifier: Apache-2.0

package ofi_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/ofi"
)

// endpoints returns the endpoints of two contexts that have no other transport.
func endpoints(t testing.TB, provider string, more ...rocl.Option) (origin, target *bulk.Endpoint) {
	t.Helper()
	ctx := eventually.Context(t)
	opts := append(more, rocl.WithSocket(filepath.Join(t.TempDir(), "s")), rocl.WithTransports(ofi.New(provider)))
	var eps [2]*bulk.Endpoint
	for i := range eps {
		c := try.Get(rocl.Open(ctx, opts...))(t)
		eps[i] = try.Get(bulk.Open(ctx, c))(t)
		t.Cleanup(func() {
			ctx := eventually.Context(t)
			try.Check(t, errors.Join(eps[i].Close(ctx), c.Close()))
		})
	}
	return eps[0], eps[1]
}

// counting returns n bytes that differ from those of another start.
func counting(n, start int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i%251 + i>>16 + start)
	}
	return p
}

// warm makes transfers with h until the target accesses the memory itself.
func warm(t testing.TB, target *bulk.Endpoint, h bulk.Handle) {
	t.Helper()
	p := make([]byte, 1)
	for range 3 {
		if h.Rights()&bulk.ReadOnly != 0 {
			try.Get(target.Pull(eventually.Context(t), h, 0, p))(t)
		} else {
			try.Get(target.Push(eventually.Context(t), h, 0, p))(t)
		}
	}
}

// The target reads and writes a region of plain memory without a message to the origin.
func TestOneSided(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		ctx := eventually.Context(t)
		origin, target := endpoints(t, provider)
		mem := [][]byte{counting(3000, 0), counting(1<<20, 7)}
		r := try.Get(origin.Expose(bulk.ReadWrite, bulk.Bytes(mem[0]), bulk.Bytes(mem[1])))(t)
		h := r.Handle()
		warm(t, target, h)
		whole := bytes.Join(mem, nil)
		before, asked := target.Stats(), origin.Stats()
		for _, n := range []int{1, 4000, 64 << 10, len(whole)} {
			off := len(whole) - n
			got := make([]byte, n)
			try.Get(target.Pull(ctx, h, int64(off), got[:n/3], got[n/3:]))(t)
			if !bytes.Equal(got, whole[off:]) {
				t.Errorf("%d bytes are wrong", n)
			}
			want := counting(n, n)
			copy(whole[off:], want)
			try.Get(target.Push(ctx, h, int64(off), want[:n/2], want[n/2:]))(t)
			if !bytes.Equal(bytes.Join(mem, nil), whole) {
				t.Errorf("%d bytes were written wrongly", n)
			}
		}
		after := target.Stats()
		if after.Transfers != before.Transfers || after.OneSided < before.OneSided+8 || origin.Stats().Reads != asked.Reads {
			t.Errorf("%+v, then %+v, the origin %+v", before, after, origin.Stats())
		}
		try.OK(t, r.Revoke(ctx))
		try.Fails(target.Pull(ctx, h, 0, make([]byte, 10)))(t, bulk.ErrRevoked)
	})
}
