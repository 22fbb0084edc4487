// SPDX-License-Identifier: Apache-2.0

package ofi_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/ofi"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A library that cannot be loaded, or that lacks functions because it is too old, makes the
// transport unavailable.
func TestBadLibrary(t *testing.T) {
	other, _ := filepath.Glob("/lib*/*/libm.so.6")
	if len(other) == 0 {
		other, _ = filepath.Glob("/lib*/libm.so.6")
	}
	for name, c := range map[string]struct {
		put  func(path string) error
		want string
	}{
		"no library": {func(path string) error { return os.WriteFile(path, []byte("this is none"), 0o600) }, "libfabric.so.1"},
		"too old": {func(path string) error {
			if len(other) == 0 {
				return os.ErrNotExist
			}
			return os.Symlink(other[0], path)
		}, "fi_"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.put(filepath.Join(dir, "libfabric.so.1")); err != nil {
				t.Skip(err)
			}
			cmd := subprocess.Self()
			cmd.Env = append(os.Environ(), "ROCL_OFI_LISTEN=tcp;ofi_rxm", "LD_LIBRARY_PATH="+dir)
			out, errOut, _, err := subprocess.Run(eventually.Context(t), cmd)
			try.OK(t, err)
			if !strings.HasPrefix(out, "unavailable: ") || !strings.Contains(out, c.want) {
				t.Errorf("%s%s", out, errOut)
			}
		})
	}
}

// When the provider refuses the memory of the context, or all of it, the messages arrive: copied,
// or over another transport.
func TestRefusedMemory(t *testing.T) {
	for name, c := range map[string]struct {
		refuses func(n int) bool
		over    string
	}{
		"later arenas": {func(n int) bool { return n > 2 }, "ofi+tcp"},
		"all":          {func(int) bool { return true }, "tcp"},
	} {
		t.Run(name, func(t *testing.T) {
			ofi.Refuse(t, func(n int) error {
				if c.refuses(n) {
					return syscall.ENOMEM
				}
				return nil
			})
			ctx := eventually.Context(t)
			opts := []rocl.Option{rocl.WithSocket(filepath.Join(t.TempDir(), "s")), rocl.WithTransports(ofi.New("tcp;ofi_rxm"), tcp.New())}
			a, b := try.Get(rocl.Open(ctx, opts...))(t), try.Get(rocl.Open(ctx, opts...))(t)
			defer func() { try.Check(t, errors.Join(a.Close(), b.Close())) }()
			from, to := try.Get(a.Register(ctx, nil))(t), try.Get(b.Register(ctx, nil))(t)
			for i := range 30 {
				want := bytes.Repeat([]byte{byte(i)}, 1<<20)
				try.OK(t, from.SendBytes(ctx, to.ID(), uint64(i), want))
				m := try.Get(to.Recv(ctx))(t)
				if m.Tag() != uint64(i) || !bytes.Equal(m.Bytes(), want) {
					t.Errorf("message %d came with tag %d", i, m.Tag())
				}
				m.Release()
			}
			if s := b.Stats().Received; s[c.over] == 0 {
				t.Errorf("messages went over %v", s)
			}
		})
	}
}

// More connections send than the port has operations, to a receiver that makes no progress. All
// frames arrive when it goes on.
func TestMoreThanOperations(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		a, b := try.Get(listen(provider, false))(t), try.Get(listen(provider, false))(t)
		defer func() { try.OK(t, errors.Join(a.close(), b.close())) }()
		var far []*sink
		var near []subsys.Conn
		for range 40 {
			c := try.Get(a.port.Dial(eventually.Context(t), b.port.Addr(), newSink()))(t)
			c.Start()
			near, far = append(near, c), append(far, eventually.Value(t, "a connection", b.accepted))
		}
		sent := make([]int64, len(near))
		fs := []subsys.Frame{{Header: subsys.Header{Type: 16, Len: 8000}, Data: make([]byte, 8000)}}
		b.progress.Lock()
		for i, c := range near {
			for try.Get(c.Send(fs))(t) == 1 {
				sent[i]++
			}
		}
		b.progress.Unlock()
		for i, s := range far {
			eventually.True(t, "all frames", func() bool { return s.frames.Load() == sent[i] })
		}
	})
}

