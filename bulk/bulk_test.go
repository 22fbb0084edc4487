// SPDX-License-Identifier: Apache-2.0

package bulk_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/ownnode"
	"github.com/rocl-go/rocl/internal/testkit/sharedmem"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/shm"
)

func TestMain(m *testing.M) {
	if s := strings.Fields(os.Getenv("ROCL_IN_CALL")); len(s) == 3 {
		inCallServer(s[0], s[1], s[2])
	}
	ownnode.Main(m)
}

var long = flag.Bool("long", false, "1 GiB over connections that break, up to 64 MiB, 10,000 lists of segments: some minutes")

// longOr returns the first value in the long form of a test, and the second otherwise.
func longOr[T any](inLong, otherwise T) T {
	if *long {
		return inLong
	}
	return otherwise
}

// deadline returns a context that ends when a test takes too long.
func deadline(t testing.TB) context.Context {
	return eventually.ContextWithin(t, longOr(10*time.Minute, eventually.Timeout))
}

// A side is a context and its endpoint.
type side struct {
	*bulk.Endpoint
	c *rocl.Context
}

func endpoint(t testing.TB, c *rocl.Context, opts ...bulk.Option) side {
	t.Helper()
	ep := try.Get(bulk.Open(deadline(t), c, opts...))(t)
	t.Cleanup(func() { try.Check(t, ep.Close(deadline(t))) })
	return side{ep, c}
}

// transports are the ways between two endpoints. With "self" both are the same.
var transports = map[string][]rocl.Option{"self": nil, "inproc": nil, "tcp": {rocltest.TCP()}, "shm": {rocl.WithTransports(shm.New())}}

// overEach runs f with an origin and a target over each transport.
func overEach(t *testing.T, f func(t *testing.T, origin, target side), opts ...bulk.Option) {
	for name, tr := range transports {
		t.Run(name, func(t *testing.T) {
			if name == "shm" {
				sharedmem.Need(t)
			}
			cl := rocltest.Cluster(t, 1)
			origin := endpoint(t, cl.Open(0, tr...), opts...)
			if name == "self" {
				f(t, origin, origin)
				return
			}
			f(t, origin, endpoint(t, cl.Open(0, tr...), opts...))
		})
	}
}

// overEachAndDirectly is overEach, and over a transport by which the target accesses the memory of
// the origin itself.
func overEachAndDirectly(t *testing.T, f func(t *testing.T, origin, target side), opts ...bulk.Option) {
	overEach(t, f, opts...)
	t.Run("direct", func(t *testing.T) {
		_, origin, target := pair(t, opts...)
		f(t, origin, target)
	})
}

func expose(t testing.TB, ep side, r bulk.Rights, s ...bulk.Segment) *bulk.Region {
	t.Helper()
	return try.Get(ep.Expose(r, s...))(t)
}

// pulls checks the bytes of a pull.
func pulls(t testing.TB, target side, h bulk.Handle, off int64, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := target.Pull(deadline(t), h, off, got); err != nil || n != int64(len(want)) || !bytes.Equal(got, want) {
		t.Errorf("pull of %d bytes: %d, %v", len(want), n, err)
	}
}

// pattern returns the bytes of which counting returns the beginning.
var pattern = sync.OnceValue(func() []byte {
	p := make([]byte, 16<<20)
	for i := range p {
		p[i] = byte(i%251 + i>>16)
	}
	return p
})

// counting returns n bytes, each of which depends on its offset.
func counting(n int) []byte {
	p := make([]byte, n)
	for at := 0; at < n; at += copy(p[at:], pattern()[at>>24:]) {
	}
	return p
}

// cut returns p in k segments of the same size.
func cut(p []byte, k int) (all [][]byte) {
	for c := range slices.Chunk(p, max(len(p)/k, 1)) {
		all = append(all, c)
	}
	return all
}

// segments returns the slices as segments of a region: plain memory, or copies in registered
// buffers. gather returns their contents.
func segments(t testing.TB, c *rocl.Context, all [][]byte, isRegistered bool) (segs []bulk.Segment, gather func() []byte) {
	t.Helper()
	var mems [][]byte
	for _, p := range all {
		if !isRegistered {
			segs, mems = append(segs, bulk.Bytes(p)), append(mems, p)
			continue
		}
		b := try.Get(c.Buffer(len(p)))(t)
		copy(b.Bytes(), p)
		segs, mems = append(segs, bulk.Buffer(b)), append(mems, b.Bytes())
		t.Cleanup(b.Release)
	}
	return segs, func() []byte { return bytes.Join(mems, nil) }
}

