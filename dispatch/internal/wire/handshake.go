// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/rocl-go/rocl/resource"
)

// Protocol: The handshake
//
// Four frames bind a connection to a session. Their headers have the type and the length, else 0.
// Identifiers are those of contexts.
//
// | frame | payload |
// |---|---|
// | 1 Hello, dialler | `ROCL`, version 2 u8, length of the lane u8, 0 u16, from, to, hash of the
// cluster's name u64, nonce 16 bytes, lane |
// | 2 Challenge, acceptor | its identifier, nonce 16, a MAC of 32 bytes under each of its keys, 1
// to 8 |
// | 3 Attach, dialler | session u64, known u64, gen u64, have u32, move u8, features u8 (bit 0:
// traces), 0 u16, past 16 bytes, MAC |
// | 4 Ready, acceptor | as Attach |
// | 5 Refuse, in place of Ready | why u32, 0 u32, gen u64, past 16 bytes |
//
// - **Hash**: FNV-1a, 64 bits, of the name, which is "" (cbf29ce484222325) without a cluster.
// - **MAC**: HMAC-SHA256 under a link key of the terms, of the frame's type u8, the payloads of all
//   frames before, and this payload up to its MAC. The dialler continues with the first of its keys
//   that has a MAC in Challenge, and both use it from then on.
// - **session** is the sender's random number of its end of the session, not 0. **known** is the
//   other end's, or 0 for a new session. **gen** is the number of the connection in the session,
//   from 1; a higher one replaces a connection. Ready repeats it. **have** is the number of the
//   frame expected next.
// - **move** is 1 if the dialler would leave a working connection. Until Ready, both ends receive
//   over that one, so Attach may state fewer frames than were acknowledged. Ready is exact.
// - **past** tells of the session that the sender gave up last: its number of it u64, the frame
//   expected u32, 0 u32; or zeros. In Refuse only for why 3, if known is that session. The peer
//   ends its session, and sends the messages from that frame on in the next one.
// - **why**: 1 gen is not above the acceptor's, which is here; 2 the acceptor dials too, and has
//   the lower identifier, which goes first; 3 it does not know the session; 4 the move is to a
//   worse route.
// - **lane** is a list of transports with commas, best first, each TRANSPORT or
//   TRANSPORT://NETWORK/BITS; `*` at the end stands for all others. It is empty for the common lane.
//   Each lane is a session of its own, which both sides dial. Bit 30 of a resource's serial says
//   that the resource is reached over the lane that its attribute `rocl.over` names.
//
// An acceptor that does not know the version, cluster, target or key closes without an answer. Each
// handshake has 2 s.

// Lengths of messages. The length of a Challenge depends on how many MACs follow its first part.
const (
	protoVersion  = 2
	helloLen      = 64 // bytes before the name of the lane
	ChallengePart = 32 // bytes before the MACs
	macLen        = sha256.Size
	AttachPart    = 32 + pastLen // bytes before the MAC
	attachLen     = AttachPart + macLen
	refuseLen     = 16 + pastLen
)

var protoMagic = [4]byte{'R', 'O', 'C', 'L'}

// Hello is the dialler's first message.
type Hello struct {
	From, To resource.GID
	Lane     string // the transports that the link may use, best first; "": the common lane
	Cluster  uint64 // the hash of the cluster's name
	Nonce    [16]byte
}

// Append appends the encoded message to b.
func (h *Hello) Append(b []byte) []byte {
	b = append(b, protoMagic[:]...)
	b = append(b, protoVersion, byte(len(h.Lane)), 0, 0)
	b = appendGID(b, h.From)
	b = appendGID(b, h.To)
	b = binary.LittleEndian.AppendUint64(b, h.Cluster)
	b = append(b, h.Nonce[:]...)
	return append(b, h.Lane...)
}

// Parse reads a message. It fails with [ErrProtocol], or with [ErrRefused] for another version.
func (h *Hello) Parse(b []byte) error {
	if len(b) < helloLen || [4]byte(b) != protoMagic {
		return fmt.Errorf("%w: not a hello", ErrProtocol)
	}
	if b[4] != protoVersion {
		return fmt.Errorf("%w: protocol version %d, ours is %d", ErrRefused, b[4], protoVersion)
	}
	if len(b) != helloLen+int(b[5]) {
		return fmt.Errorf("%w: a hello of %d bytes with a lane of %d", ErrProtocol, len(b), b[5])
	}
	h.From, h.To = resource.GetGID(b[8:]), resource.GetGID(b[24:])
	h.Cluster = binary.LittleEndian.Uint64(b[40:])
	copy(h.Nonce[:], b[48:])
	h.Lane = string(b[helloLen:])
	return nil
}

// Challenge is the acceptor's answer to Hello.
type Challenge struct {
	From  resource.GID
	Nonce [16]byte
	MACs  []byte // MACs of the message before them, one for each key of the acceptor
}

// Append appends the encoded message to b.
func (c *Challenge) Append(b []byte) []byte {
	b = appendGID(b, c.From)
	b = append(b, c.Nonce[:]...)
	return append(b, c.MACs...)
}

// Parse reads a message. The MACs refer to b.
func (c *Challenge) Parse(b []byte) error {
	if n := (len(b) - ChallengePart) / macLen; n < 1 || n > MaxKeys || len(b) != ChallengePart+n*macLen {
		return fmt.Errorf("%w: not a challenge", ErrProtocol)
	}
	c.From = resource.GetGID(b)
	copy(c.Nonce[:], b[16:])
	c.MACs = b[ChallengePart:]
	return nil
}

