// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"fmt"

	"github.com/rocl-go/rocl/codec"
)

// A transfer is one or more calls (rocl.Resource.Call) of the target to the origin's endpoint. A
// request is a value of type request, encoded by package codec; in a write, the bytes follow. The
// reply to a read is the bytes requested. The reply to a write is empty. A reply of any other
// length is an error: see appendError and refusal. The reply to tagPull and tagFetch may also be
// the first of the bytes requested, at least partLeast.
//
// The tag follows from the transfer and from the route (see sharing):
//
//	tag        used by                                       its reply
//	tagRead    View, Pipeline                                a buffer over the memory, lent or copied
//	tagPull    Pull; also the rest after tagLocate failed    the same, or the first part of the bytes
//	tagLocate  Pull of inPlaceLeast bytes, shared memory     registered memory, or a locator by which the target reads
//	tagWrite   Push for which no other tag is used; also     empty, after the origin has copied the bytes
//	           the rest after tagTake failed
//	tagTake    Push of inPlaceLeast bytes, shared memory     empty, after the origin has read by the locator
//	tagOffer   Push of segmentLeast bytes over a stream      empty, after the origin has fetched the bytes
//	tagFetch   the origin, for the bytes of tagOffer         as that of tagPull
const (
	tagRead   = 0x42554c4b_00000001 // "BULK"
	tagWrite  = 0x42554c4b_00000002
	tagLocate = 0x42554c4b_00000003 // a read whose reply may be a locator instead
	tagTake   = 0x42554c4b_00000004 // a write with a locator instead of the bytes
	tagPull   = 0x42554c4b_00000005 // a read whose reply may be the first of the bytes
	tagOffer  = 0x42554c4b_00000006 // a write with a request instead of the bytes, by which the origin fetches them
	tagFetch  = 0x42554c4b_00000007 // as tagPull, for the bytes of an offer
)

// partLeast is how many bytes the reply to a read has at least, unless it has all of them. An error
// is shorter.
const partLeast = 4 << 10

// A request names the bytes to read, or the memory to write.
type request struct {
	Handle rawHandle
	Off    uint64 // from the beginning of the bytes that the handle names
	Len    uint64
}

// requestLen is the encoded size of a request in bytes.
var requestLen = codec.Size(new(request))

func parseRequest(p []byte) (q request, data []byte, err error) {
	if len(p) < requestLen {
		return q, nil, fmt.Errorf("%w: the request has %d bytes", errProtocol, len(p))
	}
	if err := codec.Decode(p[:requestLen], &q); err != nil {
		return q, nil, fmt.Errorf("%w: %w", errProtocol, err)
	}
	return q, p[requestLen:], nil
}

// refusal returns the reply for the failure of a request for n bytes. Its length differs from n,
// and is less than partLeast.
func refusal(n uint64, err error) []byte {
	p := appendError(nil, err)
	p = p[:min(len(p), partLeast/2)]
	if uint64(len(p)) == n {
		p = append(p, ' ')
	}
	return p
}