// A thousand peers that are connected at once take a place each in the address vector, and no
// receive buffers of their own. Nothing of them is left when they have gone.
func TestThousandPeers(t *testing.T) {
	const n = 1000
	e, err := listen("tcp;ofi_rxm", false)
	if errors.Is(err, subsys.ErrUnavailable) {
		t.Skip(err)
	}
	try.OK(t, err)
	defer func() { try.OK(t, e.close()) }()
	all := make([]net.Conn, n)
	for i := range all {
		all[i] = try.Get(net.Dial("tcp", strings.TrimPrefix(e.port.Addr(), "ofi+tcp://")))(t)
		defer all[i].Close()
		name := binary.BigEndian.AppendUint16([]byte{2, 0}, uint16(20_000+i)) // a struct sockaddr_in
		greet(t, all[i], "tcp;ofi_rxm", append(name, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0))
		s := eventually.Value(t, "a connection", e.accepted)
		s.conn = nil
	}
	if l := ofi.LoadOf(e.port); l.Peers != n || l.Conns != n || l.Receives > 256 {
		t.Errorf("of %d peers: %+v", n, l)
	}
	for _, c := range all {
		c.Close()
	}
	eventually.True(t, "no peer", func() bool { l := ofi.LoadOf(e.port); return l.Peers == 0 && l.Conns == 0 })
}

// A peer that ends at any step of the handshake leaves nothing behind.
func TestEndInHandshake(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		e := try.Get(listen(provider, false))(t)
		defer func() { try.OK(t, e.close()) }()
		host := strings.TrimPrefix(e.port.Addr(), ofi.New(provider).Name()+"://")
		other := forge(t, provider, e.port.Addr())
		first := eventually.Value(t, "a connection", e.accepted)
		hello := greeting(provider, other.ep.Name())
		for _, k := range []int{0, 5, 12, 20, len(hello) - 1, len(hello)} { // the dialling side
			c := try.Get(net.Dial("tcp", host))(t)
			try.Get(c.Write(hello[:k]))(t)
			c.Close()
			if k == len(hello) {
				eventually.Value(t, "the end", eventually.Value(t, "a connection", e.accepted).down)
			}
		}
		ln := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
		defer ln.Close()
		for _, k := range []int{0, 5, 12, 20, len(hello) - 1} { // the listening side
			go func() {
				if c, err := ln.Accept(); err == nil {
					_, _ = c.Write(hello[:k])
					c.Close()
				}
			}()
			if c, err := e.port.Dial(eventually.Context(t), ofi.New(provider).Name()+"://"+ln.Addr().String(), newSink()); err == nil {
				t.Errorf("a handshake that ended after %d bytes gave a connection", k)
				c.Close()
			}
		}
		other.control.Close()
		eventually.Value(t, "the end", first.down)
		eventually.True(t, "no connection", func() bool { return ofi.LoadOf(e.port).Conns == 0 })
	})
}

// A peer that ends between the steps of a large payload, as a reader and as a writer, ends the
// connection and holds no buffer.
func TestEndInRendezvous(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		if provider == "shm" {
			t.Skip("its end is that of the memory: see WithShm")
		}
		e := try.Get(listen(provider, false))(t)
		defer func() { try.OK(t, e.close()) }()
		t.Run("before it reads", func(t *testing.T) {
			f := forge(t, provider, e.port.Addr())
			s := eventually.Value(t, "a connection", e.accepted)
			b := try.Get(e.pool.Get(1 << 20))(t)
			try.Get(s.conn.Send([]subsys.Frame{{Header: subsys.Header{Type: 16, Len: 1 << 20}, Data: b.Bytes(), Buf: b}}))(t)
			b.Release()
			f.control.Close()
			try.Fails(eventually.Value(t, "the end", s.down))(t, subsys.ErrPeerClosed)
		})
		for name, gone := range map[string]bool{"before it is read": true, "after it is read": false} {
			t.Run(name, func(t *testing.T) {
				f := forge(t, provider, e.port.Addr())
				s := eventually.Value(t, "a connection", e.accepted)
				const size = 20_000
				r := try.Get(f.ep.Register(f.mem[1<<15:], 99))(t)
				h := subsys.Header{Type: 16, Len: size}
				record := make([]byte, subsys.HeaderLen)
				h.Put(record)
				record[6] = 1
				at := r.Base
				record = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(record, at), r.Key)
				small := make([]byte, subsys.HeaderLen)
				(&subsys.Header{Type: 16}).Put(small)
				f.send(t, f.number, 0, 0, 0, small)
				eventually.True(t, "the first frame", func() bool { f.poll(); return s.frames.Load() == 1 })
				if gone {
					e.progress.Lock()
					f.post(f.number, 1, record)
					f.ep.Unregister(r)
					f.ep.Close()
					f.control.Close()
					e.progress.Unlock()
				} else {
					f.send(t, f.number, 1, 0, 0, record)
					eventually.True(t, "the payload", func() bool { f.poll(); return s.frames.Load() == 2 })
					f.control.Close()
					f.ep.Unregister(r)
				}
				try.Fails(eventually.Value(t, "the end", s.down))(t, subsys.ErrPeerClosed)
				if gone == (s.frames.Load() == 2) {
					t.Errorf("%d frames", s.frames.Load())
				}
			})
		}
		eventually.True(t, "no connection", func() bool { return ofi.LoadOf(e.port).Conns == 0 })
	})
}

