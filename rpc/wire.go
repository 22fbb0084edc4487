// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/os/clock"
)

// Protocol: Remote procedure calls
//
// A server of package rpc is a resource with the attribute `rpc` = `1`. A call is a [call](#calls)
// to it, or a message if no answer is wanted. The tag is the XXH64, seed 0, of the call's name.
//
// A request is version 1 u8, flags u8, bytes of metadata u16, checksum u32, number of the request
// at its caller u64 (0: it cannot be cancelled), nanoseconds to its deadline u64 (0: none),
// metadata, clock, arguments. A reply is version 1 u8, flags u8, status u8 (0 result, 1 the handler
// failed, 2 it did not run), 0 u8, checksum u32, result or error.
//
// Flags: 1 checksum, 2 a stream of results is wanted, 4 arguments and result are JSON, 8 the value
// is elsewhere, 16 (reply) the arguments were pulled and no other reply follows, 32 clock: an
// identity u64 of a clock and its nanoseconds u64, 64 a stream of arguments follows. Others are
// refused. Arguments and result are
// [values](#values). Metadata is pairs of strings, the bytes u16 before each. The checksum is the
// lower half of the XXH64 of the message without these 4 bytes, or 0. An error is the number u8 of
// names, the names, the bytes u16 before each, and the text. `vectors/rpc.json` has all names.
//
// Tag 1 is a message: number u64, reason u8 (0 cancelled, 1 deadline, 2 the result was pulled). Tag
// 2 is a call for the next results of a stream: number u64, flags u8. Its reply has, behind the
// head, 1 u8 if it is the last, else 0, and results, the bytes u32 before each. A value elsewhere
// is a raw value: the [handle](#bulk-transfers) (8 to 134), the XXH64 of the bytes u64 or 0, the
// number u64 of the call in a reply. Tag 4 is a call with arguments of a stream: the head of a
// request with the number of the call, 1 u8 if they are the last, else 0, and the arguments, the
// bytes u32 before each. Its reply, a head alone, allows the next such call.

// A request is a message of rocl (Resource.Call, or Resource.Send if nothing is answered) to the
// resource of a provider. A reply is the reply of rocl to that message.
//
// To extend a request, define a flag, and put the field between the metadata and the arguments when
// the flag is set: requestHeader.size, put and parseRequest. A server that does not know the flag
// refuses the request with ErrProtocol, so use the flag only where the caller asks for the feature.
// A field that servers may ignore is metadata. A change of the fixed header needs another version.
const (
	version = 1

	requestHead = 24
	replyHead   = 8

	mostMeta = 1<<16 - 1
)

// Flags of requests and replies.
const (
	flagChecksum  = 1 << iota // the message has a checksum
	flagStream                // the caller wants a stream of results
	flagJSON                  // the arguments and the result are in JSON
	flagElsewhere             // the arguments or the result are in memory of the sender, to be pulled
	flagTaken                 // the reply says that the arguments have been pulled; no other reply follows
	flagClock                 // the request says when it was made
	flagItems                 // the caller sends a stream of arguments
	allFlags      = flagChecksum | flagStream | flagJSON | flagElsewhere | flagTaken | flagClock | flagItems
)

// Statuses of replies.
const (
	statusResult  = iota
	statusError   // the handler has run, and has failed or its result cannot be sent
	statusRefused // the handler has not run
)

// Tags below firstCall are messages of the package itself, not names of calls.
const (
	tagCancel  = 1 // streams have ended at the caller; the payload has the numbers of their requests, each with a reason
	tagNext    = 2 // a call for more results of a stream; the payload is the number and the flags of the request
	tagItems   = 4 // a call with arguments of a stream; see items
	tagReceipt = 3 // the caller needs results no longer that it may pull; the payload has the numbers of the calls, each with a 0
	firstCall  = 256
)

// callID returns the identifier of a call's name.
func callID(name string) uint64 { return xxhash.Sum64String(name) }

// A requestHeader is the header of a request.
type requestHeader struct {
	flags  byte
	number uint64
	left   time.Duration // 0: no deadline
	meta   []byte
	clock  uint64       // with flagClock: the identity of a clock
	made   int64        // with flagClock: when the request was made
	region *bulk.Region // at the caller: memory with the arguments; nil: they are in the request
}

// release releases the memory of the arguments.
func (h *requestHeader) release() {
	if h.region != nil {
		h.region.Release()
	}
}

// clockLen is the length of the field of flagClock.
const clockLen = 16

// size returns the length of the header with the metadata and the field of flagClock in bytes.
func (h *requestHeader) size() int {
	n := requestHead + len(h.meta)
	if h.flags&flagClock != 0 {
		n += clockLen
	}
	return n
}

// stamp notes the time at which the request is made, if the system has a clock for it.
func (h *requestHeader) stamp() {
	if c := clock.Own(); c.ID != 0 {
		h.flags |= flagClock
		h.clock, h.made = c.ID, c.Now()
	}
}

// put writes the header before the arguments, which p has already.
func (h *requestHeader) put(p []byte) {
	p[0], p[1] = version, h.flags
	binary.LittleEndian.PutUint16(p[2:], uint16(len(h.meta)))
	binary.LittleEndian.PutUint32(p[4:], 0)
	binary.LittleEndian.PutUint64(p[8:], h.number)
	binary.LittleEndian.PutUint64(p[16:], uint64(h.left))
	copy(p[requestHead:], h.meta)
	if h.flags&flagClock != 0 {
		at := p[requestHead+len(h.meta):]
		binary.LittleEndian.PutUint64(at, h.clock)
		binary.LittleEndian.PutUint64(at[8:], uint64(h.made))
	}
	if h.flags&flagChecksum != 0 {
		binary.LittleEndian.PutUint32(p[4:], checksum(p))
	}
}

