// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Parsing a request gives what put has written. Any other bytes are an error.
//
// Promise (Package rpc): Requests and replies of any bytes are an error, never a panic. A checksum
// that was asked for is required. See also FuzzReply.
func FuzzRequest(f *testing.F) {
	meta := try.Get(Metadata{"who": "me", "": ""}.encode())(f)
	for _, h := range []requestHeader{{}, {flags: flagChecksum, number: 7, left: time.Second, meta: meta}, {flags: flagStream, number: 1}} {
		p := append(make([]byte, h.size()), "arguments"...)
		h.put(p)
		f.Add(p)
		f.Add(p[:len(p)-len("arguments")-1])
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		h, args, err := parseRequest(bytes.Clone(p))
		if err != nil {
			if !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrChecksum) {
				t.Fatal(err)
			}
			return
		}
		again := append(make([]byte, h.size()), args...)
		h.put(again)
		if !bytes.Equal(again, p) {
			t.Fatalf("%x is parsed, and put as %x", p, again)
		}
		if m, err := parseMetadata(h.meta); err == nil {
			if q, err := m.encode(); err != nil || len(q) > len(h.meta) {
				t.Fatalf("metadata of %d bytes: %d, %v", len(h.meta), len(q), err)
			}
		} else if !errors.Is(err, ErrProtocol) {
			t.Fatal(err)
		}
	})
}

// A reply of any bytes is a result, an error with a text, a batch of results, or an error of the
// protocol.
func FuzzReply(f *testing.F) {
	names := errorNames{"own": io.ErrNoProgress}
	for _, err := range []error{io.EOF, fmt.Errorf("a: %w, %w", io.ErrNoProgress, ErrBusy), errors.New("")} {
		p := names.appendError(make([]byte, replyHead), err)
		putReply(p, statusError, flagChecksum)
		f.Add(p)
	}
	p := []byte{streamHead: 3, streamHead + itemHead: 'a', streamHead + itemHead + 1: 'b', streamHead + itemHead + 2: 'c'}
	putReply(p, statusResult, 0)
	f.Add(p)
	f.Fuzz(func(t *testing.T, p []byte) {
		status, body, err := parseReply(p, 0)
		switch {
		case err != nil:
			if !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrChecksum) {
				t.Fatal(err)
			}
		case status != statusResult:
			e, err := names.parseError(body)
			if err != nil && !errors.Is(err, ErrProtocol) || err == nil && len(e.Text) > len(body) {
				t.Fatal(err)
			}
		case len(body) > 0:
			got := 0
			if _, err := eachResult(body[1:], format[string]{}, func(s string) bool { got += itemHead + len(s); return true }); err != nil && !errors.Is(err, ErrProtocol) || got > len(body) {
				t.Fatal(got, err)
			}
		}
	})
}

// A reply without the requested checksum is refused.
func TestChecksumMissing(t *testing.T) {
	p := append(make([]byte, replyHead), "result"...)
	putReply(p, statusResult, flagChecksum)
	if _, body, err := parseReply(p, flagChecksum); err != nil || string(body) != "result" {
		t.Error(string(body), err)
	}
	p[1] ^= flagChecksum
	for _, wants := range []byte{0, flagChecksum} {
		try.Fails(parseReply(p, wants))(t, ErrChecksum)
	}
}

// A checksum notices each byte of a request or reply that changes on the way.
func TestFlippedBytes(t *testing.T) {
	meta := try.Get(Metadata{"who": "me"}.encode())(t)
	h := requestHeader{flags: flagChecksum, number: 7, left: time.Second, meta: meta}
	request := append(make([]byte, h.size()), "arguments"...)
	h.put(request)
	reply := append(make([]byte, replyHead), "result"...)
	putReply(reply, statusResult, flagChecksum)
	for name, x := range map[string]struct {
		p     []byte
		parse func(p []byte) error
	}{
		"request": {request, func(p []byte) error { _, _, err := parseRequest(p); return err }},
		"reply":   {reply, func(p []byte) error { _, _, err := parseReply(p, flagChecksum); return err }},
	} {
		try.Check(t, x.parse(x.p), "%s", name)
		for i := range 8 * len(x.p) {
			p := bytes.Clone(x.p)
			p[i/8] ^= 1 << (i % 8)
			if err := x.parse(p); !errors.Is(err, ErrChecksum) && !errors.Is(err, ErrProtocol) {
				t.Errorf("%s: bit %d of byte %d: %v", name, i%8, i/8, err)
			}
		}
	}
}

// Errors keep the kinds that both sides know.
func TestErrorKinds(t *testing.T) {
	own := errors.New("own")
	here, there := errorNames{"own": own}, errorNames{"own": own, "other": io.ErrNoProgress}
	for _, k := range kinds {
		e, err := here.parseError(there.appendError(nil, fmt.Errorf("wrapped: %w", k.err)))
		if err != nil || !errors.Is(e, k.err) || e.Text != "wrapped: "+k.err.Error() {
			t.Errorf("%s: %v, %v", k.name, e, err)
		}
	}
	e, err := here.parseError(there.appendError(nil, errors.Join(own, io.ErrNoProgress)))
	if err != nil || !errors.Is(e, own) || errors.Is(e, io.ErrNoProgress) {
		t.Errorf("%v, %v", e, err)
	}
	long := errors.New(string(bytes.Repeat([]byte("x"), 2*mostText)))
	try.Equal(t, len(try.Get(here.parseError(there.appendError(nil, long)))(t).Text), mostText, "a long text")
}

// A span has the durations that most returns, and the spans come one after another.
func TestSpans(t *testing.T) {
	last := -1
	for d := time.Duration(4); d < 1<<40; d += 1 + d/7 {
		s := spanOf(d)
		if s < last || most(s) < d || s > 8 && most(s-1) >= d {
			t.Fatalf("%d is in span %d, which ends at %d", d, s, most(s))
		}
		last = s
	}
	if spanOf(-1) != spanOf(0) || spanOf(1<<63-1) >= spans {
		t.Error("the ends have no span")
	}
}
