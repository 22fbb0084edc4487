// SPDX-License-Identifier: Apache-2.0

//go:build linux

package buffers

import (
	"testing"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Buffers of a shared pool lie in files that can be mapped elsewhere, at the place that Locate
// returns. Buffers from before Share, and memory of lenders, do not.
func TestShare(t *testing.T) {
	p := New()
	old := get(t, p, 100)
	if err := p.Share(); err != nil {
		t.Skip(err)
	}
	try.Check(t, p.Share())
	if _, _, ok := old.Locate(old.Bytes()); ok {
		t.Error("private memory has a place")
	}
	old.Release()
	for _, n := range []int{5000, 3 << 20} {
		b := get(t, p, n)
		b.Bytes()[n-1] = 42
		s := b.Slice(n-10, 10)
		a, off, ok := s.Locate(s.Bytes())
		if !ok || a.FD < 0 {
			t.Fatalf("%d bytes have no place", n)
		}
		view := try.Get(memfd.Open(a.FD, len(a.Mem)))(t)
		try.Equal(t, view[off+9], 42, "where %d bytes are said to be", n)
		memfd.Unmap(view)
		if _, _, ok := b.Locate(make([]byte, 8)); ok {
			t.Error("memory outside has a place")
		}
		if _, _, ok := b.Locate(nil); ok {
			t.Error("nothing has a place")
		}
		s.Release()
		b.Release()
	}
	wantNothingLeft(t, p)
}

// Borrowed memory goes back once, with the last reference to the buffer and its slices.
func TestBorrow(t *testing.T) {
	p := New()
	back := 0
	var it Buffer
	b := p.Borrow(&it, []byte("theirs"), lenderFunc(func(bool) { back++ }))
	s := b.Slice(2, 3)
	if !b.ReadOnly() || !s.ReadOnly() || string(s.Bytes()) != "eir" || b.Len() != 6 || b.State() != Owned {
		t.Errorf("%v %v %q", b.ReadOnly(), s.ReadOnly(), s.Bytes())
	}
	if _, _, ok := s.Locate(s.Bytes()); ok {
		t.Error("lent memory has a location in the pool")
	}
	b.Release()
	if back > 0 {
		t.Error("it went back while it was held")
	}
	s.Release()
	try.Equal(t, back, 1, "returns")
	wantNothingLeft(t, p)
	if get(t, New(), 10).ReadOnly() {
		t.Error("own memory is read-only")
	}
}

// An abandoned buffer is not handed out again, and does not keep the pool from closing.
func TestAbandon(t *testing.T) {
	for _, n := range []int{100, 2 << 20} {
		p := New()
		b := get(t, p, n)
		mem := &b.Bytes()[0]
		s := b.Slice(0, 10)
		b.Release()
		s.Abandon()
		if in := p.Stats().InUse; in != 0 {
			t.Errorf("%d are in use", in)
		}
		for range 1000 {
			b := get(t, p, min(n, 1<<16))
			if n < 1<<16 && &b.Bytes()[0] == mem {
				t.Fatal("it is handed out again")
			}
			defer b.Release()
		}
		if n == 100 {
			p.mu.Lock()
			p.shrinkLocked()
			if len(p.homes) == 0 {
				t.Error("its arena is gone")
			}
			p.mu.Unlock()
		}
	}
}

// An arena in which a buffer was abandoned gives no further buffers. It is unmapped when the last
// of its buffers has been released. Mappings in other processes stay.
func TestAbandonedArena(t *testing.T) {
	p := shared(t, New())
	var all [4]*Buffer // of one arena
	for i := range all {
		all[i] = get(t, p, 4096)
	}
	a, off, ok := all[1].Locate(all[1].Bytes())
	if _, _, same := all[3].Locate(a.Mem); !ok || !same {
		t.Fatal("the buffers are not in one arena")
	}
	view := try.Get(memfd.Open(a.FD, len(a.Mem)))(t)
	defer memfd.Unmap(view)
	all[1].Bytes()[0] = 42
	all[0].Release()
	all[1].Abandon()
	for range 1000 {
		b := get(t, p, 4096)
		if _, ok := a.Offset(b.Bytes()); ok {
			t.Fatal("a buffer of the arena is handed out")
		}
		clear(b.Bytes())
		defer b.Release()
	}
	all[2].Release()
	isMapped := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.homes[a.ID] != nil
	}
	if !isMapped() {
		t.Error("the arena is gone while a buffer in it is held")
	}
	all[3].Release()
	if isMapped() {
		t.Error("the arena is mapped though nothing in it is held")
	}
	try.Equal(t, view[off], 42, "what a reader has mapped has changed")
}

// A lender is told each time whether its memory may still be read.
func TestLenderHears(t *testing.T) {
	p := New()
	var heard []bool
	var it Buffer
	for _, isAbandoned := range []bool{false, true, false} {
		b := p.Borrow(&it, []byte("theirs"), lenderFunc(func(is bool) { heard = append(heard, is) }))
		s := b.Slice(1, 2)
		if s.Lender() == nil || s.Pool() != p {
			t.Error("a slice does not know its lender, or its pool")
		}
		if isAbandoned {
			s.Abandon()
		} else {
			s.Release()
		}
		b.Release()
	}
	if len(heard) != 3 || heard[0] || !heard[1] || heard[2] {
		t.Errorf("the lender heard %v", heard)
	}
}

// A view, and slices of it, are read-only and keep the memory alive. They lie in the memory of the
// buffer.
func TestView(t *testing.T) {
	p := shared(t, New())
	b := get(t, p, 5000)
	v := b.View(b.Bytes()[10:20])
	s := v.Slice(1, 2)
	if b.ReadOnly() || !v.ReadOnly() || !s.ReadOnly() || v.Len() != 10 || v.Cap() != 10 || v.Lender() != nil {
		t.Errorf("%v %v %v, %d of %d", b.ReadOnly(), v.ReadOnly(), s.ReadOnly(), v.Len(), v.Cap())
	}
	a, off, ok := b.Locate(b.Bytes()[11:13])
	if a2, off2, ok2 := s.Locate(s.Bytes()); !ok || !ok2 || a != a2 || off != off2 {
		t.Error("a slice of a view lies elsewhere")
	}
	b.Release()
	v.Release()
	if in := p.Stats().InUse; in != 1 {
		t.Errorf("%d are in use while a slice of a view is", in)
	}
	s.Release()
	other := get(t, p, 5000)
	s = other.Slice(0, 1)
	if s.ReadOnly() {
		t.Error("a slice is read-only because another was")
	}
	s.Release()
	other.Release()
}
