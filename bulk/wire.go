// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"fmt"

	"github.com/rocl-go/rocl/codec"
)

// A transfer is one or more calls (rocl.Resource.Call) of the target to the origin's endpoint. A
// request is a value of type request, encoded by package codec; in a write, the bytes follow. The
// reply to a read is the bytes requested. The reply to a write is empty. A reply of any other
// length is an error: see appendError and refusal.
const (
	tagRead  = 0x42554c4b_00000001 // "BULK"
	tagWrite = 0x42554c4b_00000002
	tagPlace = 0x42554c4b_00000003 // a read whose reply may be a ticket instead
	tagTake  = 0x42554c4b_00000004 // a write with a ticket instead of the bytes
)

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
		return q, nil, fmt.Errorf("%w: a request of %d bytes", errProtocol, len(p))
	}
	if err := codec.Decode(p[:requestLen], &q); err != nil {
		return q, nil, fmt.Errorf("%w: %w", errProtocol, err)
	}
	return q, p[requestLen:], nil
}

// refusal returns the reply for the failure of a request for n bytes. Its length differs from n.
func refusal(n uint64, err error) []byte {
	p := appendError(nil, err)
	if uint64(len(p)) == n {
		p = append(p, ' ')
	}
	return p
}