// Attach is the dialler's second message. Ready, the acceptor's answer, has the same form.
type Attach struct {
	Session  uint64 // the identifier of the sender's end
	Known    uint64 // the identifier of the peer's end; 0: none
	Gen      uint64 // the number of the connection
	Have     uint32 // the frame that the sender expects next
	IsMove   bool   // the sender has a working connection, over a route that is worse for it
	Features uint8  // features that the sender understands, such as FeatureTraces
	Past     Past   // how far the peer had come in the session that the sender has given up last
	MAC      [macLen]byte
}

// FeatureTraces is the feature that a context understands frames of TypeTrace and TypeFollow.
const FeatureTraces = 1

// A Past says how far the frames of the peer had come when the sender gave up a session. The peer
// may not know yet that the session is over.
type Past struct {
	Session uint64 // the identifier of the sender's end; 0: the sender does not know any more
	Have    uint32 // the frame that the sender expected next
}

// Append appends the encoded message to b.
func (a *Attach) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, a.Session)
	b = binary.LittleEndian.AppendUint64(b, a.Known)
	b = binary.LittleEndian.AppendUint64(b, a.Gen)
	b = binary.LittleEndian.AppendUint32(b, a.Have)
	move := byte(0)
	if a.IsMove {
		move = 1
	}
	b = append(b, move, a.Features, 0, 0)
	b = a.Past.append(b)
	return append(b, a.MAC[:]...)
}

// Parse reads a message.
func (a *Attach) Parse(b []byte) error {
	if len(b) != attachLen {
		return fmt.Errorf("%w: not an attach", ErrProtocol)
	}
	a.Session = binary.LittleEndian.Uint64(b)
	a.Known = binary.LittleEndian.Uint64(b[8:])
	a.Gen = binary.LittleEndian.Uint64(b[16:])
	a.Have = binary.LittleEndian.Uint32(b[24:])
	a.IsMove, a.Features = b[28] == 1, b[29]
	a.Past.parse(b[32:])
	copy(a.MAC[:], b[AttachPart:])
	if a.Session == 0 || a.Gen == 0 {
		return fmt.Errorf("%w: attach without session", ErrProtocol)
	}
	return nil
}

// pastLen is the length of an encoded Past.
const pastLen = 16

func (p *Past) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, p.Session)
	b = binary.LittleEndian.AppendUint32(b, p.Have)
	return append(b, 0, 0, 0, 0)
}

func (p *Past) parse(b []byte) {
	p.Session, p.Have = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
}

// A Refusal says why a connection was not attached, though the peer knows the key.
type Refusal uint32

const (
	RefusedStale   Refusal = 1 + iota // Gen is not above the acceptor's, which Refuse tells
	RefusedBusy                       // the acceptor dials too and goes first
	RefusedUnknown                    // the acceptor does not have the session that Known names
	RefusedWorse                      // the acceptor has a better connection
)

// Refuse is the acceptor's answer in place of Ready.
type Refuse struct {
	Why  Refusal
	Gen  uint64 // the acceptor's number; a dialler that was refused as stale proposes a higher one
	Past Past   // for RefusedUnknown: how far the session had come, if the acceptor knows
}

// Append appends the encoded message to b.
func (r *Refuse) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Why))
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, r.Gen)
	return r.Past.append(b)
}

// Parse reads a message.
func (r *Refuse) Parse(b []byte) error {
	if len(b) != refuseLen {
		return fmt.Errorf("%w: not a refusal", ErrProtocol)
	}
	r.Why, r.Gen = Refusal(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint64(b[8:])
	r.Past.parse(b[16:])
	return nil
}

// appendGID appends the encoded identifier to b.
func appendGID(b []byte, g resource.GID) []byte {
	var w [16]byte
	resource.PutGID(w[:], g)
	return append(b, w[:]...)
}

// A Transcript keeps what both sides have said, for the MACs, and the keys that the handshake may
// continue with. Once a key is proven to be the peer's too, it is the only one.
type Transcript struct {
	Keys [][]byte
	Said []byte
}

// MAC returns the MAC of part under key. The side that sends frames of type role says part next.
func (t *Transcript) MAC(key []byte, role byte, part []byte) (m [macLen]byte) {
	h := hmac.New(sha256.New, key)
	h.Write([]byte{role})
	h.Write(t.Said)
	h.Write(part)
	h.Sum(m[:0])
	return m
}

// MACs returns the MACs of part under each key, one behind the other.
func (t *Transcript) MACs(role byte, part []byte) (all []byte) {
	for _, k := range t.Keys {
		m := t.MAC(k, role, part)
		all = append(all, m[:]...)
	}
	return all
}

// Proves reports whether one of macs is the MAC of part under one of the keys. It keeps the first
// such key and drops the others. It always compares all keys with all MACs. So the time that it
// takes does not tell which MAC was nearly right.
func (t *Transcript) Proves(role byte, part, macs []byte) bool {
	var by [][]byte
	for _, k := range t.Keys {
		m := t.MAC(k, role, part)
		for theirs := macs; len(theirs) >= macLen; theirs = theirs[macLen:] {
			if hmac.Equal(m[:], theirs[:macLen]) && by == nil {
				by = [][]byte{k}
			}
		}
	}
	if by == nil {
		return false
	}
	t.Keys = by
	return true
}
