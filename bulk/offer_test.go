// SPDX-License-Identifier: Apache-2.0

package bulk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// copied returns how many bytes both sides have copied so far, in messages and in transfers.
func copied(sides ...side) (n uint64) {
	for _, s := range sides {
		n += s.c.Stats().CopiedBytes + s.Stats().CopiedBytes
	}
	return n
}

// remotes returns two endpoints with a connection over TCP.
func remotes(t *testing.T, opts ...bulk.Option) (origin, target side) {
	t.Helper()
	cl := rocltest.Cluster(t, 1)
	origin = endpoint(t, cl.Open(0, transports["tcp"]...), opts...)
	target = endpoint(t, cl.Open(0, transports["tcp"]...), opts...)
	r := expose(t, origin, bulk.ReadOnly, bulk.Bytes(make([]byte, 1)))
	try.Get(target.Pull(deadline(t), r.Handle(), 0, make([]byte, 1)))(t)
	return origin, target
}

// thereAndBack pulls most of a region with n bytes in k segments to a number of slices, and pushes
// other bytes from there. around calls the transfer, a pull or a push.
func thereAndBack(t *testing.T, origin, target side, n, k, parts int, isRegistered bool, around func(what string, transfer func())) {
	t.Helper()
	mem := counting(n)
	segs, gather := segments(t, origin.c, cut(mem, k), isRegistered)
	r := expose(t, origin, bulk.ReadWrite, segs...)
	got := make([]byte, n-5)
	around("pull", func() {
		if _, err := target.Pull(deadline(t), r.Handle(), 3, cut(got, parts)...); err != nil || !bytes.Equal(got, mem[3:n-2]) {
			t.Fatal("pull: ", err)
		}
	})
	for i := range got {
		got[i] ^= 0x55
	}
	around("push", func() { try.Get(target.Push(deadline(t), r.Handle(), 4, cut(got, parts)...))(t) })
	if err := r.Revoke(deadline(t)); err != nil || !bytes.Equal(gather()[4:n-1], got) {
		t.Error("other bytes were pushed: ", err)
	}
}

// Between large segments and slices, bytes that come over TCP are copied neither by the origin nor
// by the target, in either direction. Only the ends of segments and slices are, and what a
// connection reads together with the head of a message: up to 16 KiB for each of these.
//
// Promise (Package bulk): Over TCP large segments are not copied, and small ones are copied once
// and cost no further requests. See also TestSegmentsCostNoRequests.
func TestNoCopies(t *testing.T) {
	origin, target := remotes(t)
	const n = 9<<20 + 123
	for _, k := range []int{1, 16} {
		for _, parts := range []int{1, 20} {
			for _, isRegistered := range []bool{false, true} {
				t.Run(fmt.Sprint(k, " segments, ", parts, " slices, registered ", isRegistered), func(t *testing.T) {
					most := uint64(k+parts+n>>20+1) * 16 << 10
					thereAndBack(t, origin, target, n, k, parts, isRegistered, func(what string, transfer func()) {
						before := copied(origin, target)
						transfer()
						if more := copied(origin, target) - before; more > most {
							t.Errorf("a %s copied %d bytes", what, more)
						}
					})
				})
			}
		}
	}
}

// Small segments between large ones are gathered, and only they are copied.
func TestGathersSmallSegments(t *testing.T) {
	origin, target := remotes(t)
	var mems, dst [][]byte
	n := 0
	for i := range 200 {
		size := 1 + i
		if i%50 == 0 {
			size = 300_000
		}
		mems, dst = append(mems, counting(size)), append(dst, make([]byte, size))
		n += size
	}
	segs, gather := segments(t, origin.c, mems, false)
	r := expose(t, origin, bulk.ReadOnly, segs...)
	copies, requests := copied(origin, target), target.Stats().Transfers
	if _, err := target.Pull(deadline(t), r.Handle(), 0, dst...); err != nil || !bytes.Equal(bytes.Join(dst, nil), gather()) {
		t.Fatal(err)
	}
	if more := copied(origin, target) - copies; more > 200_000 {
		t.Errorf("%d of %d bytes were copied", more, n)
	}
	if more := target.Stats().Transfers - requests; more > 20 {
		t.Errorf("%d requests", more)
	}
}

// Endpoints that serve one request at a time push to each other at the same time, many pieces each.
func TestPushToEachOther(t *testing.T) {
	const n = 4 << 20
	a, b := remotes(t, bulk.MaxRequests(1), bulk.PieceSize(100_000))
	var both sync.WaitGroup
	for _, x := range []struct{ from, to side }{{a, b}, {b, a}} {
		mem := make([]byte, n)
		r := expose(t, x.to, bulk.WriteOnly, bulk.Bytes(mem))
		both.Go(func() {
			_, err := x.from.Push(deadline(t), r.Handle(), 0, counting(n))
			if err := errors.Join(err, r.Revoke(deadline(t))); err != nil || !bytes.Equal(mem, counting(n)) {
				t.Error(err)
			}
		})
	}
	both.Wait()
}

