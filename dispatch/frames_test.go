// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// golden are the handshake's payloads of docs/PROTOCOL.md: node 1's context 2
// calls node 3's context 4 in the cluster "", both with the key "key".
var golden = map[string]string{
	"Hello":     "524f434c01000000000000000001000000000002000000000000000000030000000000040000000099e9d85137db46ef000102030405060708090a0b0c0d0e0f",
	"Challenge": "00000000000300000000000400000000f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff",
	"Attach":    "0100000000000000000000000000000001000000000000000500000000010000",
}

func goldenHello() hello {
	h := hello{from: resource.MakeGID(1, 2, 0), to: resource.MakeGID(3, 4, 0), cluster: (&Trust{}).hash()}
	for i := range h.nonce {
		h.nonce[i] = byte(i)
	}
	return h
}

func TestGoldenHandshake(t *testing.T) {
	h := goldenHello()
	wire := h.append(nil)
	if got := hex.EncodeToString(wire); got != golden["Hello"] {
		t.Errorf("Hello is\n%s, want\n%s", got, golden["Hello"])
	}
	var h2 hello
	if err := h2.parse(wire); err != nil || h2 != h {
		t.Errorf("parsed as %+v: %v", h2, err)
	}

	key := []byte("key")
	said := transcript{keys: [][]byte{key}, said: wire}
	c := challenge{from: h.to}
	for i := range c.nonce {
		c.nonce[i] = byte(0xf0 + i)
	}
	part := c.append(nil)[:32]
	if got := hex.EncodeToString(part); got != golden["Challenge"] {
		t.Errorf("Challenge is\n%s, want\n%s", got, golden["Challenge"])
	}
	c.macs = said.macs(frameChallenge, part)
	var c2 challenge
	if err := c2.parse(c.append(nil)); err != nil || c2.from != c.from || c2.nonce != c.nonce || !bytes.Equal(c2.macs, c.macs) {
		t.Errorf("parsed as %+v: %v", c2, err)
	}
	// The MAC is HMAC-SHA256 over the frame type, what was said and the part
	// in front of it.
	h1 := hmac.New(sha256.New, key)
	h1.Write(append(append([]byte{frameChallenge}, wire...), part...))
	if !hmac.Equal(h1.Sum(nil), c.macs) {
		t.Error("the MAC is another")
	}
	if m := said.mac([]byte("other"), frameChallenge, part); hmac.Equal(m[:], c.macs) {
		t.Error("the MAC does not depend on the key")
	}
	if m := said.mac(key, frameReady, part); hmac.Equal(m[:], c.macs) {
		t.Error("the MAC does not depend on who speaks")
	}

	a := attach{session: 1, gen: 1, have: 5, features: featurePieces}
	if got := hex.EncodeToString(a.append(nil)[:32]); got != golden["Attach"] {
		t.Errorf("Attach is\n%s, want\n%s", got, golden["Attach"])
	}
}

// fakeConn is a conn whose frames the test sees.
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

// framesOf cuts fuzz bytes into frames, as a hostile peer could send them:
// every field is theirs, only the length of the payload is true, which the
// transport sees to.
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

func wire(fs ...subsys.Header) []byte {
	var out []byte
	for _, h := range fs {
		var w [subsys.HeaderLen]byte
		h.Put(w[:])
		out = append(append(out, w[:]...), make([]byte, h.Len)...)
	}
	return out
}

