// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/internal/testkit/vectors"
)

// The bytes of a request must stay.
func TestVectors(t *testing.T) {
	gid := try.Get(rocl.ParseGID("000000000001-2-3"))(t)
	h := Handle{origin: gid, region: 4}
	h.steps[0] = step{0, 100, ReadWrite}
	h.key = firstKey(new([32]byte), 4, h.steps[0])
	h = try.Get(h.Slice(10, 20))(t)
	p := try.Get(codec.Append(nil, &request{rawHandle(h), 5, 6}))(t)
	try.Equal(t, len(p), requestLen, "bytes of the request")
	vectors.Check(t, "bulk", []vectors.Vector{vectors.Of("request for 6 bytes at 5", p, map[string]any{
		"endpoint": gid, "region": 4, "bytes of the region": 100, "rights": ReadWrite, "narrowed to": []int{10, 20}, "secret": "32 zero bytes",
	})})
	if !h.verify(new([32]byte)) || h.verify(&[32]byte{1}) {
		t.Error("the key is not that of the secret")
	}
}