// A push that is cancelled returns with the cause. Neither side keeps anything of it.
func TestCancelPush(t *testing.T) {
	const n = 16 << 20
	origin, target := remotes(t, bulk.PieceSize(100_000))
	r := expose(t, origin, bulk.WriteOnly, bulk.Bytes(make([]byte, n)))
	was := target.Stats().Regions
	for _, pieces := range []uint64{0, 1, 50} {
		stopped := errors.New("enough")
		ctx, cancel := context.WithCancelCause(deadline(t))
		before := target.Stats().Transfers
		tr := target.StartPush(ctx, r.Handle(), 0, counting(n))
		eventually.True(t, "pieces are pushed", func() bool { return target.Stats().Transfers-before >= pieces })
		cancel(stopped)
		if got, err := tr.Wait(deadline(t)); !errors.Is(err, stopped) && (err != nil || got != n) {
			t.Errorf("%d bytes, %v", got, err)
		}
		if got := target.Stats().Regions; got != was {
			t.Errorf("%d regions after a push, %d before", got, was)
		}
	}
	eventually.True(t, "the origin serves no request", func() bool { return origin.Stats().Serving == 0 })
	try.Check(t, r.Revoke(deadline(t)))
}

// A target that keeps no rule cannot have the origin read from others, or write what it may not.
func TestHostileOffers(t *testing.T) {
	origin, target := remotes(t)
	third := endpoint(t, target.c)
	const n = 100_000
	mem := make([]byte, n)
	r := expose(t, origin, bulk.WriteOnly, bulk.Bytes(mem))
	h := r.Handle()
	scratch := expose(t, origin, bulk.WriteOnly, bulk.Bytes(make([]byte, n))).Handle() // gets the error of the target
	own := expose(t, target, bulk.ReadOnly, bulk.Bytes(counting(n))).Handle()
	foreign := expose(t, third, bulk.ReadOnly, bulk.Bytes(counting(n))).Handle()
	secret := expose(t, origin, bulk.ReadOnly, bulk.Bytes(counting(n))).Handle()
	written := expose(t, target, bulk.WriteOnly, bulk.Bytes(counting(n))).Handle()
	for name, x := range map[string]struct {
		to, from         bulk.Handle
		off, at, n, size uint64
		want             error
	}{
		"bytes of a third endpoint":    {h, foreign, 0, 0, n, n, bulk.ErrProtocol},
		"bytes of the origin":          {h, secret, 0, 0, n, n, bulk.ErrProtocol},
		"fewer bytes":                  {h, own, 0, 0, n, n - 1, bulk.ErrProtocol},
		"more bytes":                   {h, own, 0, 0, n - 1, n, bulk.ErrProtocol},
		"past the end of the region":   {h, own, 1, 0, n, n, bulk.ErrRange},
		"past the end of the offer":    {scratch, own, 0, 1, n, n, bulk.ErrRange},
		"before all offsets":           {scratch, own, 0, 1 << 63, n, n, bulk.ErrRange},
		"a region that is only read":   {secret, own, 0, 0, n, n, bulk.ErrRights},
		"an offer that is only pushed": {scratch, written, 0, 0, n, n, bulk.ErrRights},
		"a key that was not given":     {bulk.HandleOf(origin.ID(), n), own, 0, 0, n, n, bulk.ErrKey},
		"no bytes":                     {h, own, n, 0, 0, 0, nil},
	} {
		try.Fails(bulk.Offer(deadline(t), target.Endpoint, x.to, x.from, x.off, x.at, x.n, x.size))(t, x.want, "%s", name)
	}
	try.Check(t, bulk.Offer(deadline(t), target.Endpoint, scratch, own, 0, 0, n, n)) // an honest offer
	if err := r.Revoke(deadline(t)); err != nil || !isZero(mem) {
		t.Error("the region was written: ", err)
	}
}

// A push fails when the region is revoked or the origin ends while the origin reads the bytes.
//
// Promise (Package bulk): A push lets the origin read the bytes of the push and nothing else, and
// ends with the region or origin. See also TestHostileOffers.
func TestEndsWhilePushed(t *testing.T) {
	const n = 64 << 20
	for name, end := range map[string]func(origin side, r *bulk.Region) error{
		"revoked": func(_ side, r *bulk.Region) error { return r.Revoke(deadline(t)) },
		"closed":  func(origin side, _ *bulk.Region) error { return origin.Close(deadline(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			origin, target := remotes(t, bulk.PieceSize(100_000))
			r := expose(t, origin, bulk.WriteOnly, bulk.Bytes(make([]byte, n)))
			mem, ended := counting(n), make(chan error, 1)
			go func() {
				for {
					if _, err := target.StartPush(deadline(t), r.Handle(), 0, mem).Wait(deadline(t)); err != nil {
						ended <- err
						return
					}
				}
			}()
			eventually.True(t, "pieces are pushed", func() bool { return origin.Stats().Writes > 3 })
			try.Check(t, end(origin, r))
			if err := <-ended; !errors.Is(err, bulk.ErrRevoked) && !errors.Is(err, rocl.ErrGone) {
				t.Error(err)
			}
		})
	}
}
