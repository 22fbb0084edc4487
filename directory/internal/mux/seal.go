// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/rocl-go/rocl/resource"
)

// Protocol: Between directories
//
// This part may change. A member has one port, UDP and TCP. A datagram is:
//
//     R | kind u8 | tag u16 of the key | sender u64 | counter u64 | content
//
// Kinds: 1 to one member, 2 cast, 3 beacon, 4 head and 5 body of a large one (in a stream), 6
// gossip, 7 hello. The counter begins with 1, and is never used twice under one key. The content is
// sealed with AES-256-GCM: the nonce is 4 zero bytes and the counter, the 20 bytes before are
// authenticated. Without a key it is as it is, the XXH64 (seed: the first 8 bytes of the key below)
// of nonce, 20 bytes and content, and 8 zero bytes.
//
// Keys are HMAC-SHA256; K is HMAC(cluster's key or nothing, "rocl datagram" 0 name). Kinds 1, 4, 5:
// HMAC(K, "one" sender, its epoch, receiver, its epoch), u64 each; 6: "gossip" and the same; 2:
// "cast" sender, its epoch; 3: "beacon"; 7: "hello". The tag is the first two bytes of HMAC(K,
// "tag"). A datagram that does not open, of an unknown sender, or with a counter seen or 8,192
// behind is dropped. Counters of beacons and hellos are random, not remembered.
//
// - **One member**: 0 and a message for the directory; 1 and u64: accept my casts from this number;
//   2: from which? Casts without a known number are dropped, and asked about every 50 ms.
// - **Gossip**: a packet of memberlist 0.7, label `rocl NAME`, sealed once more with HMAC(cluster's
//   key, "rocl gossip") if there is a key.
// - **Hello**: 0 asks or 1 answers u8, token u64. Sent to an address before it is joined; the
//   answer repeats the token. The receiver joins a member that it does not see alive.
// - **Beacon**: the port u16. Sent twice a second by a lone member, every 2 s by the first of
//   several, and to an address before a stream of memberlist.
// - **Large**: above 1,232 bytes, by a stream: `L`, kind 4 with length u32, kind 5 with the next
//   counter.
//
// A stream that begins with 244 is memberlist's. With a key, all streams are in [TLS](#tls), ALPN
// `rocl-dir/1`, secrets HMAC(each key, "rocl stream").

// The head of a datagram is authenticated but not hidden. Its key tells which of the cluster's keys
// sealed it, while there are several.
const (
	magic    = 'R'
	headLen  = 20
	overhead = headLen + 16 // with the tag of the seal

	kindOne  = 1 // from one member to one
	kindCast = 2 // to all members
	// A beacon goes to any member at an address or in the group, also to members that know no other
	// yet.
	kindBeacon = 3
	kindLarge  = 4 // begins a stream to one member
	kindBody   = 5 // the payload of that stream
	kindGossip = 6 // memberlist's, from one member to one
	kindHello  = 7 // to an address: is a member there?
)

// window is how many datagrams may overtake one another.
const window = 1 << 13

// A replay remembers which counters were used. The zero value has seen none. Counters begin above
// 0.
type replay struct {
	top  uint64
	seen [window / 64]uint64
}

// first reports whether n is new, and remembers it.
func (r *replay) first(n uint64) bool {
	switch {
	case n == 0 || n <= r.top && r.top-n >= window:
		return false
	case n > r.top:
		if n-r.top >= window {
			clear(r.seen[:])
		} else {
			for i := r.top + 1; i < n; i++ {
				r.seen[i%window/64] &^= 1 << (i % 64)
			}
		}
		r.top = n
	case r.seen[n%window/64]&(1<<(n%64)) != 0:
		return false
	}
	r.seen[n%window/64] |= 1 << (n % 64)
	return true
}

// markUpTo marks all counters up to n as used.
func (r *replay) markUpTo(n uint64) {
	r.top = n
	for i := range r.seen {
		r.seen[i] = ^uint64(0)
	}
}

// keys are the cluster's keys. The first seals.
type keys struct {
	tags  []uint16
	bytes [][]byte
	alike bool // two keys have the same tag
	none  bool // there is no key: datagrams are checked, not sealed
}