// TestRanges checks what Mercury's tests of bulk transfers check, in both directions,
// with both kinds of memory, and with one slice and many at the target. The long form has up to 64
// MiB, the short form up to two pieces.
//
// Promise (Package bulk): A pull or push moves exactly the bytes of its range, between any
// segments, over each transport. See also TestRandomSegments.
func TestRanges(t *testing.T) {
	overEachAndDirectly(t, func(t *testing.T, origin, target side) {
		sizes := longOr([]int{16, 1 << 10, 3<<20 + 5, 64 << 20}, []int{16, 1 << 10, 3<<20 + 5})
		if short.Form(t) {
			sizes = []int{16, 1 << 10, 1<<20 + 5}
		}
		for _, n := range sizes {
			for _, k := range []int{1, 2, 16, 1024} {
				for _, isRegistered := range []bool{false, true} {
					if isRegistered && k > 16 || n > 32<<20 && k != 16 {
						continue
					}
					t.Run(fmt.Sprint(n, " bytes in ", k, ", registered ", isRegistered), func(t *testing.T) { ranges(t, origin, target, n, k, isRegistered) })
				}
			}
		}
	})
}

func ranges(t *testing.T, origin, target side, n, k int, isRegistered bool) {
	want := counting(n)
	segs, _ := segments(t, origin.c, cut(want, k), isRegistered)
	r := expose(t, origin, bulk.ReadOnly, segs...)
	to, gather := segments(t, origin.c, cut(make([]byte, n), k), isRegistered)
	w := expose(t, origin, bulk.WriteOnly, to...)
	shadow := make([]byte, n)
	for _, x := range [][3]int{{0, 0, 0}, {n, 0, 0}, {n / 4, n/2 + 1, 0}, {n / 8, n/2 + 1, n / 4}, {n / 2, n / 2, 0}, {n / 2, n / 4, n / 8}, {n - 1, 1, 1}} {
		length, off, at := x[0], x[1], x[2]
		for _, parts := range []int{1, 7} {
			local := make([]byte, n+1)
			got, err := target.Pull(deadline(t), r.Handle(), int64(off), cut(local[at:at+length], parts)...)
			if err != nil || got != int64(length) {
				t.Fatalf("pull %v: %d, %v", x, got, err)
			}
			if !bytes.Equal(local[at:at+length], want[off:off+length]) || !isZero(local[:at]) || !isZero(local[at+length:]) {
				t.Fatalf("pull %v: other bytes", x)
			}
			src := counting(n + parts)[parts:]
			copy(shadow[off:off+length], src[at:])
			if got, err = target.Push(deadline(t), w.Handle(), int64(off), cut(src[at:at+length], parts)...); err != nil || got != int64(length) {
				t.Fatalf("push %v: %d, %v", x, got, err)
			}
		}
	}
	if err := errors.Join(r.Close(), w.Close()); err != nil || !bytes.Equal(gather(), shadow) {
		t.Error("other bytes were pushed: ", err)
	}
}

// Segments may be empty, nil, overlapping, very many, and in two regions.
func TestSegments(t *testing.T) {
	overEachAndDirectly(t, func(t *testing.T, origin, target side) {
		if _, err := origin.Expose(bulk.ReadOnly); !errors.Is(err, bulk.ErrRange) || err.Error() != "bulk: expose memory: no segment is given" {
			t.Error("no segment:", err)
		}
		try.Fails(origin.Expose(bulk.ReadOnly, bulk.Buffer(nil)))(t, bulk.ErrRange) // no buffer
		for _, r := range []bulk.Rights{0, 4, 255} {
			try.Fails(origin.Expose(r, bulk.Bytes(nil)))(t, bulk.ErrRights, "%v", r)
		}
		none := expose(t, origin, bulk.ReadWrite, bulk.Bytes(nil), bulk.Bytes([]byte{}))
		h := none.Handle()
		for _, p := range [][]byte{nil, {}} {
			try.Gives(target.Pull(deadline(t), h, 0, p))(t, 0)
			try.Gives(target.Push(deadline(t), h, 0, p, p))(t, 0)
		}
		try.Gives(target.Pull(deadline(t), h, 0))(t, 0)
		m, err := target.View(deadline(t), h, 0, 0)
		if err != nil || m.Len() != 0 {
			t.Fatal(err)
		}
		m.Release()

		text := []byte("overlap")
		twice := expose(t, origin, bulk.ReadOnly, bulk.Bytes(text[:5]), bulk.Bytes(nil), bulk.Bytes(text[2:]))
		again := expose(t, origin, bulk.ReadOnly, bulk.Bytes(text))
		pulls(t, target, twice.Handle(), 0, []byte("overlerlap"))
		pulls(t, target, again.Handle(), 0, text)

		both := []byte("........")
		lapped := expose(t, origin, bulk.WriteOnly, bulk.Bytes(both[1:5]), bulk.Bytes(both[3:7]))
		try.Gives(target.Push(deadline(t), lapped.Handle(), 0, []byte("abcdefgh")))(t, 8)
		if err := lapped.Revoke(deadline(t)); err != nil || string(both) != ".abefgh." {
			t.Errorf("segments that overlap: %q, %v", both, err)
		}

		manySegments(t, origin, target, 50_000)
	})
	origin, target := remotes(t)
	manySegments(t, origin, target, 1_000_000)
}

