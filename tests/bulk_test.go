// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	lib "github.com/rocl-go/rocl" // the name rocl is that of the command
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

const bulkLen = 8 << 20

var sevens = bytes.Repeat([]byte{7}, bulkLen)

// bulkOrigin is a peer that exposes memory, registered and plain.
func bulkOrigin(t testing.TB, c *lib.Context, who lib.Attrs) {
	ep, b := try.Get(bulk.Open(bg, c))(t), try.Get(c.Buffer(bulkLen))(t)
	copy(b.Bytes(), sevens)
	for name, s := range map[string]bulk.Segment{"registered": bulk.Buffer(b), "plain": bulk.Bytes(bytes.Clone(sevens))} {
		who[name] = handleText(t, try.Get(ep.Expose(bulk.ReadWrite, s))(t))
	}
	enter(t, c, who)
	select {}
}

// bulkTarget is a peer that keeps a view of the test's memory, and pulls and pushes.
func bulkTarget(t testing.TB, c *lib.Context, who lib.Attrs) {
	ep := try.Get(bulk.Open(bg, c))(t)
	h := handleOf(t, try.Get(c.Find(bg, lib.Match{"bulk": "memory"}, lib.Want("handle")))(t), "handle")
	try.Get(ep.View(bg, h, 0, bulkLen/2))(t) // never released
	enter(t, c, who)
	go func() {
		for {
			try.Get(ep.Pull(bg, h, 0, make([]byte, bulkLen/2)))(t)
		}
	}()
	off := int64(bulkLen / 2)
	if strings.HasPrefix(who["peer"], "two") { // two peers push at once
		off += bulkLen / 4
	}
	for {
		try.Get(ep.Push(bg, h, off, bytes.Repeat([]byte{9}, bulkLen/4)))(t)
	}
}

// bulkRounds returns how often processes are killed: five times, or twice in the short form and in
// TestCrashApart, which repeats the tests of this file.
func bulkRounds(t *testing.T) int {
	if short.Form(t) || isApart() {
		return 2
	}
	return 5
}

func handleText(t testing.TB, r *bulk.Region) string {
	return string(try.Get(r.Handle().MarshalText())(t))
}

func handleOf(t testing.TB, f lib.Found, name string) (h bulk.Handle) {
	text, _ := f.Attrs.Get(name)
	try.OK(t, h.UnmarshalText([]byte(text)))
	return h
}

// The origin is killed while its memory is pulled and pushed. Each transfer fails with ErrGone at
// once, and the memory of views stays valid.
//
// Promise (Package bulk): A transfer whose origin is killed fails with `ErrGone`. Views stay.
func TestBulkOriginKilled(t *testing.T) {
	overBoth(t, func(t *testing.T, opts ...lib.Option) {
		sock := socket(t)
		c := open(t, sock, opts...)
		ep := try.Get(bulk.Open(t.Context(), c))(t)
		for round := range bulkRounds(t) {
			ctx := eventually.Context(t)
			name := fmt.Sprint("origin", round)
			p := peer(t, "bulk-origin", sock, name)
			f := try.Get(c.Find(ctx, lib.Match{"peer": name}, lib.Want("registered", "plain")))(t)
			var transfers sync.WaitGroup
			begun := make(chan struct{}, 4)
			check := func(h bulk.Handle, do func(context.Context, bulk.Handle, int64, ...[]byte) (int64, error)) {
				transfers.Go(func() {
					for {
						n, err := do(ctx, h, 0, bytes.Clone(sevens))
						if err != nil {
							if !errors.Is(err, lib.ErrGone) || n == bulkLen {
								t.Errorf("%d bytes: %v", n, err)
							}
							return
						}
						select {
						case begun <- struct{}{}:
						default:
						}
					}
				})
			}
			var views []*lib.Message
			for _, kind := range []string{"registered", "plain"} {
				h := handleOf(t, f, kind)
				views = append(views, try.Get(ep.View(ctx, h, 0, bulkLen))(t))
				check(h, ep.Pull)
				check(h, ep.Push)
			}
			for range round {
				eventually.Value(t, "a transfer ends", begun)
			}
			p.Kill()
			transfers.Wait()
			for _, m := range views {
				if len(bytes.Trim(m.Bytes(), "\x07")) > 0 {
					t.Error("a view has changed")
				}
				m.Release()
			}
		}
		try.OK(t, ep.Close(t.Context()))
	})
}

// The target is killed while it pulls, pushes and has a view. The origin gets its memory back,
// registered or plain, and other targets are unaffected.
func TestBulkTargetKilled(t *testing.T) {
	overBoth(t, func(t *testing.T, opts ...lib.Option) {
		sock := socket(t)
		c := open(t, sock, opts...)
		ctx := eventually.Context(t)
		ep := try.Get(bulk.Open(ctx, c))(t)
		for round := range bulkRounds(t) {
			b := try.Get(c.Buffer(bulkLen))(t)
			mem, segment := b.Bytes(), bulk.Buffer(b)
			if round%2 == 1 {
				mem = make([]byte, bulkLen)
				segment = bulk.Bytes(mem)
			}
			r := try.Get(ep.Expose(bulk.ReadWrite, segment))(t)
			memory := register(t, c, lib.Attrs{"bulk": "memory", "handle": handleText(t, r)})
			one, two := peer(t, "bulk-target", sock, fmt.Sprint("one", round)), peer(t, "bulk-target", sock, fmt.Sprint("two", round))
			goOn := func(more uint64) {
				was := ep.Stats()
				eventually.True(t, "transfers go on", func() bool {
					now := ep.Stats()
					return now.Reads >= was.Reads+more && now.Writes >= was.Writes+more
				})
			}
			goOn(uint64(round))
			one.Kill()
			goOn(5)
			two.Kill()
			try.OK(t, r.Revoke(ctx))
			try.Equal(t, b.Refs(), 1, "references")
			for i := range mem {
				mem[i] = 1
			}
			b.Release()
			try.OK(t, memory.Close())
		}
		try.OK(t, ep.Close(ctx))
	})
}
