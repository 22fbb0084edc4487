// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tls"
)

// allTransports is transports and TLS.
func allTransports(t *testing.T) map[string]subsys.Transport {
	secret, err := tls.FromSecrets("", []byte("a secret of 16 b"))
	if err != nil {
		t.Fatal(err)
	}
	all := transports()
	all["tls"] = tls.New(secret)
	return all
}

// Small messages that stay in a mailbox do not keep the blocks that they were read
// in, and are what they were.
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
				// The messages to drained fill the block in which the one to kept lies.
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
				held, most := kept.held, kept.heldMost()
				kept.mu.Unlock()
				if held > most+256<<10 {
					t.Fatalf("after %d messages %d bytes are held, at most %d and a block may be", i+1, held, most)
				}
			}
			// What is mapped is the bound and whole arenas of some classes.
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

// What a mailbox holds stays within bounds also where receivers leave single messages
// of what came together, in any order.
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
				held, most := mb.held, mb.heldMost()
				mb.mu.Unlock()
				if held > most+256<<10 {
					t.Fatalf("after %d rounds %d bytes are held, at most %d and a block may be", i+1, held, most)
				}
				if i >= 20 { // some stay for long
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