// manySegments pulls from n segments of 0, 1 and 2 bytes, and pushes to as many.
func manySegments(t *testing.T, origin, target side, n int) {
	t.Helper()
	all := counting(2 * n)
	segs := make([]bulk.Segment, n)
	for i := range segs {
		segs[i] = bulk.Bytes(all[2*i : 2*i+i%3])
	}
	var want []byte
	for i := range segs {
		want = append(want, all[2*i:2*i+i%3]...)
	}
	many := expose(t, origin, bulk.ReadOnly, segs...)
	pulls(t, target, many.Handle(), 0, want)
	room := bytes.Repeat([]byte{'x'}, 2*n)
	for i := range segs {
		segs[i] = bulk.Bytes(room[2*i : 2*i+i%3])
	}
	many = expose(t, origin, bulk.WriteOnly, segs...)
	try.Gives(target.Push(deadline(t), many.Handle(), 0, want))(t, int64(len(want)))
	try.Check(t, many.Revoke(deadline(t)))
	for i := range n {
		if !bytes.Equal(room[2*i:2*i+i%3], all[2*i:2*i+i%3]) || !bytes.Equal(room[2*i+i%3:2*i+2], []byte("xx")[i%3:]) {
			t.Fatalf("segment %d has %q", i, room[2*i:2*i+2])
		}
	}
}

// Ranges past the end are refused by the target and by the origin.
func TestRangeErrors(t *testing.T) {
	overEachAndDirectly(t, func(t *testing.T, origin, target side) {
		r := expose(t, origin, bulk.ReadWrite, bulk.Bytes(make([]byte, 10)))
		h := r.Handle()
		for _, x := range []struct{ off, n int64 }{{10, 1}, {0, 11}, {11, 0}, {-1, 1}, {9, 2}, {math.MaxInt64, 1}, {math.MinInt64, 1}} {
			if n, err := target.Pull(deadline(t), h, x.off, make([]byte, x.n)); n != 0 || !errors.Is(err, bulk.ErrRange) {
				t.Errorf("pull %v: %v", x, err)
			}
			if n, err := target.Push(deadline(t), h, x.off, make([]byte, x.n)); n != 0 || !errors.Is(err, bulk.ErrRange) {
				t.Errorf("push %v: %v", x, err)
			}
			try.Fails(target.View(deadline(t), h, x.off, int(x.n)))(t, bulk.ErrRange, "view %v", x)
			try.Fails(h.Slice(x.off, x.n))(t, bulk.ErrRange, "slice %v", x)
		}
		try.Fails(target.View(deadline(t), h, 2, -1))(t, bulk.ErrRange)
	})
}

// TestRights checks what a region and a handle allow.
//
// Promise (Package bulk): The origin refuses what a handle does not allow. A narrowed handle cannot
// be widened. See also TestForgedHandles.
func TestRights(t *testing.T) {
	overEachAndDirectly(t, func(t *testing.T, origin, target side) {
		all := []bulk.Rights{bulk.ReadOnly, bulk.WriteOnly, bulk.ReadWrite}
		for _, has := range all {
			const text = "memory"
			r := expose(t, origin, has, bulk.Bytes([]byte(text)))
			for _, wants := range all {
				h, err := r.Handle().Narrow(wants)
				if wants&^has != 0 {
					try.Fails(err)(t, bulk.ErrRights, "%v to %v", has, wants)
					continue
				}
				if err != nil || h.Rights() != wants {
					t.Fatal(err)
				}
				p := make([]byte, len(text))
				if _, err := target.Pull(deadline(t), h, 0, p); errors.Is(err, bulk.ErrRights) != (wants == bulk.WriteOnly) || err == nil && string(p) != text {
					t.Errorf("pull with %v: %v", h, err)
				}
				if _, err := target.Push(deadline(t), h, 0, []byte(text)); errors.Is(err, bulk.ErrRights) != (wants == bulk.ReadOnly) {
					t.Errorf("push with %v: %v", h, err)
				}
			}
		}
	})
}

func isZero(p []byte) bool { return bytes.Equal(p, make([]byte, len(p))) }

// The parts of an encoded handle: see codec, and the fields of Handle.
const (
	atOrigin = 8
	atRegion = atOrigin + 16
	atKey    = atRegion + 8
	atDepth  = atKey + 16
	atSteps  = atDepth + 1
	stepLen  = 17
)

// forge returns a handle after f has changed its encoding.
func forge(t testing.TB, h bulk.Handle, f func(p []byte)) bulk.Handle {
	t.Helper()
	p, err := codec.Append(nil, &h)
	if err != nil || len(p) != atSteps+5*stepLen {
		t.Fatal(len(p), err)
	}
	f(p)
	try.OK(t, codec.Decode(p, &h))
	return h
}

