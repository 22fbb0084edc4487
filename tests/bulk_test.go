// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	lib "github.com/rocl-go/rocl" // the name rocl is that of the command
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/subsys/tcp"
)

const bulkLen = 8 << 20

// bulkOrigin is a peer that exposes memory, registered and plain.
func bulkOrigin(c *lib.Context, who lib.Attrs) error {
	ctx := context.Background()
	ep, err := bulk.Open(ctx, c)
	if err != nil {
		return err
	}
	b, err := c.Buffer(bulkLen)
	if err != nil {
		return err
	}
	for name, s := range map[string]bulk.Segment{"registered": bulk.Buffer(b), "plain": bulk.Bytes(bytes.Repeat([]byte{7}, bulkLen))} {
		r, err := ep.Expose(bulk.ReadWrite, s)
		if err != nil {
			return err
		}
		text, err := r.Handle().MarshalText()
		if err != nil {
			return err
		}
		who[name] = string(text)
	}
	for i := range b.Bytes() {
		b.Bytes()[i] = 7
	}
	if _, err := c.Register(ctx, who); err != nil {
		return err
	}
	fmt.Println("registered")
	select {}
}

// bulkTarget is a peer that keeps a view of the test's memory, and pulls and pushes.
func bulkTarget(c *lib.Context, who lib.Attrs) error {
	ctx := context.Background()
	ep, err := bulk.Open(ctx, c)
	if err != nil {
		return err
	}
	f, err := c.Find(ctx, lib.Match{"bulk": "memory"}, lib.Want("handle"))
	if err != nil {
		return err
	}
	h, err := handleOf(f, "handle")
	if err != nil {
		return err
	}
	if _, err := ep.View(ctx, h, 0, bulkLen/2); err != nil { // never released
		return err
	}
	if _, err := c.Register(ctx, who); err != nil {
		return err
	}
	fmt.Println("registered")
	go func() {
		for err == nil {
			_, err = ep.Pull(ctx, h, 0, make([]byte, bulkLen/2))
		}
	}()
	off := int64(bulkLen / 2)
	if strings.HasPrefix(os.Args[4], "two") { // two peers push at once
		off += bulkLen / 4
	}
	for {
		if _, err := ep.Push(ctx, h, off, bytes.Repeat([]byte{9}, bulkLen/4)); err != nil {
			return err
		}
	}
}

func handleOf(f lib.Found, name string) (h bulk.Handle, err error) {
	text, _ := f.Attrs.Get(name)
	return h, h.UnmarshalText([]byte(text))
}

// overBoth runs f over TCP and over shared memory. opts choose the transport of the test's context,
// and the environment that of its peers.
func overBoth(t *testing.T, f func(t *testing.T, opts ...lib.Option)) {
	if !isApart() {
		t.Run("tcp", func(t *testing.T) { f(t, lib.WithTransports(tcp.New())) })
	}
	t.Run("shm", func(t *testing.T) {
		t.Setenv("ROCL_TEST_SHM", "adaptive")
		f(t)
	})
}

// The origin is killed while its memory is pulled and pushed. Each transfer fails with ErrGone at
// once, and the memory of views stays valid.
//
// Promise (Package bulk): A transfer whose origin is killed fails with `ErrGone`. Views stay.
func TestBulkOriginKilled(t *testing.T) {
	overBoth(t, func(t *testing.T, opts ...lib.Option) {
		sock := socket(t)
		c := open(t, sock, opts...)
		ep, err := bulk.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for round := range 5 {
			ctx := eventually.Context(t)
			name := fmt.Sprint("origin", round)
			p := peer(t, "bulk-origin", sock, name)
			f, err := c.Find(ctx, lib.Match{"peer": name}, lib.Want("registered", "plain"))
			if err != nil {
				t.Fatal(err)
			}
			var transfers sync.WaitGroup
			begun := make(chan struct{}, 4)
			try := func(h bulk.Handle, do func(context.Context, bulk.Handle, int64, ...[]byte) (int64, error)) {
				transfers.Go(func() {
					for {
						n, err := do(ctx, h, 0, bytes.Repeat([]byte{7}, bulkLen))
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
				h, err := handleOf(f, kind)
				if err != nil {
					t.Fatal(err)
				}
				m, err := ep.View(ctx, h, 0, bulkLen)
				if err != nil {
					t.Fatal(err)
				}
				views = append(views, m)
				try(h, ep.Pull)
				try(h, ep.Push)
			}
			for range round {
				select {
				case <-begun:
				case <-ctx.Done():
					t.Fatal("a transfer has not ended")
				}
			}
			p.kill(t)
			transfers.Wait()
			for _, m := range views {
				if len(bytes.Trim(m.Bytes(), "\x07")) > 0 {
					t.Error("a view has changed")
				}
				m.Release()
			}
		}
		if err := ep.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The target is killed while it pulls, pushes and has a view. The origin gets its memory back,
// registered or plain, and other targets are unaffected.
func TestBulkTargetKilled(t *testing.T) {
	overBoth(t, func(t *testing.T, opts ...lib.Option) {
		sock := socket(t)
		c := open(t, sock, opts...)
		ctx := eventually.Context(t)
		ep, err := bulk.Open(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		for round := range 5 {
			b, err := c.Buffer(bulkLen)
			if err != nil {
				t.Fatal(err)
			}
			mem, segment := b.Bytes(), bulk.Buffer(b)
			if round%2 == 1 {
				mem = make([]byte, bulkLen)
				segment = bulk.Bytes(mem)
			}
			r, err := ep.Expose(bulk.ReadWrite, segment)
			if err != nil {
				t.Fatal(err)
			}
			text, err := r.Handle().MarshalText()
			if err != nil {
				t.Fatal(err)
			}
			memory := register(t, c, lib.Attrs{"bulk": "memory", "handle": string(text)})
			one, two := peer(t, "bulk-target", sock, fmt.Sprint("one", round)), peer(t, "bulk-target", sock, fmt.Sprint("two", round))
			goOn := func(more uint64) {
				was := ep.Stats()
				eventually.True(t, "transfers go on", func() bool {
					now := ep.Stats()
					return now.Reads >= was.Reads+more && now.Writes >= was.Writes+more
				})
			}
			goOn(uint64(round))
			one.kill(t)
			goOn(20)
			two.kill(t)
			if err := r.Revoke(ctx); err != nil {
				t.Fatal(err)
			}
			if b.Refs() != 1 {
				t.Errorf("%d references", b.Refs())
			}
			for i := range mem {
				mem[i] = 1
			}
			b.Release()
			if err := memory.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := ep.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}
