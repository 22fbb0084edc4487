// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/rocl-go/rocl/resource"
)

// The handshake binds a conn to the link of two contexts. The dialler speaks
// first; each message is one frame.
//
//	dialler                                        acceptor
//	  │ Hello     version, who, to whom, cluster, nonce │
//	  ├────────────────────────────────────────────────►│ silence unless all fit
//	  │ Challenge who, nonce, MACs                      │
//	  │◄────────────────────────────────────────────────┤
//	  │ Attach    session, known, gen, have, MAC        │
//	  ├────────────────────────────────────────────────►│ the conn is the link's,
//	  │ Ready     session, known, gen, have, MAC        │ an earlier one is cut
//	  │◄────────────────────────────────────────────────┤
//
// Each MAC is HMAC-SHA256 under a key the directory gave both, over
// everything said before, so that neither side can be made to believe a
// recorded conversation. While keys are being changed a context has several:
// the acceptor proves that it knows each of its own, the dialler goes on under
// the first of its own that is among them, and so does the acceptor.
//
// session names one end's state of the link; known is the other end's as
// remembered; have is the number of the frame expected next: sending resumes
// there. gen counts the conns of the session: a conn
// with a higher one replaces its predecessor, and where both sides dial at
// once, the context with the lower identifier wins.
const (
	protoVersion = 1
	helloLen     = 64
	challengeLen = 32 // and a MAC for each key
	macLen       = sha256.Size
	attachLen    = 64
	refuseLen    = 16
)

var protoMagic = [4]byte{'R', 'O', 'C', 'L'}

type hello struct {
	from, to resource.GID
	lane     uint8 // of the dialler's rules; 0: the common one
	cluster  uint64
	nonce    [16]byte
}

func (h *hello) append(b []byte) []byte {
	b = append(b, protoMagic[:]...)
	b = append(b, protoVersion, h.lane, 0, 0)
	b = appendGID(b, h.from)
	b = appendGID(b, h.to)
	b = binary.LittleEndian.AppendUint64(b, h.cluster)
	return append(b, h.nonce[:]...)
}

func (h *hello) parse(b []byte) error {
	if len(b) != helloLen || [4]byte(b) != protoMagic {
		return fmt.Errorf("%w: not a hello", ErrProtocol)
	}
	if b[4] != protoVersion {
		return fmt.Errorf("%w: protocol version %d, ours is %d", ErrRefused, b[4], protoVersion)
	}
	if h.lane = b[5]; h.lane >= MaxLanes {
		return fmt.Errorf("%w: lane %d, there are %d", ErrRefused, h.lane, MaxLanes)
	}
	h.from, h.to = resource.GetGID(b[8:]), resource.GetGID(b[24:])
	h.cluster = binary.LittleEndian.Uint64(b[40:])
	copy(h.nonce[:], b[48:])
	return nil
}

type challenge struct {
	from  resource.GID
	nonce [16]byte
	macs  []byte // one for each key of the acceptor
}

func (c *challenge) append(b []byte) []byte {
	b = appendGID(b, c.from)
	b = append(b, c.nonce[:]...)
	return append(b, c.macs...)
}

func (c *challenge) parse(b []byte) error {
	if n := (len(b) - challengeLen) / macLen; n < 1 || n > MaxKeys || len(b) != challengeLen+n*macLen {
		return fmt.Errorf("%w: not a challenge", ErrProtocol)
	}
	c.from = resource.GetGID(b)
	copy(c.nonce[:], b[16:])
	c.macs = b[challengeLen:]
	return nil
}

// Features of a context, which it tells in Attach and Ready. Bits without a name are
// passed over.
const (
	featurePieces = 1 << iota // takes large messages in pieces

	features = featurePieces
)

// attach is also the form of Ready.
type attach struct {
	session, known, gen uint64
	have                uint32
	move                bool  // there is a conn that works, over a route that is worse for us
	features            uint8 // what else we understand
	mac                 [32]byte
}

func (a *attach) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, a.session)
	b = binary.LittleEndian.AppendUint64(b, a.known)
	b = binary.LittleEndian.AppendUint64(b, a.gen)
	b = binary.LittleEndian.AppendUint32(b, a.have)
	move := byte(0)
	if a.move {
		move = 1
	}
	b = append(b, move, a.features, 0, 0)
	return append(b, a.mac[:]...)
}

func (a *attach) parse(b []byte) error {
	if len(b) != attachLen {
		return fmt.Errorf("%w: not an attach", ErrProtocol)
	}
	a.session = binary.LittleEndian.Uint64(b)
	a.known = binary.LittleEndian.Uint64(b[8:])
	a.gen = binary.LittleEndian.Uint64(b[16:])
	a.have = binary.LittleEndian.Uint32(b[24:])
	a.move, a.features = b[28] == 1, b[29]
	copy(a.mac[:], b[32:])
	if a.session == 0 || a.gen == 0 {
		return fmt.Errorf("%w: attach without session", ErrProtocol)
	}
	return nil
}

// A refusal says why a conn, though of one who knows the key, was not attached.
type refusal uint32

const (
	refusedStale   refusal = 1 + iota // gen is not above ours, which is told
	refusedBusy                       // we are dialling and go first
	refusedUnknown                    // the session known of us is no more
	refusedWorse                      // we have a better conn
)

func appendGID(b []byte, g resource.GID) []byte {
	var w [16]byte
	resource.PutGID(w[:], g)
	return append(b, w[:]...)
}

// transcript is what has been said so far, for the MACs, and the keys under
// which it may go on: one, once one has been proven to be the peer's too.
type transcript struct {
	keys [][]byte
	said []byte
}

func (t *transcript) mac(key []byte, role byte, part []byte) (m [macLen]byte) {
	h := hmac.New(sha256.New, key)
	h.Write([]byte{role})
	h.Write(t.said)
	h.Write(part)
	h.Sum(m[:0])
	return m
}

// macs are those of part under each key.
func (t *transcript) macs(role byte, part []byte) (all []byte) {
	for _, k := range t.keys {
		m := t.mac(k, role, part)
		all = append(all, m[:]...)
	}
	return all
}

// proven says whether one of macs is that of part under a key of ours, and
// keeps the first such key alone. All are compared, to the end: time does not
// tell which was nearly right.
func (t *transcript) proven(role byte, part, macs []byte) bool {
	var by [][]byte
	for _, k := range t.keys {
		m := t.mac(k, role, part)
		for theirs := macs; len(theirs) >= macLen; theirs = theirs[macLen:] {
			if hmac.Equal(m[:], theirs[:macLen]) && by == nil {
				by = [][]byte{k}
			}
		}
	}
	if by == nil {
		return false
	}
	t.keys = by
	return true
}