// A context that only waits is not woken, if the provider can wait.
func TestIdle(t *testing.T) {
	if !*long {
		t.Skip("waits for 20 s: -long")
	}
	ctx := eventually.Context(t)
	opts := []rocl.Option{rocl.WithSocket(filepath.Join(t.TempDir(), "s")), rocl.WithTransports(ofi.New("tcp;ofi_rxm")), rocl.WithPoll(rocl.PollNever)}
	a, err := rocl.Open(ctx, opts...)
	if errors.Is(err, subsys.ErrUnavailable) {
		t.Skip(err)
	}
	b := try.Get(rocl.Open(ctx, opts...))(t)
	defer func() { try.Check(t, errors.Join(a.Close(), b.Close())) }()
	from, to := try.Get(a.Register(ctx, nil))(t), try.Get(b.Register(ctx, nil))(t)
	try.OK(t, from.SendBytes(ctx, to.ID(), 0, nil))
	try.Get(to.Recv(ctx))(t).Release()
	before := b.Stats()
	time.Sleep(20 * time.Second) // the time that is measured
	after := b.Stats()
	wakeups, sleeps := after.Wakeups-before.Wakeups, after.Sleeps-before.Sleeps
	if wakeups > 0 || sleeps > 10 { // a provider without a descriptor sleeps thousands of times
		t.Errorf("%d wake-ups, %d sleeps", wakeups, sleeps)
	}
}

// The provider over UDP sends again what the network has lost.
func TestLoss(t *testing.T) {
	const provider = "udp;ofi_rxd"
	if os.Getenv("ROCL_OFI_LOSS") == "" {
		inLossyNetwork(t)
		return
	}
	a, b := try.Get(listen(provider, false))(t), try.Get(listen(provider, false))(t)
	defer func() { try.OK(t, errors.Join(a.close(), b.close())) }()
	near := newSink()
	c := try.Get(a.port.Dial(eventually.Context(t), b.port.Addr(), near))(t)
	far := eventually.Value(t, "a connection", b.accepted)
	next := 0
	far.onFrames = func(fs []subsys.Frame) {
		for _, f := range fs {
			if int(f.Seq) != next || f.Len != uint32(sizeOf(uint64(next))) {
				t.Errorf("frame %d of %d bytes came in place of %d", f.Seq, f.Len, next)
			}
			next++
		}
	}
	c.Start()
	const n = 100
	for i := range n {
		buf := try.Get(a.pool.Get(sizeOf(uint64(i))))(t)
		fs := []subsys.Frame{{Header: subsys.Header{Type: 16, Seq: uint32(i), Len: uint32(buf.Len())}, Data: buf.Bytes(), Buf: buf}}
		for try.Get(c.Send(fs))(t) == 0 {
			eventually.Value(t, "room", near.writable)
		}
		buf.Release()
	}
	eventually.True(t, "all frames", func() bool { return far.frames.Load() == n })
}

// inLossyNetwork runs the test in a network of its own, which loses each 50th datagram.
func inLossyNetwork(t *testing.T) {
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil || os.Geteuid() != 0 {
			t.Skipf("needs root, ip and nft: %v", err)
		}
	}
	cmd := exec.CommandContext(eventually.Context(t), "sh", "-ec", `ip link set lo up
nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c meta l4proto udp numgen inc mod 50 == 0 counter drop'
"$0" -test.run '^TestLoss$'
nft list table inet t`, try.Get(os.Executable())(t))
	cmd.Env = append(os.Environ(), "ROCL_OFI_LOSS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("counter packets 0 ")) {
		t.Errorf("nothing was lost, or %v: %s", err, out)
	}
}