// Handles that were narrowed and passed on cannot be widened. The origin refuses forged and foreign
// handles, whatever the target checks.
func TestForgedHandles(t *testing.T) {
	overEachAndDirectly(t, func(t *testing.T, origin, target side) {
		mem := counting(100)
		r := expose(t, origin, bulk.ReadWrite, bulk.Bytes(mem))
		other := expose(t, origin, bulk.ReadWrite, bulk.Bytes(make([]byte, 100)))
		third := endpoint(t, target.c)
		pull := func(h bulk.Handle) error {
			_, err := target.Pull(deadline(t), h, 0, make([]byte, 1))
			return err
		}
		whole := r.Handle()
		part, err := whole.Slice(10, 50)
		if err == nil {
			part, err = part.Narrow(bulk.ReadOnly)
		}
		if err == nil {
			part, err = part.Slice(5, 20)
		}
		if err != nil || part.Len() != 20 || part.Rights() != bulk.ReadOnly || part.Origin() != origin.ID() {
			t.Fatal(part, err)
		}
		pulls(t, target, part, 0, mem[15:35])
		one := try.Get(part.Slice(0, 1))(t)
		try.Fails(one.Slice(0, 0))(t, bulk.ErrNarrow)
		try.Gives(one.Slice(0, 1))(t, one)
		last := atSteps + 3*stepLen
		for name, f := range map[string]func(p []byte){
			"a byte earlier":      func(p []byte) { p[last]-- },
			"a byte longer":       func(p []byte) { p[last+8]++ },
			"length 2^64-1":       func(p []byte) { copy(p[last+8:], bytes.Repeat([]byte{255}, 7)) },
			"all rights":          func(p []byte) { p[last+16] = byte(bulk.ReadWrite) },
			"without a step":      func(p []byte) { p[atDepth]-- },
			"another key":         func(p []byte) { p[atKey+7] ^= 1 },
			"another region":      func(p []byte) { p[atRegion]++ },
			"no such region":      func(p []byte) { p[atRegion] += 100 },
			"an earlier step":     func(p []byte) { p[atSteps+stepLen+8]++ },
			"more steps":          func(p []byte) { p[atDepth]++; copy(p[last+stepLen:], p[last:last+stepLen]) },
			"another first range": func(p []byte) { p[atSteps+8]++ },
		} {
			try.Fails(pull(forge(t, part, f)))(t, bulk.ErrKey, "%s", name)
		}
		for _, depth := range []byte{5, 6, 255} {
			h := forge(t, part, func(p []byte) { p[atDepth] = depth })
			if err := pull(h); !errors.Is(err, bulk.ErrRights) || h.Len() != 0 {
				t.Error(err)
			}
		}
		// A holder that computes the next key for a step that allows more.
		for name, widen := range map[string]func(h bulk.Handle) bulk.Handle{
			"longer":        func(h bulk.Handle) bulk.Handle { return bulk.Widen(h, 15, 21, bulk.ReadOnly) },
			"earlier":       func(h bulk.Handle) bulk.Handle { return bulk.Widen(h, 14, 20, bulk.ReadOnly) },
			"rights":        func(h bulk.Handle) bulk.Handle { return bulk.Widen(h, 15, 20, bulk.ReadWrite) },
			"over the edge": func(h bulk.Handle) bulk.Handle { return bulk.Widen(h, 16, math.MaxUint64, bulk.ReadOnly) },
		} {
			h := widen(part)
			try.Fails(bulk.Ask(deadline(t), target.Endpoint, h, 0, 1))(t, bulk.ErrKey, "widened, %s", name)
		}
		// A key of another region, or for another endpoint.
		try.Fails(pull(forge(t, whole, func(p []byte) {
			o, _ := codec.Append(nil, new(other.Handle()))
			copy(p[atKey:atDepth], o[atKey:])
		})))(t, bulk.ErrKey)
		own := expose(t, third, bulk.ReadWrite, bulk.Bytes(make([]byte, 100))).Handle()
		try.Fails(pull(forge(t, own, func(p []byte) {
			o, _ := codec.Append(nil, &whole)
			copy(p[atOrigin:atRegion], o[atOrigin:])
		})))(t, bulk.ErrKey)
		try.Fails(pull(bulk.Handle{}))(t, bulk.ErrRights)
		// Requests that an honest target would refuse itself.
		for _, x := range [][2]uint64{{0, 21}, {20, 1}, {math.MaxUint64, 2}, {2, math.MaxUint64}, {1 << 63, 1}} {
			if err := bulk.Ask(deadline(t), target.Endpoint, part, x[0], x[1]); !errors.Is(err, bulk.ErrRange) && !errors.Is(err, rocl.ErrTooLarge) {
				t.Errorf("%v: %v", x, err)
			}
		}
		try.Fails(bulk.AskWrite(deadline(t), target.Endpoint, part, 0, []byte{1}))(t, bulk.ErrRights)
		// Messages of other protocols have no effect.
		me := try.Get(target.c.Register(deadline(t), nil))(t)
		for _, tag := range []uint64{0, bulk.TagRead, bulk.TagWrite} {
			for _, n := range []int{0, 1, 8, 200, 1000} {
				try.Check(t, me.SendBytes(deadline(t), origin.ID(), tag, make([]byte, n)))
				m := try.Get(me.CallBytes(deadline(t), origin.ID(), tag, make([]byte, n)))(t)
				m.Release()
			}
		}
		if !bytes.Equal(mem, counting(100)) {
			t.Error("memory was written")
		}
		try.Check(t, pull(part))
	})
}