// parseRequest returns the header of a request and its arguments.
func parseRequest(p []byte) (h requestHeader, args []byte, err error) {
	if len(p) < requestHead || p[0] != version {
		return h, nil, fmt.Errorf("%w: the %d bytes do not begin with a header of version %d", ErrProtocol, len(p), version)
	}
	n := int(binary.LittleEndian.Uint16(p[2:]))
	h.flags, h.number, h.left = p[1], binary.LittleEndian.Uint64(p[8:]), time.Duration(binary.LittleEndian.Uint64(p[16:]))
	if h.flags&^allFlags != 0 || h.left < 0 || len(p) < requestHead+n {
		return h, nil, fmt.Errorf("%w: flags %#x, %v left, metadata of %d bytes in a request of %d", ErrProtocol, h.flags, h.left, n, len(p))
	}
	if err := verify(p, h.flags); err != nil {
		return h, nil, err
	}
	h.meta, args = p[requestHead:requestHead+n], p[requestHead+n:]
	if h.flags&flagClock != 0 {
		if len(args) < clockLen {
			return h, nil, fmt.Errorf("%w: %d bytes where the time of the request is due", ErrProtocol, len(args))
		}
		h.clock, h.made = binary.LittleEndian.Uint64(args), int64(binary.LittleEndian.Uint64(args[8:]))
		args = args[clockLen:]
	}
	return h, args, nil
}

// putReply writes the header before the body of a reply, which p has already.
func putReply(p []byte, status, flags byte) {
	p[0], p[1], p[2], p[3] = version, flags, status, 0
	binary.LittleEndian.PutUint32(p[4:], 0)
	if flags&flagChecksum != 0 {
		binary.LittleEndian.PutUint32(p[4:], checksum(p))
	}
}

// parseReply returns the status and the body of the reply to a request with flags.
func parseReply(p []byte, flags byte) (status byte, body []byte, err error) {
	if len(p) < replyHead || p[0] != version || p[1]&^allFlags != 0 || p[2] > statusRefused {
		return 0, nil, fmt.Errorf("%w: the %d bytes do not begin with a header of version %d", ErrProtocol, len(p), version)
	}
	if flags&flagChecksum > p[1]&flagChecksum {
		return 0, nil, fmt.Errorf("%w: the reply has no checksum", ErrChecksum)
	}
	return p[2], p[replyHead:], verify(p, p[1])
}

// flagsOf returns the flags of a request, which may be malformed.
func flagsOf(p []byte) byte {
	if len(p) < 2 {
		return 0
	}
	return p[1] & allFlags
}

// checksum returns the checksum of a request or reply. The four bytes of the checksum itself are
// left out.
func checksum(p []byte) uint32 {
	d := xxhash.New()
	_, _ = d.Write(p[:4])
	_, _ = d.Write(p[8:])
	return uint32(d.Sum64())
}

func verify(p []byte, flags byte) error {
	if flags&flagChecksum == 0 {
		if binary.LittleEndian.Uint32(p[4:]) != 0 {
			return fmt.Errorf("%w: the message has a checksum without the flag for it", ErrChecksum)
		}
		return nil
	}
	if want, have := binary.LittleEndian.Uint32(p[4:]), checksum(p); want != have {
		return fmt.Errorf("%w: %#x, and the %d bytes have %#x", ErrChecksum, want, len(p), have)
	}
	return nil
}

// appendString appends the length of s and s.
func appendString(p []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint16(p, uint16(len(s))), s...)
}

// cutString returns the string at the beginning of p, and the bytes after it.
func cutString(p []byte) (s string, rest []byte, ok bool) {
	if len(p) < 2 {
		return "", nil, false
	}
	n := 2 + int(binary.LittleEndian.Uint16(p))
	if len(p) < n {
		return "", nil, false
	}
	return string(p[2:n]), p[n:], true
}

// Metadata has names and values that travel with a call beside its arguments, such as identifiers
// of requests, traces or users.
type Metadata map[string]string

func (m Metadata) encode() ([]byte, error) {
	if len(m) == 0 {
		return nil, nil
	}
	var p []byte
	for k, v := range m {
		if len(k) > mostMeta || len(v) > mostMeta {
			return nil, fmt.Errorf("%w: metadata %.32q", ErrTooLarge, k)
		}
		p = appendString(appendString(p, k), v)
	}
	if len(p) > mostMeta {
		return nil, fmt.Errorf("%w: metadata of %d bytes, at most %d", ErrTooLarge, len(p), mostMeta)
	}
	return p, nil
}

func parseMetadata(p []byte) (Metadata, error) {
	if len(p) == 0 {
		return nil, nil
	}
	m := Metadata{}
	for len(p) > 0 {
		var k, v string
		var ok bool
		if k, p, ok = cutString(p); ok {
			v, p, ok = cutString(p)
		}
		if !ok {
			return nil, fmt.Errorf("%w: the metadata is truncated", ErrProtocol)
		}
		m[k] = v
	}
	return m, nil
}

// Reasons in a message with tagCancel.
const (
	whyCancelled = iota
	whyDeadline
)

// controlLen is the length of the payload of a message with tagNext, and of an element of the
// payload of one with tagCancel or tagReceipt.
const controlLen = 9

// putControl writes such a payload. more is the flags, the reason or 0.
func putControl(p []byte, number uint64, more byte) {
	binary.LittleEndian.PutUint64(p, number)
	p[8] = more
}

func parseControl(p []byte) (number uint64, more byte, ok bool) {
	if len(p) != controlLen {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint64(p), p[8], true
}