// newKeys returns the keys for datagrams, derived from the keys of a cluster and its name. If of is
// empty, the one key is derived from the name alone.
func newKeys(cluster string, of [][]byte) *keys {
	k := &keys{none: len(of) == 0}
	if k.none {
		of = [][]byte{nil}
	}
	for _, b := range of {
		h := hmac.New(sha256.New, b)
		h.Write([]byte("rocl datagram\x00" + cluster))
		sub := h.Sum(nil)
		tag := binary.LittleEndian.Uint16(derive(sub, "tag"))
		k.alike = k.alike || slices.Contains(k.tags, tag)
		k.bytes, k.tags = append(k.bytes, sub), append(k.tags, tag)
	}
	return k
}

// each calls f with the keys that may have sealed b, until f reports true, and reports whether it
// did.
func (k *keys) each(b []byte, f func(b []byte, i int) bool) bool {
	tag := binary.LittleEndian.Uint16(b[2:])
	for i := range k.tags {
		if k.tags[i] != tag {
			continue
		}
		try := b
		if k.alike {
			try = slices.Clone(b) // a wrong key destroys it
		}
		if f(try, i) {
			return true
		}
	}
	return false
}

// derive returns a key derived from key, for the purpose what and the numbers of.
func derive(key []byte, what string, of ...uint64) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(what))
	var b [8]byte
	for _, v := range of {
		binary.LittleEndian.PutUint64(b[:], v)
		h.Write(b[:])
	}
	return h.Sum(nil)
}

// cipher returns the cipher of a key that was derived from one of k's.
func (k *keys) cipher(key []byte) cipher.AEAD {
	if k.none {
		return checksum(binary.LittleEndian.Uint64(key))
	}
	return aead(key)
}

// A checksum takes the place of a cipher in a cluster without a key. AES would hide nothing from a
// program that knows the cluster's name, and would cost time. A damaged datagram, or one for
// another incarnation or cluster, is detected all the same: what otherwise goes into the key goes
// into the seed. The seal is XXH64 of nonce, head and datagram, and eight zero bytes.
type checksum uint64

func (c checksum) NonceSize() int { return nonceLen }
func (c checksum) Overhead() int  { return overhead - headLen }

func (c checksum) sum(nonce, plain, head []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(uint64(c))
	_, _ = d.Write(nonce)
	_, _ = d.Write(head)
	_, _ = d.Write(plain)
	return d.Sum64()
}

// Seal implements cipher.AEAD.
func (c checksum) Seal(b, nonce, plain, head []byte) []byte {
	n := c.sum(nonce, plain, head)
	b = binary.LittleEndian.AppendUint64(append(b, plain...), n)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0)
}

// Open implements cipher.AEAD.
func (c checksum) Open(b, nonce, sealed, head []byte) ([]byte, error) {
	at := len(sealed) - c.Overhead()
	if at < 0 || binary.LittleEndian.Uint64(sealed[at+8:]) != 0 || binary.LittleEndian.Uint64(sealed[at:]) != c.sum(nonce, sealed[:at], head) {
		return nil, errChecksum
	}
	return append(b, sealed[:at]...), nil
}

var errChecksum = errors.New("mux: the checksum does not match")

// aead returns AES-256-GCM with a key of 32 bytes.
func aead(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	a, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // nonce and tag have their usual lengths
	}
	return a
}

// seals are the ciphers of one direction, one for each key of the cluster, made when first needed.
// The ciphers of replaced keys are forgotten.
type seals struct{ last [2]atomic.Pointer[cipherOf] }

// A cipherOf is a cipher with the key that it was made for.
type cipherOf struct {
	key []byte // the cluster's, compared by identity
	cipher.AEAD
}

// get returns the cipher under the i-th key.
func (s *seals) get(k *keys, i int, what string, of ...uint64) cipher.AEAD {
	at := &s.last[i%len(s.last)]
	c := at.Load()
	if c == nil || &c.key[0] != &k.bytes[i][0] {
		c = &cipherOf{k.bytes[i], k.cipher(derive(k.bytes[i], what, of...))}
		at.Store(c)
	}
	return c
}

// An incarnation names a member between two restarts. A key between two members lasts for their
// incarnations.
type incarnation struct {
	node  resource.NodeID
	epoch uint64
}