// A third process pulls from the first one. The second process has passed the handle on, narrowed.
func TestForwardedHandle(t *testing.T) {
	overEachAndDirectly(t, func(t *testing.T, a, b side) {
		c := endpoint(t, b.c)
		r := expose(t, a, bulk.ReadWrite, bulk.Bytes(counting(1<<20)))
		h, err := r.Handle().Slice(1000, 500_000)
		if err == nil {
			h, err = h.Narrow(bulk.ReadOnly)
		}
		try.OK(t, err)
		text, err := h.MarshalText()
		var got bulk.Handle
		if err == nil {
			err = got.UnmarshalText(text)
		}
		if err != nil || got != h {
			t.Fatal(err)
		}
		for _, bad := range []string{"", "x", "!", string(text[1:]), string(text) + "AAAA"} {
			try.Fails(new(bulk.Handle).UnmarshalText([]byte(bad)))(t, rocl.ErrValue, "%q", bad)
		}
		p := make([]byte, 500_000)
		if _, err := c.Pull(deadline(t), got, 0, p); err != nil || !bytes.Equal(p, counting(1 << 20)[1000:501_000]) {
			t.Fatal(err)
		}
		try.OK(t, r.Revoke(deadline(t)))
		for range 2 {
			try.Fails(c.Pull(deadline(t), got, 0, p))(t, bulk.ErrRevoked)
			try.Fails(b.Push(deadline(t), r.Handle(), 0, p))(t, bulk.ErrRevoked)
		}
		try.Check(t, r.Close())
	})
}

// A transfer that is cancelled at any point writes nothing after it has returned.
//
// Promise (Package bulk): A cancelled transfer returns at once, and a pull writes nothing
// afterwards. See also TestCancelPush.
func TestCancel(t *testing.T) {
	n, piece := longOr(64, 16)<<20, 256<<10
	overEach(t, func(t *testing.T, origin, target side) {
		mem := bytes.Repeat([]byte{1}, n)
		r := expose(t, origin, bulk.ReadOnly, bulk.Bytes(mem))
		defer r.Close()
		for _, percent := range []uint64{0, 1, 50, 99} {
			dst := make([]byte, n)
			ctx, cancel := context.WithCancelCause(deadline(t))
			stopped := errors.New("enough")
			before := target.Stats().Transfers
			if percent == 0 {
				cancel(stopped)
			}
			tr := target.StartPull(ctx, r.Handle(), 0, dst)
			pieces := uint64(n / piece)
			for target.Stats().Transfers-before < percent*pieces/100 && ctx.Err() == nil {
				time.Sleep(10 * time.Microsecond) // a longer pause would miss the moment
			}
			cancel(stopped)
			got, err := tr.Wait(deadline(t))
			was := slices.Clone(dst)
			if percent == 0 && err == nil || err != nil && !errors.Is(err, stopped) { // later the transfer may have ended first
				t.Errorf("%d%%: %v", percent, err)
			}
			if !bytes.Equal(was[:got], mem[:got]) || err != nil && got == int64(n) || percent == 0 && got > 0 {
				t.Errorf("%d%%: %d bytes are said to be there", percent, got)
			}
			try.Works(target.Pull(deadline(t), r.Handle(), 0, make([]byte, n)))(t) // all earlier transfers have ended
			if !bytes.Equal(dst, was) {
				t.Errorf("%d%%: written to after the end", percent)
			}
		}
		tr := target.StartPull(deadline(t), r.Handle(), 0, make([]byte, n))
		tr.Cancel()
		<-tr.Done()
		if _, err := tr.Wait(deadline(t)); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
		defer cancel()
		<-ctx.Done()
		try.Works(target.Pull(deadline(t), r.Handle(), 0, make([]byte, n)))(t) // behind all requests of the transfer before
		eventually.True(t, "the requests are served", func() bool { return origin.Stats().Serving == 0 })
		served := origin.Stats()
		if got, err := target.Pull(ctx, r.Handle(), 0, make([]byte, n)); got != 0 || !errors.Is(err, context.DeadlineExceeded) || origin.Stats() != served {
			t.Error(got, err)
		}
	}, bulk.PieceSize(piece))
}

