// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"context"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// fakeConn is a connection that keeps its frames for the test.
type fakeConn struct {
	sent   []subsys.Frame
	closed bool
}

func (c *fakeConn) Transport() string { return "fake" }
func (c *fakeConn) Remote() string    { return "fake://peer" }
func (c *fakeConn) Start()            {}
func (c *fakeConn) Close() error      { c.closed = true; return nil }
func (c *fakeConn) Send(fs []subsys.Frame) (int, error) {
	for i := range fs {
		f := fs[i]
		f.Data = bytes.Clone(f.Data)
		c.sent = append(c.sent, f)
	}
	return len(fs), nil
}

// framesOf cuts fuzz bytes into frames, as a hostile peer could send them. Every field comes from
// the peer. Only the length of the payload is true, because the transport ensures that.
func framesOf(pool *buffers.Pool, data []byte) (fs []subsys.Frame) {
	for len(data) >= subsys.HeaderLen && len(fs) < 64 {
		var h subsys.Header
		if h.Parse(data) != nil {
			h = subsys.Header{Type: data[4], Seq: uint32(data[8]), Tag: uint64(data[16]), Dst: uint32(data[28])}
		}
		data = data[subsys.HeaderLen:]
		n := min(int(h.Len), len(data), 4096)
		h.Len = uint32(n)
		b, err := pool.Get(n)
		if err != nil {
			break
		}
		copy(b.Bytes(), data[:n])
		data = data[n:]
		fs = append(fs, subsys.Frame{Header: h, Data: b.Bytes(), Buf: b})
	}
	return fs
}

// frameBytes encodes frames with payloads of zeros.
func frameBytes(fs ...subsys.Header) []byte {
	var out []byte
	for _, h := range fs {
		var w [subsys.HeaderLen]byte
		h.Put(w[:])
		out = append(append(out, w[:]...), make([]byte, h.Len)...)
	}
	return out
}

