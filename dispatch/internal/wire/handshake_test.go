// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/rocl-go/rocl/resource"
)

// golden has the handshake's payloads of docs/PROTOCOL.md: node 1's context 2 dials node 3's
// context 4 in the cluster "", which has the hash 0xef46db3751d8e999. Both have the key "key".
var golden = map[string]string{
	"Hello":     "524f434c02000000000000000001000000000002000000000000000000030000000000040000000099e9d85137db46ef000102030405060708090a0b0c0d0e0f",
	"Challenge": "00000000000300000000000400000000f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff",
	"Attach":    "0100000000000000000000000000000001000000000000000500000000010000" + "08000000000000000900000000000000",
}

func goldenHello() Hello {
	h := Hello{From: resource.MakeGID(1, 2, 0), To: resource.MakeGID(3, 4, 0), Cluster: 0xef46db3751d8e999}
	for i := range h.Nonce {
		h.Nonce[i] = byte(i)
	}
	return h
}

func TestGoldenHandshake(t *testing.T) {
	h := goldenHello()
	wire := h.Append(nil)
	if got := hex.EncodeToString(wire); got != golden["Hello"] {
		t.Errorf("Hello is\n%s, want\n%s", got, golden["Hello"])
	}
	var h2 Hello
	if err := h2.Parse(wire); err != nil || h2 != h {
		t.Errorf("parsed as %+v: %v", h2, err)
	}
	withLane := h
	withLane.Lane = "tcp,*"
	if err := h2.Parse(withLane.Append(nil)); err != nil || h2 != withLane {
		t.Errorf("with a lane, parsed as %+v: %v", h2, err)
	}

	key := []byte("key")
	said := Transcript{Keys: [][]byte{key}, Said: wire}
	c := Challenge{From: h.To}
	for i := range c.Nonce {
		c.Nonce[i] = byte(0xf0 + i)
	}
	part := c.Append(nil)[:32]
	if got := hex.EncodeToString(part); got != golden["Challenge"] {
		t.Errorf("Challenge is\n%s, want\n%s", got, golden["Challenge"])
	}
	c.MACs = said.MACs(TypeChallenge, part)
	var c2 Challenge
	if err := c2.Parse(c.Append(nil)); err != nil || c2.From != c.From || c2.Nonce != c.Nonce || !bytes.Equal(c2.MACs, c.MACs) {
		t.Errorf("parsed as %+v: %v", c2, err)
	}
	// The MAC is HMAC-SHA256 over the frame type, what was said, and the part of the message before
	// the MAC.
	h1 := hmac.New(sha256.New, key)
	h1.Write(append(append([]byte{TypeChallenge}, wire...), part...))
	if !hmac.Equal(h1.Sum(nil), c.MACs) {
		t.Error("the MAC is another")
	}
	if m := said.MAC([]byte("other"), TypeChallenge, part); hmac.Equal(m[:], c.MACs) {
		t.Error("the MAC does not depend on the key")
	}
	if m := said.MAC(key, TypeReady, part); hmac.Equal(m[:], c.MACs) {
		t.Error("the MAC does not depend on the side that speaks")
	}

	a := Attach{Session: 1, Gen: 1, Have: 5, Features: 1, Past: Past{Session: 8, Have: 9}}
	if got := hex.EncodeToString(a.Append(nil)[:AttachPart]); got != golden["Attach"] {
		t.Errorf("Attach is\n%s, want\n%s", got, golden["Attach"])
	}
}

func TestHandshakeRefuses(t *testing.T) {
	h := goldenHello()
	good := h.Append(nil)
	for name, b := range map[string][]byte{
		"empty": nil, "short": good[:63], "long": append(bytes.Clone(good), 0),
		"magic": append([]byte("rocl"), good[4:]...),
	} {
		if err := new(Hello).Parse(b); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := bytes.Clone(good)
	other[4] = protoVersion - 1
	if err := new(Hello).Parse(other); !errors.Is(err, ErrRefused) {
		t.Errorf("another version: %v", err)
	}
	for _, b := range [][]byte{nil, make([]byte, attachLen-1), make([]byte, attachLen+1), make([]byte, attachLen)} {
		if err := new(Attach).Parse(b); !errors.Is(err, ErrProtocol) {
			t.Errorf("attach of %d zeros: %v", len(b), err)
		}
	}
	for _, b := range [][]byte{nil, make([]byte, 32), make([]byte, 63), make([]byte, 65), make([]byte, ChallengePart+macLen*(MaxKeys+1))} {
		if err := new(Challenge).Parse(b); !errors.Is(err, ErrProtocol) {
			t.Errorf("challenge of %d bytes: %v", len(b), err)
		}
	}
}

// A refusal is read as it was written, and no other payload is.
func TestRefuse(t *testing.T) {
	r := Refuse{Why: RefusedUnknown, Gen: 7, Past: Past{Session: 8, Have: 9}}
	b := r.Append(nil)
	if got := hex.EncodeToString(b); got != "03000000000000000700000000000000"+"08000000000000000900000000000000" {
		t.Errorf("Refuse is %s", got)
	}
	var again Refuse
	if err := again.Parse(b); err != nil || again != r {
		t.Errorf("parsed as %+v: %v", again, err)
	}
	for _, b := range [][]byte{nil, b[:len(b)-1], append(b, 0)} {
		if err := again.Parse(b); !errors.Is(err, ErrProtocol) {
			t.Errorf("a refusal of %d bytes: %v", len(b), err)
		}
	}
}