// A view of registered memory, and of this process's memory, is the memory itself.
//
// Promise (Package bulk): Registered memory is viewed in place over shared memory and within the
// process.
func TestView(t *testing.T) {
	overEach(t, func(t *testing.T, origin, target side) {
		const n = 1 << 20
		b := try.Get(origin.c.Buffer(n))(t)
		copy(b.Bytes(), counting(n))
		plain := counting(n)
		for name, mem := range map[string]struct {
			s  bulk.Segment
			at []byte
		}{"registered": {bulk.Buffer(b), b.Bytes()}, "plain": {bulk.Bytes(plain), plain}} {
			r := expose(t, origin, bulk.ReadOnly, mem.s)
			copied := origin.c.Stats().CopiedBytes + target.c.Stats().CopiedBytes
			m, err := target.View(deadline(t), r.Handle(), 100_000, 500_000)
			if err != nil || !bytes.Equal(m.Bytes(), counting(n)[100_000:600_000]) {
				t.Fatal(err)
			}
			same := unsafe.SliceData(m.Bytes()) == &mem.at[100_000]
			switch tr := t.Name()[len("TestView/"):]; {
			case tr == "self" || tr == "inproc":
				if !same {
					t.Errorf("%s: a copy", name)
				}
			case tr == "shm" && name == "registered":
				mem.at[100_000]++
				if m.Bytes()[0] != mem.at[100_000] || !m.ReadOnly() {
					t.Error("registered memory is not read in place")
				}
				mem.at[100_000]--
			}
			if got := origin.c.Stats().CopiedBytes + target.c.Stats().CopiedBytes - copied; got > 50_000 {
				t.Errorf("%s: %d bytes copied by the library", name, got)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			err = r.Revoke(ctx)
			cancel()
			isInPlace := t.Name() != "TestView/tcp" && (name == "registered" || t.Name() != "TestView/shm")
			if isInPlace && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: revoked while it is viewed: %v", name, err)
			}
			try.Fails(target.View(deadline(t), r.Handle(), 0, 1))(t, bulk.ErrRevoked)
			m.Release()
			try.Check(t, r.Revoke(deadline(t)))
		}
		b.Release()
	})
}

// Memory is neither read nor written after Revoke. Pulls and pushes run all the time while regions
// are made and revoked.
//
// Promise (Package bulk): When `Revoke` has returned nil, no process reads or writes the memory.
// See also TestBulkTargetKilled.
func TestRevokeDuringTransfers(t *testing.T) {
	overEachAndDirectly(t, func(t *testing.T, origin, target side) {
		const n = 1 << 20
		for round := range 10 {
			source, mem := make([]byte, n), make([]byte, n)
			read, written := expose(t, origin, bulk.ReadOnly, bulk.Bytes(source)), expose(t, origin, bulk.WriteOnly, bulk.Bytes(mem[:n/2]), bulk.Bytes(mem[n/2:]))
			var all sync.WaitGroup
			var begun sync.WaitGroup
			begun.Add(2)
			repeat := func(f func() (int64, error)) {
				all.Go(func() {
					var once sync.Once
					for {
						_, err := f()
						once.Do(begun.Done)
						if err != nil {
							try.Fails(err)(t, bulk.ErrRevoked)
							return
						}
					}
				})
			}
			repeat(func() (int64, error) { return target.Pull(deadline(t), read.Handle(), 0, make([]byte, n)) })
			ones := bytes.Repeat([]byte{1}, n)
			repeat(func() (int64, error) { return target.Push(deadline(t), written.Handle(), 0, ones) })
			begun.Wait()
			try.OK(t, errors.Join(written.Revoke(deadline(t)), read.Revoke(deadline(t))))
			was := byte(round + 2)
			for i := range mem {
				source[i], mem[i] = was, was // under -race this is seen if anything still reads or writes it
			}
			all.Wait()
			if len(bytes.Trim(mem, string([]byte{was}))) > 0 {
				t.Fatal("written after it was revoked")
			}
		}
	}, bulk.PieceSize(64<<10))
}

