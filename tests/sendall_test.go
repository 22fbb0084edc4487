// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
)

// One of the targets of SendAll is killed while its mailbox is full. The others have the message
// already, and the error names the killed one.
func TestSendAllKilled(t *testing.T) {
	for _, shm := range []string{"", "adaptive"} {
		t.Run("shm="+shm, func(t *testing.T) {
			t.Setenv("ROCL_TEST_SHM", shm)
			sock := socket(t)
			c := open(t, sock, lib.WithGiveUp(3*time.Second))
			ctx := eventually.Context(t)
			me := register(t, c, lib.Attrs{"me": "yes"})
			full := peer(t, "silent", sock, "full")
			peer(t, "echo", sock, "other")
			find := func(name string) lib.GID {
				t.Helper()
				f, err := c.Find(ctx, lib.Match{"peer": name})
				if err != nil {
					t.Fatal(err)
				}
				return f.ID
			}
			target, other := find("full"), find("other")
			if err := me.SendBytes(ctx, target, 0, nil); err != nil {
				t.Fatal(err)
			}
			ended, end := context.WithCancel(ctx)
			end()
			for {
				if err := me.SendBytes(ended, target, 0, make([]byte, 10_000)); errors.Is(err, context.Canceled) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Flush(ctx); err != nil { // what the peer has not acknowledged when it is killed is reported
				t.Fatal(err)
			}

			b, err := c.Buffer(300_000) // more than the limit of the silent peer's mailbox
			if err != nil {
				t.Fatal(err)
			}
			clear(b.Bytes())
			result := make(chan error, 1)
			go func() { result <- me.SendAll(ctx, []lib.GID{target, other, me.ID()}, 7, b) }()
			got := func() {
				t.Helper()
				m, err := me.Recv(ctx)
				if err != nil || m.Len() != 300_000 || m.Tag() != 7 {
					t.Fatal(m, err)
				}
				m.Release()
			}
			got() // its own message
			got() // the answer of the other peer
			select {
			case err := <-result:
				t.Fatalf("SendAll has not waited: %v", err)
			default:
			}
			full.kill(t)
			err = <-result
			var failed lib.SendErrors
			if !errors.As(err, &failed) || len(failed) != 1 || failed[0].To != target || !errors.Is(err, lib.ErrGone) && !errors.Is(err, lib.ErrUnreachable) {
				t.Fatalf("after the kill: %v", err)
			}
			if err := me.SendAll(ctx, []lib.GID{other, me.ID()}, 7, b); err != nil {
				t.Fatal(err)
			}
			got()
			got()
			if err := c.Flush(ctx); err != nil { // the other peer may be killed before it acknowledges
				t.Fatal(err)
			}
		})
	}
}
