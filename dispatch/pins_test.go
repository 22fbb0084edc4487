// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
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
// however small they are. See also TestSweptMessage.
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
				kept.mu.Lock()
				held, most := kept.held, kept.heldMostLocked()
				kept.mu.Unlock()
				if held > most+256<<10 {
					t.Fatalf("after %d messages %d bytes are held, at most %d and a block may be", i+1, held, most)
				}
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
			kept.mu.Lock()
			if kept.held != 0 || kept.stored != 0 {
				t.Errorf("an empty mailbox holds %d bytes, %d charged", kept.held, kept.stored)
			}
			kept.mu.Unlock()
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
				mb.mu.Lock()
				held, most := mb.held, mb.heldMostLocked()
				mb.mu.Unlock()
				if held > most+256<<10 {
					t.Fatalf("after %d rounds %d bytes are held, at most %d and a block may be", i+1, held, most)
				}
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

// One small message does not keep the block that it was read in for ever.
func TestSweptMessage(t *testing.T) {
	for name, tr := range allLinks(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			kept, drained := box(t, b, 1, 0), box(t, b, 2, 0)
			kept.mu.Lock()
			kept.sweeper = time.AfterFunc(time.Hour, func() {}) // the test calls sweep itself
			kept.mu.Unlock()
			toKept, toDrained := flow(t, a, kept), flow(t, a, drained)
			ctx := soon(t)
			for i := range 30 {
				if i%10 == 5 {
					if err := toKept.SendBytes(ctx, 1, uint64(i), []byte("small")); err != nil {
						t.Fatal(err)
					}
				}
				if err := toDrained.SendBytes(ctx, 1, 0, make([]byte, 1900)); err != nil {
					t.Fatal(err)
				}
			}
			for range 30 {
				take(t, drained)
			}
			held := func() uint64 { kept.mu.Lock(); defer kept.mu.Unlock(); return kept.held }
			before := held()
			kept.sweep()
			if now := held(); now != before {
				t.Errorf("%d bytes are held, %d before: what has just come was copied", now, before)
			}
			kept.sweep()
			after := held()
			if after > 4<<10 {
				t.Errorf("%d bytes are held by three small messages, %d before", after, before)
			}
			bufs := func() (bufs []*buffers.Buffer) { // the transport counts copies of its own frames too
				kept.mu.Lock()
				defer kept.mu.Unlock()
				for msg := kept.messages.First(); msg != nil; msg = msg.place.Next() {
					bufs = append(bufs, msg.buf)
				}
				return bufs
			}
			copied := bufs()
			for range 5 {
				kept.sweep()
			}
			if !slices.Equal(bufs(), copied) || held() != after {
				t.Errorf("copied again, or %d bytes are held in place of %d", held(), after)
			}
			for i := range 3 {
				msg, err := kept.Recv(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if msg.Tag() != uint64(10*i+5) || string(msg.Bytes()) != "small" {
					t.Errorf("message %d: tag %d, %q", i, msg.Tag(), msg.Bytes())
				}
				msg.Release()
			}
			kept.sweep()
			kept.mu.Lock()
			defer kept.mu.Unlock()
			if kept.isSweeping || kept.swept != nil {
				t.Error("an empty mailbox is swept still")
			}
		})
	}
}

// together delivers payloads to a mailbox from a context of another process, all in one
// block of size bytes.
func together(t *testing.T, mb *Mailbox, size int, payloads ...string) {
	t.Helper()
	l := newLink(mb.d, linkKey{peer: resource.MakeGID(1, 99, 0)})
	in := &inflow{from: l, l: l, dst: mb.serial, mb: mb}
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
	if err := mb.deliver(in, fs, at, 0); err != nil {
		t.Fatal(err)
	}
}

// sweep does not invalidate the position of compact, which continues behind the last message that
// it came to.
func TestSweptUnderCompact(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 0)
	together(t, mb, 64<<10, strings.Fields("a b c d e f g h i")...)
	mb.mu.Lock()
	mb.compacted = mb.messages.First().place.Next()
	mb.mu.Unlock()
	mb.sweep()
	mb.sweep()
	mb.mu.Lock()
	isStored := mb.compacted == nil
	for msg := mb.messages.First(); msg != nil; msg = msg.place.Next() {
		isStored = isStored || msg == mb.compacted
		if msg.batch != nil {
			t.Errorf("message %d lies in its block still", msg.tag)
		}
	}
	mb.mu.Unlock()
	if !isStored {
		t.Error("compact goes on behind a message that the mailbox has given back")
	}
}

// A mailbox is swept while stored messages keep more memory than they need, and no longer. That
// holds for messages that came so, and for messages that are left of a batch.
func TestSweepRests(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 0)
	isSwept := func(want bool, when string) {
		t.Helper()
		mb.mu.Lock()
		defer mb.mu.Unlock()
		if mb.isSweeping != want {
			t.Errorf("%s: swept: %v", when, mb.isSweeping)
		}
	}
	together(t, mb, 64<<10, "in", "a", "large", "block")
	isSwept(true, "small messages in a large block")
	for range 3 {
		mb.sweep()
	}
	isSwept(false, "messages in buffers of their own")
	large := strings.Repeat("x", 48<<10)
	together(t, mb, 64<<10, append([]string{large}, strings.Fields("and seven small ones that come with it")...)...)
	isSwept(false, "a block well used")
	for range 5 {
		take(t, mb)
	}
	isSwept(true, "what is left of a block")
	mb.sweep()
	mb.sweep()
	mb.sweep()
	isSwept(false, "a copy of what is left of a block")
	for range 8 {
		take(t, mb)
	}
	mb.mu.Lock()
	defer mb.mu.Unlock()
	if mb.held != 0 || mb.sparse != 0 {
		t.Errorf("%d bytes are held, and %d blocks sparse, in an empty mailbox", mb.held, mb.sparse)
	}
}