// Random lists of segments on both sides, beside plain copies.
func TestRandomSegments(t *testing.T) {
	overEach(t, func(t *testing.T, origin, target side) {
		rnd := rand.New(rand.NewPCG(1, 2))
		pieces := func(p []byte) (all [][]byte) {
			for len(p) > 0 {
				k := min(rnd.IntN(1+rnd.IntN(1<<(4+rnd.IntN(14)))), len(p))
				all, p = append(all, p[:k]), p[k:]
			}
			return append(all, nil)
		}
		for range longOr(10_000, 200) {
			n := rnd.IntN(200_000)
			mem := counting(n)
			want := slices.Clone(mem)
			segs, gather := segments(t, origin.c, pieces(mem), false)
			r := expose(t, origin, bulk.ReadWrite, segs...)
			off := rnd.IntN(n + 1)
			k := rnd.IntN(n + 1 - off)
			p := make([]byte, k)
			if got, err := target.Pull(deadline(t), r.Handle(), int64(off), pieces(p)...); err != nil || got != int64(k) || !bytes.Equal(p, want[off:off+k]) {
				t.Fatal(got, err)
			}
			rnd = rand.New(rand.NewPCG(rnd.Uint64(), 3))
			for i := range p {
				p[i] ^= 0xaa
			}
			copy(want[off:], p)
			try.Gives(target.Push(deadline(t), r.Handle(), int64(off), pieces(p)...))(t, int64(k))
			if err := r.Close(); err != nil || !bytes.Equal(gather(), want) {
				t.Fatal("other bytes were pushed: ", err)
			}
		}
	}, bulk.PieceSize(10_000), bulk.Depth(3))
}

// Pieces of a pipeline that come before their turn do not take the memory that the piece needs
// which the loop waits for.
func TestPipelineWithLittleMemory(t *testing.T) {
	const n, piece = 8 << 20, 256 << 10
	for _, name := range []string{"tcp", "shm"} {
		for _, memory := range []int64{4 << 20, 8 << 20} {
			t.Run(fmt.Sprintf("%s/%d", name, memory), func(t *testing.T) {
				if name == "shm" {
					sharedmem.Need(t)
				}
				cl := rocltest.Cluster(t, 1)
				origin := endpoint(t, cl.Open(0, transports[name]...))
				target := endpoint(t, cl.Open(0, append(transports[name], rocl.WithMemory(memory))...))
				want := counting(n)
				r := expose(t, origin, bulk.ReadOnly, bulk.Bytes(want))
				most := memory / 4 / piece
				for p, err := range bulk.Pipeline(deadline(t), target.Endpoint, r.Handle(), bulk.Depth(32), bulk.PieceSize(piece)) {
					try.OK(t, err)
					if ahead := int64(origin.Stats().Reads) - p.Off/piece; ahead > most {
						t.Fatalf("%d pieces at a time, at most %d fit", ahead, most)
					}
				}
				var loops sync.WaitGroup
				for range 3 {
					loops.Go(func() {
						off := 0
						for p, err := range bulk.Pipeline(deadline(t), target.Endpoint, r.Handle(), bulk.Depth(32), bulk.PieceSize(piece)) {
							if err != nil || !bytes.Equal(p.Bytes(), want[off:off+piece]) {
								t.Error("at", off, err)
								return
							}
							off += piece
						}
						try.Equal(t, off, n, "bytes")
					})
				}
				loops.Wait()
			})
		}
	}
}

// Pieces come in order, with a limited number in progress, and breaking off the loop releases
// everything.
//
// Promise (Package bulk): A pipeline hands pieces over in order, at most `Depth` at a time, in
// little memory. See also TestPipelineWithLittleMemory.
func TestPipeline(t *testing.T) {
	overEach(t, func(t *testing.T, origin, target side) {
		const n = 5<<20 + 17
		want := counting(n)
		segs, _ := segments(t, origin.c, cut(want, 3), t.Name() != "TestPipeline/tcp")
		r := expose(t, origin, bulk.ReadOnly, segs...)
		for _, x := range [][2]int{{1, 64 << 10}, {3, 16 << 10}, {4, 1 << 20}, {2, 4 << 20}, {5, n}, {7, 2 * n}} {
			var off int64
			reads := origin.Stats().Reads
			for p, err := range bulk.Pipeline(deadline(t), target.Endpoint, r.Handle(), bulk.Depth(x[0]), bulk.PieceSize(x[1])) {
				try.OK(t, err)
				if p.Off != off || !bytes.Equal(p.Bytes(), want[off:off+int64(len(p.Bytes()))]) {
					t.Fatal("another piece at", p.Off)
				}
				off += int64(len(p.Bytes()))
				if ahead := origin.Stats().Reads - reads; int(ahead) > x[0]+int(p.Off)/x[1] {
					t.Fatalf("%d pieces at %d", ahead, p.Off)
				}
			}
			try.Equal(t, off, n, "bytes")
		}
		count := 0
		for range bulk.Pipeline(deadline(t), target.Endpoint, r.Handle(), bulk.PieceSize(1000)) {
			if count++; count == 10 {
				break
			}
		}
		ctx, cancel := context.WithCancel(deadline(t))
		defer cancel()
		var last error
		for _, err := range bulk.Pipeline(ctx, target.Endpoint, r.Handle(), bulk.PieceSize(1000)) {
			cancel()
			last = err
		}
		try.Fails(last)(t, context.Canceled)
		func() {
			defer func() { _ = recover() }()
			for range bulk.Pipeline(deadline(t), target.Endpoint, r.Handle()) {
				panic("in the loop")
			}
		}()
		for _, o := range []bulk.Option{bulk.Depth(0), bulk.PieceSize(0), bulk.PieceSize(math.MaxInt)} {
			for _, err := range bulk.Pipeline(deadline(t), target.Endpoint, r.Handle(), o) {
				try.Fails(err)(t, bulk.ErrRange)
			}
		}
		try.Check(t, r.Revoke(deadline(t)))
		try.Equal(t, bulk.InFlight(target.Endpoint), 0, "transfers are still counted")
	})
}