// Whatever frames a peer sends, before the handshake or after it, there is no panic. At most as
// many bytes are kept as were granted, and nothing remains afterwards.
//
// Promise (Hostile peers): A frame with a false length cuts its connection only, and takes no
// memory. See also FuzzHeader.
func FuzzFrames(f *testing.F) {
	h := wire.Hello{Lane: "tcp,*", From: resource.MakeGID(1, 2, 0), To: resource.MakeGID(3, 4, 0), Cluster: (&Trust{}).hash()}
	hello := h.Append(nil)
	hw := frameBytes(subsys.Header{Type: wire.TypeHello, Len: uint32(len(hello))})
	copy(hw[subsys.HeaderLen:], hello)
	f.Add(false, hw)
	f.Add(false, frameBytes(subsys.Header{Type: wire.TypeAttach, Len: uint32(len((&wire.Attach{}).Append(nil)))}))
	f.Add(true, frameBytes(subsys.Header{Type: wire.TypeData, Len: 10, Dst: 1}, subsys.Header{Type: wire.TypeData, Seq: 1, Len: 4096, Dst: 1}))
	f.Add(true, frameBytes(subsys.Header{Type: wire.TypeData, Dst: 77, Src: 1}, subsys.Header{Type: wire.TypeNeed, Seq: 1, Dst: 1, Tag: 1 << 40}))
	f.Add(true, frameBytes(subsys.Header{Type: wire.TypeNeed, Dst: 1, Tag: 1 << 62}, subsys.Header{Type: wire.TypeCredit, Seq: 1, Dst: 9, Tag: 1<<64 - 1}))
	f.Add(true, frameBytes(subsys.Header{Type: wire.TypeGone, Dst: 9, Src: 1, Tag: 3}, subsys.Header{Type: wire.TypeBye, Seq: 1}, subsys.Header{Type: wire.TypeData, Seq: 2, Dst: 1}))
	f.Add(true, frameBytes(subsys.Header{Type: wire.TypeAck, Ack: 1 << 20}))
	f.Add(true, frameBytes(subsys.Header{Type: wire.TypeData, Seq: 5, Dst: 1}))
	f.Add(true, frameBytes(subsys.Header{Type: 255, Len: 3}))
	begin := frameBytes(subsys.Header{Type: wire.TypeBegin, Len: 4, Dst: 1, Src: 5, Tag: 9})
	begin[subsys.HeaderLen+1] = 20 // 5,120 bytes
	f.Add(true, append(begin, frameBytes(subsys.Header{Type: wire.TypePiece, Seq: 1, Len: 3000, Dst: 1},
		subsys.Header{Type: wire.TypePiece, Seq: 2, Len: 2120, Dst: 1, Tag: 3000}, subsys.Header{Type: wire.TypeData, Seq: 3, Dst: 1})...))
	f.Add(true, append(bytes.Clone(begin), frameBytes(subsys.Header{Type: wire.TypePiece, Seq: 1, Len: 3000, Dst: 1}, subsys.Header{Type: wire.TypePiece, Seq: 2, Dst: 1, Tag: 3000})...))
	call := subsys.Header{Type: wire.TypeCall, Dst: 1, Src: 5, Tag: 3}
	f.Add(true, frameBytes(call, subsys.Header{Type: wire.TypeData, Flags: wire.FlagCall, Seq: 1, Len: 10, Dst: 1, Src: 5}))
	f.Add(true, frameBytes(call, subsys.Header{Type: wire.TypeData, Flags: 0xff, Seq: 1, Len: 10, Dst: 1, Src: 5}, subsys.Header{Type: wire.TypeData, Flags: 0xfe, Seq: 2, Dst: 1}))
	f.Add(true, frameBytes(call, subsys.Header{Type: wire.TypeCredit, Seq: 1, Dst: 9}))
	f.Add(true, frameBytes(call, subsys.Header{Type: wire.TypeData, Flags: wire.FlagCall, Seq: 1, Dst: 77, Src: 5}))
	f.Add(true, append(frameBytes(call, subsys.Header{Type: wire.TypeBegin, Flags: wire.FlagCall, Seq: 1, Len: 4, Dst: 1, Src: 5}), frameBytes(subsys.Header{Type: wire.TypePiece, Seq: 2, Len: 2, Dst: 1, Src: 5})...))
	f.Add(true, frameBytes(subsys.Header{Type: wire.TypeData, Len: 3, Dst: wire.Replies, Tag: 1<<32 | 1}, subsys.Header{Type: wire.TypeNoReply, Seq: 1, Len: 1, Dst: 9, Tag: 1<<32 | 1}))
	f.Fuzz(func(t *testing.T, linked bool, data []byte) {
		pool := buffers.New()
		d := New(Config{Self: resource.MakeGID(3, 4, 0), Pool: pool, Trust: trusting("", "key"), Mailbox: FirstCredit,
			Resolve: func(context.Context, resource.GID) ([]string, error) { return nil, ErrGone }})
		box := try.Get(d.Mailbox(1, 0))(t)
		c := &fakeConn{}
		ep := d.welcome(c).(*endpoint)
		if linked {
			ep.endHandshake()
			l := try.Get(d.link(resource.MakeGID(1, 2, 0)))(t)
			l.mu.Lock()
			try.OK(t, l.bindLocked(ep, c, &wire.Attach{Session: 7, Gen: 1}))
			l.mu.Unlock()
			ep.link.Store(l)
			fl := l.flow(9)
			for range 3 {
				try.OK(t, fl.SendBytes(t.Context(), 1, 0, []byte("hello")))
			}
		}
		fs := framesOf(pool, data)
		var failed error
		for i := range fs {
			if fs[i].Len > 2048 && failed == nil {
				b, err := ep.asks(c, &fs[i].Header)
				if b != nil {
					b.Release()
				}
				failed = err
			}
			if failed == nil {
				failed = ep.comes(c, fs[i:i+1])
			}
		}
		for _, f := range fs {
			f.Buf.Release()
		}
		if !linked && ep.link.Load() != nil {
			t.Fatal("a peer without the key is linked")
		}
		if _, stored := box.Len(); stored > FirstCredit {
			t.Fatalf("%d bytes are kept, %d were granted", stored, FirstCredit)
		}
		if failed != nil {
			ep.Down(c, failed)
		} else {
			ep.endHandshake()
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Close(ended); err != nil && !linked {
			t.Fatal(err)
		}
		try.OK(t, pool.Close())
	})
}
