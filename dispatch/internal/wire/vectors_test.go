// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/vectors"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// frame returns a whole frame.
func frame(h subsys.Header, payload []byte) []byte {
	b := make([]byte, subsys.HeaderLen, subsys.HeaderLen+len(payload))
	h.Len = uint32(len(payload))
	h.Put(b)
	return append(b, payload...)
}

// The frames must stay. Their fields are the header, except the length.
func TestVectorsFrames(t *testing.T) {
	le := binary.LittleEndian
	message := le.AppendUint32(le.AppendUint64(nil, 1), 5)                           // its tag and length
	trace := le.AppendUint64(le.AppendUint64(le.AppendUint64(nil, 5), 1_000), 1_500) // clock, and times
	trace = append(append(append(trace, bytes.Repeat([]byte{0xaa}, 16)...), bytes.Repeat([]byte{0xbb}, 8)...), 1)
	var all []vectors.Vector
	for _, f := range []struct {
		name    string
		h       subsys.Header
		payload []byte
	}{
		{"Data", subsys.Header{Type: TypeData, Seq: 0x01020304, Ack: 0x0a0b0c0d, Tag: 0x1122334455667788, Src: 7, Dst: 9}, []byte("hello")},
		{"Credit", subsys.Header{Type: TypeCredit, Seq: 1, Tag: 131072, Dst: 9}, nil},
		{"Credit for a bounded resource", subsys.Header{Type: TypeCredit, Tag: 1024, Dst: 1<<31 | 9}, le.AppendUint64(nil, 128)},
		{"Need", subsys.Header{Type: TypeNeed, Tag: 65605, Src: 7, Dst: 9}, message},
		{"Need that returns credit", subsys.Header{Type: TypeNeed, Tag: 65605, Dst: 9}, le.AppendUint64(nil, 131072)},
		{"Gone, of a message", subsys.Header{Type: TypeGone, Tag: 1, Src: 7, Dst: 9}, le.AppendUint32(nil, 5)},
		{"Gone, of a resource", subsys.Header{Type: TypeGone, Dst: 9}, nil},
		{"Bye", subsys.Header{Type: TypeBye}, nil},
		{"Begin", subsys.Header{Type: TypeBegin, Tag: 1, Src: 7, Dst: 9}, le.AppendUint32(nil, 300000)},
		{"Piece", subsys.Header{Type: TypePiece, Tag: 299997, Src: 7, Dst: 9}, []byte("end")},
		{"Call", subsys.Header{Type: TypeCall, Tag: 5, Src: 7, Dst: 9}, nil},
		{"the request of that call", subsys.Header{Type: TypeData, Flags: FlagCall, Seq: 1, Tag: 1, Src: 7, Dst: 9}, []byte("hi")},
		{"its reply", subsys.Header{Type: TypeData, Ack: 2, Tag: 5, Src: 9, Dst: Replies}, []byte("ho")},
		{"NoReply", subsys.Header{Type: TypeNoReply, Tag: 5, Src: 7, Dst: 9}, []byte{WhyGone}},
		{"TooLarge", subsys.Header{Type: TypeTooLarge, Tag: 1, Src: 7, Dst: 9}, le.AppendUint64(le.AppendUint32(nil, 5), 65605)},
		{"Cancel", subsys.Header{Type: TypeCancel, Tag: 5, Src: 7, Dst: 9}, []byte{WhyDeadline}},
		{"Trace", subsys.Header{Type: TypeTrace, Flags: FlagForget, Src: 7, Dst: 9}, trace},
		{"Follow", subsys.Header{Type: TypeFollow, Tag: 10_000_000_000, Dst: 9}, le.AppendUint32(nil, 100)},
		{"Ack", subsys.Header{Type: TypeAck, Ack: 2}, nil},
	} {
		all = append(all, vectors.Of(f.name, frame(f.h, f.payload), map[string]any{
			"type": f.h.Type, "flags": f.h.Flags, "seq": f.h.Seq, "ack": f.h.Ack, "tag": f.h.Tag, "src": f.h.Src, "dst": f.h.Dst,
		}))
	}
	vectors.Check(t, "frames", all)
}

// The handshake must stay: node 1's context 2 dials node 3's context 4 in the cluster "lab". Both
// have the key "key".
func TestVectorsHandshake(t *testing.T) {
	from, to := resource.MakeGID(1, 2, 0), resource.MakeGID(3, 4, 0)
	hash := fnv.New64a()
	_, _ = hash.Write([]byte("lab"))
	hello := Hello{From: from, To: to, Cluster: hash.Sum64(), Nonce: [16]byte(bytes.Repeat([]byte{0xaa}, 16))}
	said := Transcript{Keys: [][]byte{[]byte("key")}}
	var all []vectors.Vector
	say := func(name string, typ uint8, payload []byte, fields map[string]any) {
		said.Said = append(said.Said, payload...)
		all = append(all, vectors.Of(name, frame(subsys.Header{Type: typ}, payload), fields))
	}
	say("Hello", TypeHello, hello.Append(nil), map[string]any{"from": from, "to": to, "cluster": "lab"})
	challenge := Challenge{From: to, Nonce: [16]byte(bytes.Repeat([]byte{0xbb}, 16))}
	challenge.MACs = said.MACs(TypeChallenge, challenge.Append(nil))
	say("Challenge", TypeChallenge, challenge.Append(nil), map[string]any{"from": to, "keys": []string{"key"}})
	for _, a := range []struct {
		name string
		typ  uint8
		Attach
	}{
		{"Attach", TypeAttach, Attach{Session: 1, Gen: 1, Have: 5, Past: Past{Session: 8, Have: 9}}},
		{"Ready", TypeReady, Attach{Session: 2, Known: 1, Gen: 1}},
	} {
		a.MAC = said.MAC(said.Keys[0], a.typ, a.Append(nil)[:AttachPart])
		say(a.name, a.typ, a.Append(nil), map[string]any{"session": a.Session, "known": a.Known, "gen": a.Gen, "have": a.Have, "past": a.Past})
	}
	refuse := Refuse{Why: RefusedStale, Gen: 7}
	say("Refuse", TypeRefuse, refuse.Append(nil), map[string]any{"why": refuse.Why, "gen": refuse.Gen})
	vectors.Check(t, "handshake", all)
}