// Transfers fail at an endpoint that is closed, and at one whose resource has ended.
func TestClose(t *testing.T) {
	overEachAndDirectly(t, func(t *testing.T, origin, target side) {
		r := expose(t, origin, bulk.ReadWrite, bulk.Bytes(make([]byte, 1<<20)))
		h := r.Handle()
		try.Get(target.Pull(deadline(t), h, 0, make([]byte, 1<<20)))(t)
		for range 2 {
			try.Check(t, origin.Close(deadline(t)))
		}
		want := rocl.ErrGone
		if origin == target {
			want = rocl.ErrClosed
		}
		try.Fails(target.Pull(deadline(t), h, 0, make([]byte, 1<<20)))(t, want)
		try.Fails(origin.Expose(bulk.ReadOnly, bulk.Bytes(nil)))(t, rocl.ErrClosed)
		try.Check(t, r.Close())
	})
}

// Small memory is in the argument, with its contents at the time when the argument was made. Large
// memory is pulled.
//
// Promise (Package bulk): Small memory in an argument needs no transfer.
func TestArgument(t *testing.T) {
	const limit = 4096
	overEach(t, func(t *testing.T, origin, target side) {
		type request struct {
			Small, Large, Unread bulk.Argument
			Name                 string
		}
		small, large := counting(limit), counting(limit+1)
		q := request{
			Small:  expose(t, origin, bulk.ReadWrite, bulk.Bytes(small[:100]), bulk.Bytes(small[100:])).Argument(),
			Large:  expose(t, origin, bulk.ReadOnly, bulk.Bytes(large)).Argument(),
			Unread: expose(t, origin, bulk.WriteOnly, bulk.Bytes(nil)).Argument(),
		}
		clear(small)
		p, err := codec.Append(nil, &q)
		if err == nil {
			err = codec.Decode(p, &q)
		}
		if err != nil || q.Unread.Snapshot != nil {
			t.Fatal(err)
		}
		got := make([]byte, limit+1)
		before := target.Stats().Transfers
		if n, err := target.PullArgument(deadline(t), &q.Small, 5, got[:10], got[10:limit-5]); err != nil || n != limit-5 || !bytes.Equal(got[:n], counting(limit)[5:]) {
			t.Error(n, err)
		}
		if more := target.Stats().Transfers - before; more != 0 {
			t.Errorf("%d transfers of what is in the argument", more)
		}
		pieces := 0
		for p, err := range bulk.PipelineArgument(deadline(t), target.Endpoint, &q.Small) {
			if pieces++; err != nil || p.Off != 0 || !bytes.Equal(p.Bytes(), counting(limit)) {
				t.Errorf("a piece at %d of %d bytes, %v", p.Off, len(p.Bytes()), err)
			}
		}
		if more := target.Stats().Transfers - before; pieces != 1 || more != 0 {
			t.Errorf("%d pieces, %d transfers", pieces, more)
		}
		for p, err := range bulk.PipelineArgument(deadline(t), target.Endpoint, &q.Large, bulk.PieceSize(limit)) {
			if err != nil || !bytes.Equal(p.Bytes(), large[p.Off:min(p.Off+limit, limit+1)]) {
				t.Errorf("a piece at %d of %d bytes, %v", p.Off, len(p.Bytes()), err)
			}
		}
		before += 2
		for _, err := range bulk.PipelineArgument(deadline(t), target.Endpoint, &q.Unread) {
			t.Errorf("an empty argument: %v", err)
		}
		if n, err := target.PullArgument(deadline(t), &q.Large, 0, got); err != nil || n != limit+1 || !bytes.Equal(got, large) {
			t.Error(n, err)
		}
		if more := target.Stats().Transfers - before; more != 1 {
			t.Errorf("%d transfers", more)
		}
		try.Fails(target.PullArgument(deadline(t), &q.Small, limit, make([]byte, 1)))(t, bulk.ErrRange)
		try.Fails(target.PullArgument(deadline(t), &q.Unread, 0))(t, bulk.ErrRights)
		q.Small.Snapshot = q.Small.Snapshot[1:] // it does not fit the handle
		if _, err := target.PullArgument(deadline(t), &q.Small, 0, got[:limit]); err != nil || len(bytes.Trim(got[:limit], "\x00")) > 0 {
			t.Error(err)
		}
	}, bulk.Eager(limit))
}
