// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tls"
)

// allTransports returns transports and TLS.
func allTransports(t *testing.T) map[string]subsys.Transport {
	secret, err := tls.FromSecrets("", []byte("a secret of 16 b"))
	if err != nil {
		t.Fatal(err)
	}
	all := transports()
	all["tls"] = tls.New(secret)
	return all
}

func allLinks(t *testing.T) map[string]subsys.Transport {
	all := allTransports(t)
	delete(all, "inproc")
	return all
}

// Small messages that stay in a mailbox do not keep the blocks that they were read in, and their
// payloads stay the same.
//
// Promise (Memory): Stored messages keep at most about twice their mailbox's limit of memory,
// however small they are.
func TestStoredSmallMessages(t *testing.T) {
	const rounds, limit = 250, FirstCredit
	for name, tr := range allTransports(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			kept, drained := box(t, b, 1, limit), box(t, b, 2, 0)
			toKept, toDrained := flow(t, a, kept), flow(t, a, drained)
			ctx := soon(t)
			payload := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, i%100) }
			other := make([]byte, 1900)
			for i := range rounds {
				// The messages to drained fill the block that the message to kept lies in.
				if err := toKept.SendBytes(ctx, 1, uint64(i), payload(i)); err != nil {
					t.Fatal(err)
				}
				for range 10 {
					if err := toDrained.SendBytes(ctx, 1, 0, other); err != nil {
						t.Fatal(err)
					}
				}
				for range 10 {
					take(t, drained)
				}
				checkDense(t, kept)
			}
			// The mapped memory is the bound and whole arenas of some classes.
			if s := b.cfg.Pool.Stats(); s.Mapped > 3<<20 {
				t.Errorf("%d small messages keep %d bytes mapped", rounds, s.Mapped)
			}
			if n, stored := kept.Len(); n != rounds || stored > limit {
				t.Errorf("%d messages, %d bytes stored", n, stored)
			}
			for i := range rounds {
				msg, err := kept.Recv(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if msg.Tag() != uint64(i) || msg.From() != a.self.WithSerial(1) || !bytes.Equal(msg.Bytes(), payload(i)) {
					t.Fatalf("message %d: tag %d, %d bytes from %v", i, msg.Tag(), msg.Len(), msg.From())
				}
				if own := msg.Buffer(); !bytes.Equal(own.Bytes(), payload(i)) {
					t.Fatalf("message %d: buffer of %d bytes", i, own.Len())
				} else {
					own.Release()
				}
				msg.Release()
			}
			if _, stored := kept.Len(); stored != 0 {
				t.Errorf("an empty mailbox has %d bytes", stored)
			}
		})
	}
}

// The memory that a mailbox keeps stays within bounds even if receivers leave single messages of
// those that came together, in any order.
func TestLeftOfMany(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			mb := box(t, b, 1, FirstCredit)
			f := flow(t, a, mb)
			ctx := soon(t)
			const rounds, together = 120, 64
			for i := range rounds {
				for j := range together {
					tag := uint64(0)
					if j == i%together {
						tag = uint64(1 + i)
					}
					if err := f.SendBytes(ctx, 1, tag, fmt.Append(nil, tag, make([]byte, 300))); err != nil {
						t.Fatal(err)
					}
				}
				for range together - 1 {
					take(t, mb, Tag(0))
				}
				checkDense(t, mb)
				if i >= 20 { // some messages stay for long
					old := uint64(1 + i - 20)
					msg, err := mb.Recv(ctx, Tag(old))
					if err != nil {
						t.Fatal(err)
					}
					if want := fmt.Append(nil, old, make([]byte, 300)); !bytes.Equal(msg.Bytes(), want) {
						t.Fatalf("message %d is %q", old, msg.Bytes())
					}
					msg.Release()
				}
			}
		})
	}
}

// checkDense checks that the stored messages keep at most twice what they are charged from reuse,
// and one block.
func checkDense(t *testing.T, mb *Mailbox) {
	t.Helper()
	mb.mu.Lock()
	defer mb.mu.Unlock()
	kept := 0
	var last *buffers.Buffer
	for msg := mb.messages.First(); msg != nil; msg = msg.place.Next() {
		if msg.buf != nil && msg.buf != last {
			kept, last = kept+msg.buf.Footprint(mb.d.cfg.Pool), msg.buf
		}
	}
	if kept > int(2*mb.credit.Stored())+64<<10 {
		t.Fatalf("%d messages, charged %d bytes, keep %d", mb.count, mb.credit.Stored(), kept)
	}
}

// together delivers payloads to a mailbox from a context of another process, all in one
// block of size bytes.
func together(t *testing.T, mb *Mailbox, size int, payloads ...string) {
	t.Helper()
	l := newLink(mb.d, linkKey{peer: resource.MakeGID(1, 99, 0)})
	in := inflowFor(mb, l)
	if !mb.admit(in) {
		t.Fatal("the mailbox is closed")
	}
	block, err := mb.d.cfg.Pool.Get(size)
	if err != nil {
		t.Fatal(err)
	}
	defer block.Release()
	var fs []subsys.Frame
	at := 0
	for i, p := range payloads {
		n := copy(block.Bytes()[at:], p)
		fs = append(fs, subsys.Frame{Header: subsys.Header{Len: uint32(n), Src: 1, Tag: uint64(i)}, Data: block.Bytes()[at : at+n], Buf: block})
		at += n
	}
	if err := mb.deliver(in, fs, at, 0, nil); err != nil {
		t.Fatal(err)
	}
}
