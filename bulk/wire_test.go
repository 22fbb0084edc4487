// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A reply with an error never has the length of a granted one.
func TestRefusals(t *testing.T) {
	for _, err := range append(codes[1:], errors.New("other")) {
		for n := range uint64(100) {
			p := refusal(n, err)
			if got := parseError(p); uint64(len(p)) == n || !errors.Is(got, err) && p[0] != 0 {
				t.Errorf("%v, %d bytes: %v", err, n, got)
			}
		}
	}
	for _, p := range [][]byte{nil, {byte(len(codes))}, {255, 1}} {
		try.Fails(parseError(p))(t, errProtocol)
	}
}

// No request causes a panic, and none is granted whose key the origin did not give.
func FuzzRequest(f *testing.F) {
	h := Handle{region: 1}
	h.steps[0] = step{0, 100, ReadWrite}
	h.key = firstKey(new([32]byte), 1, h.steps[0])
	for range 1 + MaxNarrow {
		p := try.Get(codec.Append(nil, &request{rawHandle(h), 5, 6}))(f)
		f.Add(p)
		h, _ = h.Slice(1, h.Len()-2)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		q, _, err := parseRequest(p)
		if err != nil {
			return
		}
		h := Handle(q.Handle)
		_, _ = h.String(), h.check(ReadOnly, int64(q.Off), int64(q.Len))
		if !h.verify(new([32]byte)) {
			return
		}
		if s := h.last(); s.Off > h.steps[0].Len || s.Len > h.steps[0].Len-s.Off || s.Rights&^h.steps[0].Rights != 0 {
			t.Errorf("%v of %v", s, h.steps[0])
		}
	})
}

// No reply with keys causes a panic, and each that is taken has keys for all bytes of the handle.
func FuzzKeys(f *testing.F) {
	part := func(p []byte, n uint64, key []byte) []byte {
		p = binary.LittleEndian.AppendUint64(p, n)
		return append(binary.LittleEndian.AppendUint16(p, uint16(len(key))), key...)
	}
	f.Add(part([]byte{exported}, 100, []byte("key")))
	f.Add(part(part([]byte{exported}, 60, []byte("key")), 40, nil))
	f.Add(part([]byte{exported}, 100, make([]byte, 1<<16-1)))
	f.Add([]byte{exported, 100})
	d := dispatch.New(dispatch.Config{Self: rocl.GID{}, Pool: buffers.New()})
	f.Cleanup(func() { _ = d.Close(context.Background()) })
	h := Handle{region: 1}
	h.steps[0] = step{0, 100, ReadWrite}
	f.Fuzz(func(t *testing.T, p []byte) {
		parts, err := parseParts(&h, p, d.RemoteMemory)
		if err == nil && (len(parts) == 0 || parts[len(parts)-1].end != h.Len()) {
			t.Errorf("%d parts of %q", len(parts), p)
		}
	})
}
