// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"fmt"

	"github.com/rocl-go/rocl/codec"
)

// Protocol: Bulk transfers
//
// A transfer is [calls](#calls) to the endpoint of the origin, whose memory is read or written. The
// request is a raw [value](#values), and behind it the bytes to write:
//
// | at | bytes | |
// |---|---|---|
// | 0 | 8 | head |
// | 8 | 16 | endpoint: upper half u64, lower half u64 |
// | 24 | 8 | region |
// | 32 | 16 | key |
// | 48 | 1 | how often the handle was narrowed, 0 to 4 |
// | 49 | 5 × 17 | the region and what each narrowing left: offset u64, length u64, rights u8 (1
// read, 2 write) |
// | 134 | 8 | offset within the last of these |
// | 142 | 8 | length |
//
// The first key is the beginning of the SHA-256 of the endpoint's secret (32 bytes), the region u64
// and the first 17 bytes; each further one that of the key before and the next 17 bytes.
//
// | tag 0x42554c4b… | request | reply |
// |---|---|---|
// | 00000001 | read | the bytes |
// | 00000002 | write | empty |
// | 00000003 | read, shared memory, 256 KiB or more | the bytes, or a locator of them |
// | 00000004 | write by a locator behind the request in place of the bytes | empty |
// | 00000005 | read | the bytes, or the first of them, at least 4 KiB: the rest is asked for
// again |
// | 00000006 | offer, TCP and TLS, 1 MiB or more: behind it a request by which the origin reads
// from the sender's endpoint | empty, when it has |
// | 00000007 | as 5, of the origin for an offer | as 5 |
// | 00000008 | keys for one-sided access to the handle's bytes | 0xff and of each segment: length
// u64, bytes of the key u16, key |
// | 00000009 | of the origin to a target with keys, when the region is revoked | empty, when no
// access is in progress |
//
// A reply of another length is an error, below 4 KiB: 1 rights, 2 range, 3 revoked, 4 key, 5
// protocol, 6 too large, 7 the process may not read the other's memory, 8 not where it lies, 9
// busy: ask again, or 0 and a text. If it has the length of the granted reply, a byte follows.
//
// A locator has at least 4 KiB: a random cookie of 16 bytes, its address in the sender's memory
// u64, process number u64, number of extents u64, up to 8192, and extents, address u64 and length
// u64. The receiver reads the first 40 bytes at that address in that process before and after the
// extents' memory, and takes another way if they differ. It releases the message behind that.

// A transfer is one or more calls (rocl.Resource.Call) of the target to the origin's endpoint. A
// request is a value of type request, encoded by package codec; in a write, the bytes follow. The
// reply to a read is the bytes requested. The reply to a write is empty. A reply of any other
// length is an error: see appendError and refusal. The reply to tagPull and tagFetch may also be
// the first of the bytes requested, at least partLeast.
//
// The tag follows from the transfer and from the route (see sharing). Beside each tag stands what
// uses it, and what its reply or its request has.
const (
	tagRead   = 0x42554c4b_00000001 // "BULK"; View and Pipeline; a buffer over the memory, lent or copied
	tagWrite  = 0x42554c4b_00000002 // Push for which no other tag is used, or after tagTake has failed; replied to after the origin has copied the bytes
	tagLocate = 0x42554c4b_00000003 // Pull of inPlaceLeast bytes over shared memory; registered memory, or a locator by which the target reads
	tagTake   = 0x42554c4b_00000004 // Push of inPlaceLeast bytes over shared memory; a locator instead of the bytes
	tagPull   = 0x42554c4b_00000005 // Pull, also of the rest after tagLocate has failed; the bytes, or the first of them
	tagOffer  = 0x42554c4b_00000006 // Push of offerLeast bytes over a stream; a request instead of the bytes, by which the origin fetches them
	tagFetch  = 0x42554c4b_00000007 // as tagPull, for the bytes of an offer
	tagExport = 0x42554c4b_00000008 // before one-sided transfers; the keys of the handle's bytes: see export
	tagRecall = 0x42554c4b_00000009 // of the origin to a target, when a region is revoked; empty when the target uses the keys no more
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
