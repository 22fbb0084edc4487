// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/internal/testkit/vectors"
)

// The bytes of requests and replies must stay.
func TestVectors(t *testing.T) {
	type addends struct{ A, B int64 }
	in := addends{2, 3}
	request := func(flags byte) []byte {
		h := requestHeader{flags: flags, number: 1, left: time.Second}
		h.meta, _ = Metadata{"trace": "7"}.encode()
		if flags&flagClock != 0 {
			h.clock, h.made = 5, 6
		}
		b := try.Get(codec.Append(make([]byte, h.size()), &in))(t)
		h.put(b)
		return b
	}
	reply := func(status, flags byte, body []byte) []byte {
		b := append(make([]byte, replyHead), body...)
		putReply(b, status, flags)
		return b
	}
	sum := in.A + in.B
	result := try.Get(codec.Append(nil, &sum))(t)
	failed := errorNames{}.appendError(nil, fmt.Errorf("%w: 0", ErrUnknownCall))
	other := errorNames{}.appendError(nil, errors.New("no"))
	var known []error
	var names []string
	for _, k := range kinds {
		known, names = append(known, k.err), append(names, k.name)
	}
	every := errorNames{}.appendError(nil, errors.Join(known...))
	every = every[:len(every)-len(errors.Join(known...).Error())] // without the text
	at := try.Get(codec.Append(nil, &elsewhere{Sum: 5, Number: 6}))(t)
	next := make([]byte, controlLen)
	putControl(next, 1, flagStream)
	cancel := make([]byte, controlLen)
	putControl(cancel, 1, whyDeadline)
	item := binary.LittleEndian.AppendUint32(nil, uint32(len(result)))
	batch := append(append([]byte{1}, item...), result...)
	all := []vectors.Vector{
		vectors.Of("request", request(0), map[string]any{"number": 1, "nanoseconds": time.Second, "metadata": Metadata{"trace": "7"}, "arguments": in}),
		vectors.Of("request with checksum and clock", request(flagChecksum|flagClock), map[string]any{
			"number": 1, "nanoseconds": time.Second, "metadata": Metadata{"trace": "7"}, "clock": 5, "made": 6, "arguments": in,
		}),
		vectors.Of("reply", reply(statusResult, 0, result), map[string]any{"result": sum}),
		vectors.Of("reply with checksum", reply(statusResult, flagChecksum, result), map[string]any{"result": sum}),
		vectors.Of("refusal", reply(statusRefused, 0, failed), map[string]any{"names": []string{"rpc.unknown"}, "text": ErrUnknownCall.Error() + ": 0"}),
		vectors.Of("failure with all names", reply(statusError, 0, every), map[string]any{"names": names, "text": ""}),
		vectors.Of("value elsewhere, of a zero handle", at, map[string]any{"sum": 5, "number": 6}),
		vectors.Of("failure", reply(statusError, 0, other), map[string]any{"text": "no"}),
		vectors.Of("reply with the end of a stream", reply(statusResult, 0, batch), map[string]any{"results": []int64{sum}}),
		vectors.Of("cancel, tag 1", cancel, map[string]any{"number": 1, "reason": whyDeadline}),
		vectors.Of("next, tag 2", next, map[string]any{"number": 1, "flags": flagStream}),
	}
	for _, name := range []string{"", "a", "abc"} {
		all = append(all, vectors.Of("tag of a call, big-endian", binary.BigEndian.AppendUint64(nil, callID(name)), map[string]any{"name": name}))
	}
	vectors.Check(t, "rpc", all)
}
