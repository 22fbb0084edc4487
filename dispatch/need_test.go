// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"testing"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// A sender asks for credit of a mailbox that has been closed since its last message. The sender is
// told that the resource is gone.
func TestNeedOfClosed(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			mb := box(t, b, 1, FirstCredit)
			f := flow(t, a, mb)
			if err := f.try(soon(t), 0, 10); err != nil {
				t.Fatal(err)
			}
			take(t, mb)
			mb.Close()
			eventually.Returns(t, "a send to a closed mailbox", func() {
				if err := f.try(soon(t), 1, 4*FirstCredit); !errors.Is(err, ErrGone) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// A sender that waits for credit as a mailbox is closed, and has no message in it, is told as well.
func TestCloseTellsTheNeedy(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b, c := w.node(t, 1, tr), w.node(t, 2, tr), w.node(t, 3, tr)
			mb := box(t, b, 1, FirstCredit)
			if err := flow(t, c, mb).try(soon(t), 0, 60_000); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "the message of another", func() bool { n, _ := mb.Len(); return n == 1 })
			f := flow(t, a, mb)
			eventually.Returns(t, "a send to a mailbox that is closed", func() {
				go func() {
					needed(t, mb)
					mb.Close()
				}()
				if err := f.try(soon(t), 1, 4*FirstCredit); !errors.Is(err, ErrGone) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// Credit for a sender that has given up waiting does not keep the next sender from getting credit.
func TestNeedyBehindCancelled(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			b := w.node(t, 9, tr)
			mb := box(t, b, 1, FirstCredit)
			waiting := func() int { mb.mu.Lock(); defer mb.mu.Unlock(); return len(mb.credit.Waiting()) }
			a, c, e := w.node(t, 1, tr), w.node(t, 2, tr), w.node(t, 3, tr)
			if err := flow(t, c, mb).try(soon(t), 0, 60_000); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "the message of another", func() bool { n, _ := mb.Len(); return n == 1 })
			ctx, cancel := context.WithCancel(soon(t))
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- flow(t, a, mb).try(ctx, 1, 2*FirstCredit) }()
			eventually.True(t, "the first need", func() bool { return waiting() == 1 })
			go func() { second <- flow(t, e, mb).try(soon(t), 2, 2*FirstCredit) }()
			eventually.True(t, "the second need", func() bool { return waiting() == 2 })
			cancel()
			<-first
			take(t, mb)
			eventually.Returns(t, "the second", func() {
				if err := <-second; err != nil {
					t.Error(err)
				}
			})
			take(t, mb, Tag(2))
		})
	}
}

// A message that was too large to wait for, and was given up, does not stop the small messages
// after it.
func TestSmallBehindCancelled(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			mb := box(t, b, 1, 4*FirstCredit)
			f := flow(t, a, mb)
			if err := f.try(soon(t), 99, 10); err != nil { // the message stays in the mailbox
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(soon(t))
			gaveUp := make(chan error, 1)
			go func() { gaveUp <- f.try(ctx, 1, 8*FirstCredit) }()
			needed(t, mb)
			cancel()
			<-gaveUp
			for range 40 {
				eventually.Returns(t, "a small message", func() {
					if err := f.try(soon(t), 2, 10_000); err != nil {
						t.Error(err)
					}
				})
				take(t, mb, Tag(2))
			}
		})
	}
}

// A sender's need takes into account what other senders were granted and have not sent yet.
func TestNeedOfTheLargest(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 0)
	l := newLink(d, linkKey{peer: resource.MakeGID(1, 2, 0)})
	l.d.progress.Lock()
	defer l.d.progress.Unlock()
	f := subsys.Frame{Header: subsys.Header{Type: wire.TypeNeed, Dst: 1, Tag: FirstCredit + credit.Charge(MaxMessage)}}
	if err := l.control(&f); err != nil {
		t.Error(err)
	}
	mb.Close()
}