// Whatever a peer sends, before the handshake or after it, there is no panic,
// at most as much is kept as was granted, and nothing is left afterwards.
func FuzzFrames(f *testing.F) {
	h := goldenHello()
	hw := wire(subsys.Header{Type: frameHello, Len: helloLen})
	copy(hw[subsys.HeaderLen:], h.append(nil))
	f.Add(false, hw)
	f.Add(false, wire(subsys.Header{Type: frameAttach, Len: attachLen}))
	f.Add(true, wire(subsys.Header{Type: frameData, Len: 10, Dst: 1}, subsys.Header{Type: frameData, Seq: 1, Len: 4096, Dst: 1}))
	f.Add(true, wire(subsys.Header{Type: frameData, Dst: 77, Src: 1}, subsys.Header{Type: frameNeed, Seq: 1, Dst: 1, Tag: 1 << 40}))
	f.Add(true, wire(subsys.Header{Type: frameNeed, Dst: 1, Tag: 1 << 62}, subsys.Header{Type: frameCredit, Seq: 1, Dst: 9, Tag: 1<<64 - 1}))
	f.Add(true, wire(subsys.Header{Type: frameGone, Dst: 9, Src: 1, Tag: 3}, subsys.Header{Type: frameBye, Seq: 1}, subsys.Header{Type: frameData, Seq: 2, Dst: 1}))
	f.Add(true, wire(subsys.Header{Type: frameAck, Ack: 1 << 20}))
	f.Add(true, wire(subsys.Header{Type: frameData, Seq: 5, Dst: 1}))
	f.Add(true, wire(subsys.Header{Type: 255, Len: 3}))
	begin := wire(subsys.Header{Type: frameBegin, Len: 4, Dst: 1, Src: 5, Tag: 9})
	begin[subsys.HeaderLen+1] = 20 // 5,120 bytes
	f.Add(true, append(begin, wire(subsys.Header{Type: framePiece, Seq: 1, Len: 3000, Dst: 1},
		subsys.Header{Type: framePiece, Seq: 2, Len: 2120, Dst: 1, Tag: 3000}, subsys.Header{Type: frameData, Seq: 3, Dst: 1})...))
	f.Add(true, append(bytes.Clone(begin), wire(subsys.Header{Type: framePiece, Seq: 1, Len: 3000, Dst: 1}, subsys.Header{Type: framePiece, Seq: 2, Dst: 1, Tag: 3000})...))
	f.Fuzz(func(t *testing.T, linked bool, data []byte) {
		pool := buffers.New()
		d := New(Config{Self: resource.MakeGID(3, 4, 0), Pool: pool, Trust: trusting("", "key"), Mailbox: FirstCredit,
			Resolve: func(context.Context, resource.GID) ([]string, error) { return nil, ErrGone }})
		box, err := d.Mailbox(1, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := &fakeConn{}
		ep := d.welcome(c).(*endpoint)
		if linked {
			ep.settle()
			l, err := d.link(resource.MakeGID(1, 2, 0))
			if err != nil {
				t.Fatal(err)
			}
			l.mu.Lock()
			if err := l.bind(ep, c, &attach{session: 7, gen: 1}); err != nil {
				t.Fatal(err)
			}
			l.mu.Unlock()
			ep.link.Store(l)
			fl := l.flow(9)
			for range 3 {
				if err := fl.SendBytes(t.Context(), 1, 0, []byte("hello")); err != nil {
					t.Fatal(err)
				}
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
			t.Fatal("a stranger without the key is linked")
		}
		if _, stored := box.Len(); stored > FirstCredit {
			t.Fatalf("%d bytes are kept, %d were granted", stored, FirstCredit)
		}
		if failed != nil {
			ep.Down(c, failed)
		} else {
			ep.settle()
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Close(over); err != nil && !linked {
			t.Fatal(err)
		}
		if err := pool.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestHandshakeRefuses(t *testing.T) {
	h := goldenHello()
	good := h.append(nil)
	for name, b := range map[string][]byte{
		"empty": nil, "short": good[:63], "long": append(bytes.Clone(good), 0),
		"magic": append([]byte("rocl"), good[4:]...),
	} {
		if err := new(hello).parse(b); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := bytes.Clone(good)
	other[4] = 2
	if err := new(hello).parse(other); !errors.Is(err, ErrRefused) {
		t.Errorf("another version: %v", err)
	}
	for _, b := range [][]byte{nil, make([]byte, 63), make([]byte, 65), make([]byte, 64)} {
		if err := new(attach).parse(b); !errors.Is(err, ErrProtocol) {
			t.Errorf("attach of %d zeros: %v", len(b), err)
		}
	}
	for _, b := range [][]byte{nil, make([]byte, 32), make([]byte, 63), make([]byte, 65), make([]byte, challengeLen+macLen*(MaxKeys+1))} {
		if err := new(challenge).parse(b); !errors.Is(err, ErrProtocol) {
			t.Errorf("challenge of %d bytes: %v", len(b), err)
		}
	}
}