// A session is what the port has in common with another member in the member's present incarnation.
type session struct {
	incarnation
	addr    *net.UDPAddr
	out, in seals

	mu    sync.Mutex
	ended bool // nothing of this incarnation is new any more
	seen  replay
}

// A peer is another member in its present incarnation, with what datagrams of this package need.
// The session's mu guards the fields from seenCast on.
type peer struct {
	session
	sent  atomic.Uint64
	large atomic.Int32 // streams to it, under way or waiting
	cast  seals

	seenCast  replay
	castFrom  uint64 // 0: not told yet
	askedCast time.Time
}

// first reports whether n is a new counter of the datagrams from the member to this one alone.
func (s *session) first(n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.ended && s.seen.first(n)
}

// end keeps in past what was heard. After that no counter is new.
func (s *session) end(past pastIncarnations) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	past.keep(s.incarnation, &s.seen)
}

// opener and sealer return the ciphers for datagrams between this member and that of s alone: from
// it, and to it. what is "one" or "gossip".
func (x *Mux) opener(s *session, what string, k *keys, i int) cipher.AEAD {
	return s.in.get(k, i, what, uint64(s.node), s.epoch, uint64(x.cfg.Self), x.epoch)
}

func (x *Mux) sealer(s *session, what string, k *keys) cipher.AEAD {
	return s.out.get(k, 0, what, uint64(x.cfg.Self), x.epoch, uint64(s.node), s.epoch)
}

// seal appends the datagram with the payload plain to b.
func seal(b []byte, a cipher.AEAD, kind byte, tag uint16, from resource.NodeID, n uint64, plain []byte) []byte {
	at := len(b)
	b = append(b, magic, kind)
	b = binary.LittleEndian.AppendUint16(b, tag)
	b = binary.LittleEndian.AppendUint64(b, uint64(from))
	b = binary.LittleEndian.AppendUint64(b, n)
	end := len(b) + len(plain) + a.Overhead()
	b = slices.Grow(b, end-len(b)+nonceLen)
	return a.Seal(b, nonce(b[end:end+nonceLen], n), plain, b[at:])
}

// A nonce is four zero bytes and the counter. It is written into the capacity behind a datagram:
// elsewhere each nonce would be garbage.
const nonceLen = 12

// nonce writes the nonce for counter n into b, which has nonceLen bytes.
func nonce(b []byte, n uint64) []byte {
	clear(b[:4])
	binary.LittleEndian.PutUint64(b[4:], n)
	return b
}

// senderOf and counterOf read the head of a datagram.
func senderOf(b []byte) resource.NodeID { return resource.NodeID(binary.LittleEndian.Uint64(b[4:])) }
func counterOf(b []byte) uint64         { return binary.LittleEndian.Uint64(b[12:]) }

// open opens a datagram in place. If that fails, the datagram is destroyed. The capacity behind the
// datagram is written to.
func open(b []byte, a cipher.AEAD) ([]byte, bool) {
	var spare []byte
	if n := len(b); cap(b)-n >= nonceLen {
		spare = b[n : n+nonceLen]
	} else {
		spare = make([]byte, nonceLen)
	}
	plain, err := a.Open(b[headLen:headLen], nonce(spare, counterOf(b)), b[headLen:], b[:headLen])
	return plain, err == nil
}

// mostPast is the number of past incarnations that are remembered.
const mostPast = 1 << 16

// pastIncarnations has the highest counter that was heard of each incarnation of a member that was
// forgotten. If the incarnation is met again, its key is the same: what it sent before may then not
// be accepted twice.
type pastIncarnations map[incarnation]uint64

// keep stores what was heard of l. If mostPast incarnations are remembered, another one is dropped.
func (p pastIncarnations) keep(l incarnation, heard *replay) {
	if heard.top == 0 {
		return
	}
	for other := range p { // any: so many are no accident
		if len(p) < mostPast {
			break
		}
		delete(p, other)
	}
	p[l] = heard.top
}

// restore marks as used in heard, which must be new, all counters up to the one kept for l. Then p
// has l no longer.
func (p pastIncarnations) restore(l incarnation, heard *replay) {
	if top, ok := p[l]; ok {
		delete(p, l)
		heard.markUpTo(top)
	}
}
