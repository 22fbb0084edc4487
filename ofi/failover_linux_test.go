// SPDX-License-Identifier: Apache-2.0

package ofi_test

import (
	"bytes"
	"errors"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/ofi"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
	"golang.org/x/sys/unix"
)

// Data goes over the fabric, and control over TCP, by what the resources are registered with. When
// the fabric ends under way, the data goes on over TCP.
//
// Promise (Transports): When libfabric's connections end under way, the messages arrive over TCP,
// each once and in order.
func TestFailOver(t *testing.T) {
	ctx := eventually.Context(t)
	c, known := overBoth(t)
	me := try.Get(c[0].Register(ctx, nil))(t)
	data := try.Get(c[1].Register(ctx, nil, rocl.Over("ofi+tcp", "*")))(t)
	control := try.Get(c[1].Register(ctx, nil, rocl.Over("tcp")))(t)
	try.OK(t, me.SendBytes(ctx, control.ID(), 0, []byte("go")))
	try.Get(control.Recv(ctx))(t).Release()
	if s := c[1].Stats().Received; s["tcp"] != 1 || s["ofi+tcp"] != 0 {
		t.Fatalf("control went over %v", s)
	}
	const last = 1 << 40
	received := make(chan uint64, 1)
	go func() {
		defer close(received)
		for next := uint64(0); ; next++ {
			m, err := data.Recv(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			tag, n := m.Tag(), m.Len()
			m.Release()
			if tag == last {
				received <- next
				return
			}
			if tag != next || n != sizeOf(tag) {
				t.Errorf("message %d of %d bytes came in place of %d", tag, n, next)
				return
			}
		}
	}()
	sent := uint64(0)
	send := func() {
		try.OK(t, me.SendBytes(ctx, data.ID(), sent, make([]byte, sizeOf(sent))))
		sent++
	}
	for c[1].Stats().Received["ofi+tcp"] < 200 {
		send()
	}
	cut := 0
	for c[1].Stats().Received["tcp"] < 2 {
		cut += endSockets(t, known)
		send()
	}
	for range 200 {
		send()
	}
	try.OK(t, me.SendBytes(ctx, data.ID(), last, nil))
	if n := eventually.Value(t, "the last message", received); n != sent {
		t.Errorf("%d messages came, %d were sent", n, sent)
	}
	t.Logf("%d messages, %d sockets ended: %v", sent, cut, c[1].Stats().Received)
}

// overBoth returns two contexts that have the fabric and TCP, and the ports at which they listen.
func overBoth(t *testing.T) (c [2]*rocl.Context, known []string) {
	t.Helper()
	socket := rocl.WithSocket(filepath.Join(t.TempDir(), "s"))
	for i := range c {
		var err error
		c[i], err = rocl.Open(eventually.Context(t), socket, rocl.WithTransports(ofi.New("tcp;ofi_rxm"), tcp.New()), rocl.WithListen("ofi+tcp://127.0.0.1:0", "tcp://127.0.0.1:0"))
		if errors.Is(err, subsys.ErrUnavailable) {
			t.Skip(err)
		}
		try.OK(t, err)
		t.Cleanup(func() { try.Check(t, c[i].Close()) })
		for _, a := range c[i].Addrs() {
			known = append(known, try.Get(url.Parse(a))(t).Port())
		}
	}
	return c, known
}

// When the fabric ends while memory is read and written over it, the transfers go on in messages
// over TCP, and each one that has begun ends without an error. What is read is what was written
// last: nothing of a broken connection is written later.
func TestTransfersFailOver(t *testing.T) {
	ctx := eventually.Context(t)
	c, known := overBoth(t)
	var eps [2]*bulk.Endpoint
	for i := range eps {
		eps[i] = try.Get(bulk.Open(ctx, c[i]))(t)
		defer func() { try.Check(t, eps[i].Close(ctx)) }()
	}
	const half = 512 << 10
	r := try.Get(eps[0].Expose(bulk.ReadWrite, bulk.Bytes(counting(2*half, 0))))(t)
	h := r.Handle()
	warm(t, eps[1], h)
	var stops atomic.Bool
	var busy sync.WaitGroup
	check := func(off int64, want []byte, what string) {
		got := make([]byte, len(want))
		if _, err := eps[1].Pull(ctx, h, off, got); err != nil {
			t.Errorf("%s: %v", what, err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s: wrong bytes", what)
		}
	}
	busy.Go(func() {
		for want := counting(half, 0); !stops.Load() && !t.Failed(); {
			check(0, want, "Pull")
		}
	})
	busy.Go(func() {
		for i := 0; !stops.Load() && !t.Failed(); i++ {
			want := counting(half, i)
			if _, err := eps[1].Push(ctx, h, half, want); err != nil {
				t.Errorf("Push: %v", err)
			}
			check(half, want, "Pull after Push")
		}
	})
	cut := 0
	for i := 0; i == 0 || *long && i < 3; i++ {
		before := eps[1].Stats()
		eventually.True(t, "transfers over the fabric", func() bool { return eps[1].Stats().OneSided > before.OneSided+20 })
		eventually.True(t, "transfers in messages", func() bool {
			cut += endSockets(t, known) // libfabric connects again if no transfer was under way
			return eps[1].Stats().Transfers > before.Transfers+20
		})
	}
	stops.Store(true)
	busy.Wait()
	if cut == 0 {
		t.Error("libfabric had no connection")
	}
}

// sizeOf returns the bytes of a message: small ones, and some that the receiver reads.
func sizeOf(tag uint64) int {
	if tag%5 == 0 {
		return 50_000
	}
	return 100
}

// endSockets ends the TCP connections of this process, except those to or from known ports: so
// those of libfabric.
func endSockets(t *testing.T, known []string) (n int) {
	for _, f := range try.Get(os.ReadDir("/proc/self/fd"))(t) {
		fd := try.Get(strconv.Atoi(f.Name()))(t)
		near, err := unix.Getsockname(fd)
		if err != nil {
			continue
		}
		far, err := unix.Getpeername(fd)
		if err != nil || isKnown(near, known) || isKnown(far, known) {
			continue
		}
		if unix.Shutdown(fd, unix.SHUT_RDWR) == nil {
			n++
		}
	}
	return n
}

func isKnown(a unix.Sockaddr, known []string) bool {
	in, isIP := a.(*unix.SockaddrInet4)
	if !isIP {
		return true
	}
	for _, k := range known {
		if strconv.Itoa(in.Port) == k {
			return true
		}
	}
	return false
}

// A transfer goes on when the connection breaks, and the next ones.
func TestConnectionBreaks(t *testing.T) {
	overOneSided(t, func(t *testing.T, provider string) {
		ctx := eventually.Context(t)
		opts := []rocl.Option{rocl.WithSocket(filepath.Join(t.TempDir(), "s")), rocl.WithTransports(ofi.New(provider, ofi.WithShm()))}
		var cs [2]*rocl.Context
		var eps [2]*bulk.Endpoint
		for i := range cs {
			cs[i] = try.Get(rocl.Open(ctx, opts...))(t)
			eps[i] = try.Get(bulk.Open(ctx, cs[i]))(t)
		}
		defer func() {
			try.Check(t, errors.Join(eps[0].Close(ctx), eps[1].Close(ctx), cs[0].Close(), cs[1].Close()))
		}()
		mem := counting(1<<20, 1)
		r := try.Get(eps[0].Expose(bulk.ReadWrite, bulk.Bytes(mem)))(t)
		h := r.Handle()
		warm(t, eps[1], h)
		for range 3 {
			eventually.True(t, "a connection to break", func() bool { return breakControl(t, append(cs[0].Addrs(), cs[1].Addrs()...)) > 0 })
			got := make([]byte, len(mem))
			try.Get(eps[1].Pull(ctx, h, 0, got))(t)
			if !bytes.Equal(got, mem) {
				t.Error("wrong bytes")
			}
			try.Get(eps[1].Push(ctx, h, 0, got))(t)
		}
	})
}

// breakControl ends the TCP connections of this process that lead to the listeners of addrs.
func breakControl(t *testing.T, addrs []string) (found int) {
	t.Helper()
	ports := map[int]bool{}
	for _, a := range addrs {
		u := try.Get(url.Parse(a))(t)
		ports[int(try.Get(netip.ParseAddrPort(u.Host))(t).Port())] = true
	}
	for _, e := range try.Get(os.ReadDir("/proc/self/fd"))(t) {
		fd, _ := strconv.Atoi(e.Name())
		if peer, err := unix.Getpeername(fd); err == nil {
			if in, ok := peer.(*unix.SockaddrInet4); ok && ports[in.Port] {
				found++
				_ = unix.Shutdown(fd, unix.SHUT_RDWR)
			}
		}
	}
	return found
}
