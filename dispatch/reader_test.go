// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// A message is read to its end and no further, over each transport. A later message is read from
// its beginning.
//
// Promise (Buffers): A `Message` is an `io.Reader` of its payload over every transport. See also
// TestMessageWriterFails.
func TestMessageReader(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		ctx := soon(t)
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mb := box(t, b, 1, 0)
		f := flow(t, a, mb)
		for _, size := range []int{0, 1, 100, 5000, 300_000} {
			want := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
			recv := func() *Message {
				t.Helper()
				try.OK(t, f.SendBytes(ctx, 1, 0, want))
				m := try.Get(mb.Recv(ctx))(t)
				return m
			}
			m := recv()
			try.Check(t, iotest.TestReader(m, want), "%d bytes", size)
			if n, err := m.Read(nil); n != 0 || err != nil {
				t.Errorf("%d bytes: reading nothing at the end: %d, %v", size, n, err)
			}
			if !bytes.Equal(m.Bytes(), want) {
				t.Errorf("%d bytes: Bytes are not all after they were read", size)
			}
			m.Release()

			m = recv()
			var remaining bytes.Buffer
			var first [1]byte
			n, _ := m.Read(first[:])
			if got, err := io.Copy(&remaining, m); int(got) != size-n || err != nil || !bytes.Equal(append(first[:n:n], remaining.Bytes()...), want) {
				t.Errorf("%d bytes: copied %d behind %d, %v", size, got, n, err)
			}
			if n, err := m.Read(first[:]); n != 0 || err != io.EOF {
				t.Errorf("%d bytes: after all was copied: %d, %v", size, n, err)
			}
			m.Release()
		}
	})
}

// Bytes that a writer did not take are read next.
func TestMessageWriterFails(t *testing.T) {
	full := errors.New("full")
	m := &Message{data: []byte("0123456789")}
	if n, err := m.WriteTo(writeFunc(func([]byte) (int, error) { return 3, full })); n != 3 || !errors.Is(err, full) {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := m.WriteTo(writeFunc(func([]byte) (int, error) { return 3, nil })); n != 3 || !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%d, %v", n, err)
	}
	for _, lie := range []int{-1, 5} {
		if n, err := m.WriteTo(writeFunc(func([]byte) (int, error) { return lie, nil })); n != 0 || err == nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if remaining, err := io.ReadAll(m); string(remaining) != "6789" || err != nil {
		t.Errorf("%q, %v", remaining, err)
	}
}

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(p []byte) (int, error) { return f(p) }

// BufferWait waits for memory for as long as its context lasts. It does not wait for memory that
// can never be given.
//
// Promise (Buffers): `BufferWait`, `SendBytes`, `CallBytes` and `SendValue` wait for memory until
// their `ctx` ends. While one buffer gets memory, other calls get theirs. See also
// TestValueWaitsForMemory, TestCommitInSteps.
func TestBufferWait(t *testing.T) {
	ctx := soon(t)
	w := newWorld()
	d := w.node(t, 1, transports()["inproc"], func(c *Config) { c.Pool = buffers.New(buffers.WithLimit(1 << 20)) })
	take := func() (all []*buffers.Buffer) {
		for {
			b, err := d.Buffer(64 << 10)
			if err != nil {
				if !buffers.IsTemporary(err) {
					t.Fatal(err)
				}
				return all
			}
			all = append(all, b)
		}
	}
	all := take()
	if len(all) == 0 {
		t.Fatal("no memory")
	}
	ended, end := context.WithCancelCause(ctx)
	why := errors.New("why")
	end(why)
	try.Fails(d.BufferWait(ended, 64<<10))(t, why, "without memory, and time")
	if _, err := d.BufferWait(ctx, 1<<20); !errors.Is(err, buffers.ErrLimit) || !errors.Is(err, buffers.ErrTooLarge) {
		t.Errorf("more than there is: %v", err)
	}
	try.Fails(d.BufferWait(ctx, MaxMessage+1))(t, ErrTooLarge, "more than a message")
	try.Fails(d.BufferWait(ctx, -1))(t, buffers.ErrTooLarge, "less than nothing")
	got := make(chan error, 1)
	go func() {
		b, err := d.BufferWait(ctx, 64<<10)
		if err == nil {
			b.Release()
		}
		got <- err
	}()
	for _, b := range all {
		b.Release()
	}
	try.Check(t, <-got, "when memory came back")

	all = take()
	go func() {
		_, err := d.BufferWait(ctx, 64<<10)
		got <- err
	}()
	_ = d.cfg.Pool.Close()
	try.Fails(<-got)(t, ErrClosed, "when the pool was closed")
	for _, b := range all {
		b.Release()
	}
}
