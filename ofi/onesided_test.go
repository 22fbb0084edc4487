// SPDX-License-Identifier: Apache-2.0

package ofi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/ofi"
)

// overOneSided is overEach without the providers over which no memory is exposed.
func overOneSided(t *testing.T, f func(t *testing.T, provider string)) {
	overEach(t, func(t *testing.T, provider string) {
		if provider == "udp;ofi_rxd" {
			t.Skip("it has no one-sided transfers")
		}
		f(t, provider)
	})
}

// endpoints returns the endpoints of two contexts that have no other transport.
func endpoints(t testing.TB, provider string, more ...rocl.Option) (origin, target *bulk.Endpoint) {
	t.Helper()
	ctx := eventually.Context(t)
	opts := append(more, rocl.WithSocket(filepath.Join(t.TempDir(), "s")), rocl.WithTransports(ofi.New(provider, ofi.WithShm())))
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
	overOneSided(t, func(t *testing.T, provider string) {
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

// The library alone drives the provider of the origin: no goroutine of its program is in a call of
// the library.
//
// Promise (Transports): Over package `ofi`, reads and writes of exposed memory go on while no
// goroutine of the origin's program calls the library.
func TestOriginDoesNothing(t *testing.T) {
	overOneSided(t, func(t *testing.T, provider string) {
		ctx := eventually.Context(t)
		opts := []rocl.Option{rocl.WithSocket(filepath.Join(t.TempDir(), "s")), rocl.WithTransports(ofi.New(provider, ofi.WithShm()))}
		a, b := try.Get(rocl.Open(ctx, opts...))(t), try.Get(rocl.Open(ctx, opts...))(t)
		defer func() { try.Check(t, errors.Join(a.Close(), b.Close())) }()
		from, to := try.Get(a.Register(ctx, nil))(t), try.Get(b.Register(ctx, nil))(t)
		try.OK(t, from.SendBytes(ctx, to.ID(), 1, nil)) // makes the connection
		try.OK(t, from.Flush(ctx))
		mem := counting(300_000, 1)
		x := try.Get(b.ExposeMemory(mem, true, true))(t)
		defer x.Close()
		m := try.Get(a.RemoteMemory(b.ID(), x.Key()))(t)
		got := make([]byte, len(mem))
		for i := range 20 {
			try.OK(t, m.Read(ctx, 0, got))
			if !bytes.Equal(got, mem) {
				t.Fatal("wrong bytes")
			}
			want := counting(len(mem), i)
			try.OK(t, m.Write(context.Background(), 0, want))
			if !bytes.Equal(mem, want) {
				t.Fatal("wrong bytes were written")
			}
		}
		try.Rejects(m.Read(ctx, int64(len(mem)), got[:1]))(t)
		try.OK(t, m.Close(ctx))
		try.Fails(m.Read(ctx, 0, got))(t, rocl.ErrClosed)
	})
}

// A region is revoked while several goroutines of a target access it. The connection stays.
func TestRevokeWhileAccessed(t *testing.T) {
	overOneSided(t, func(t *testing.T, provider string) {
		ctx := eventually.Context(t)
		origin, target := endpoints(t, provider)
		for range 3 {
			r := try.Get(origin.Expose(bulk.ReadWrite, bulk.Bytes(make([]byte, 200_000))))(t)
			h := r.Handle()
			warm(t, target, h)
			var busy sync.WaitGroup
			for i := range 4 {
				busy.Go(func() {
					p := make([]byte, 200_000)
					for err := error(nil); err == nil; {
						if i%2 == 0 {
							_, err = target.Pull(ctx, h, 0, p)
						} else {
							_, err = target.Push(ctx, h, 0, p)
						}
						if err != nil && !errors.Is(err, bulk.ErrRevoked) {
							t.Error(err)
						}
					}
				})
			}
			begun := target.Stats().OneSided
			eventually.True(t, "accesses", func() bool { return target.Stats().OneSided > begun+20 })
			try.OK(t, r.Revoke(ctx))
			busy.Wait()
		}
	})
}

// An origin that is killed at any moment, or stopped, is no worse than over messages.
func TestKilledOrigin(t *testing.T) {
	overOneSided(t, func(t *testing.T, provider string) {
		if provider == "shm" {
			t.Skip("it may wait forever for a killed process: see WithShm")
		}
		ctx := eventually.Context(t)
		socket := filepath.Join(t.TempDir(), "s")
		c := try.Get(rocl.Open(ctx, rocl.WithSocket(socket), rocl.WithTransports(ofi.New(provider))))(t)
		target := try.Get(bulk.Open(ctx, c))(t)
		defer func() { try.Check(t, errors.Join(target.Close(ctx), c.Close())) }()
		for i := range 3 {
			cmd := subprocess.Self()
			cmd.Env = append(os.Environ(), "ROCL_OFI_ORIGIN="+socket, "ROCL_OFI_PROVIDER="+provider)
			p := try.Get(subprocess.Start(cmd))(t)
			var h bulk.Handle
			try.OK(t, h.UnmarshalText([]byte(try.Get(p.Line(ctx))(t))))
			mem := make([]byte, h.Len())
			if i > 0 {
				warm(t, target, h)
			}
			if i == 1 {
				p.Signal(posix.SIGSTOP)
				for err := error(nil); err == nil; { // until the signal has arrived
					soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
					if _, err = target.Pull(soon, h, 0, mem); err != nil {
						try.Fails(err)(t, context.DeadlineExceeded)
					}
					cancel()
				}
				p.Signal(posix.SIGCONT)
				try.Get(target.Pull(ctx, h, 0, mem))(t)
			}
			var busy sync.WaitGroup
			begun := target.Stats().OneSided
			for k := range 3 {
				busy.Go(func() {
					for err, mem := error(nil), make([]byte, h.Len()); err == nil; {
						switch k {
						case 0:
							_, err = target.Pull(ctx, h, 0, mem)
						case 1:
							_, err = target.Pull(context.Background(), h, 0, mem)
						default:
							_, err = target.Push(ctx, h, 0, mem)
						}
						if err != nil && !errors.Is(err, rocl.ErrGone) {
							t.Error(err)
						}
					}
				})
			}
			eventually.True(t, "accesses", func() bool { return target.Stats().OneSided > begun+10 })
			p.Kill()
			busy.Wait()
		}
	})
}

// expose is an origin until the process is killed.
func expose(provider, socket string) {
	c := must(rocl.Open(context.Background(), rocl.WithSocket(socket), rocl.WithTransports(ofi.New(provider, ofi.WithShm()))))
	ep := must(bulk.Open(context.Background(), c))
	r := must(ep.Expose(bulk.ReadWrite, bulk.Bytes(make([]byte, 1<<20))))
	fmt.Printf("%s\n", must(r.Handle().MarshalText()))
	select {}
}
