// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/rocl-go/rocl/resource"
)

// someHello returns a Hello of node 1's context 2 to node 3's context 4.
func someHello() Hello {
	h := Hello{From: resource.MakeGID(1, 2, 0), To: resource.MakeGID(3, 4, 0), Cluster: 5}
	for i := range h.Nonce {
		h.Nonce[i] = byte(i)
	}
	return h
}

// A message is read as it was written. Its MAC covers what was said, the side that speaks, and the
// key.
func TestHandshake(t *testing.T) {
	h := someHello()
	wire := h.Append(nil)
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
}

func TestHandshakeRefuses(t *testing.T) {
	h := someHello()
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
