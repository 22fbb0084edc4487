// SPDX-License-Identifier: Apache-2.0

//go:build linux

package buffers

import (
	"testing"

	"github.com/rocl-go/rocl/internal/memfd"
)

// Buffers of a shared pool lie in files that can be mapped elsewhere, where
// Locate says; those of before Share, and others' memory, do not.
func TestShare(t *testing.T) {
	p := New()
	old, err := p.Get(100)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Share(); err != nil {
		t.Skip(err)
	}
	if err := p.Share(); err != nil {
		t.Error(err)
	}
	if _, _, ok := old.Locate(old.Bytes()); ok {
		t.Error("private memory has a place")
	}
	old.Release()
	for _, n := range []int{5000, 3 << 20} {
		b, err := p.Get(n)
		if err != nil {
			t.Fatal(err)
		}
		b.Bytes()[n-1] = 42
		s := b.Slice(n-10, 10)
		a, off, ok := s.Locate(s.Bytes())
		if !ok || a.FD < 0 {
			t.Fatalf("%d bytes have no place", n)
		}
		view, err := memfd.Open(a.FD, len(a.Mem))
		if err != nil {
			t.Fatal(err)
		}
		if view[off+9] != 42 {
			t.Errorf("%d bytes are not where they are said to be", n)
		}
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
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

type lenderFunc func()

func (f lenderFunc) Return() { f() }

// Borrowed memory goes back once, with the last of buffer and slices.
func TestBorrow(t *testing.T) {
	p := New()
	back := 0
	var it Buffer
	b := p.Borrow(&it, []byte("theirs"), lenderFunc(func() { back++ }))
	s := b.Slice(2, 3)
	if !b.ReadOnly() || !s.ReadOnly() || string(s.Bytes()) != "eir" || b.Len() != 6 || b.State() != Owned {
		t.Errorf("%v %v %q", b.ReadOnly(), s.ReadOnly(), s.Bytes())
	}
	if _, _, ok := s.Locate(s.Bytes()); ok {
		t.Error("others' memory has a place of ours")
	}
	b.Release()
	if back > 0 {
		t.Error("it went back while it was held")
	}
	s.Release()
	if back != 1 {
		t.Errorf("it went back %d times", back)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	own, err := New().Get(10)
	if err != nil || own.ReadOnly() {
		t.Error("own memory is read-only", err)
	}
}

// What is abandoned is not handed out again, and does not keep the pool from closing.
func TestAbandon(t *testing.T) {
	for _, n := range []int{100, 2 << 20} {
		p := New()
		b, err := p.Get(n)
		if err != nil {
			t.Fatal(err)
		}
		mem := &b.Bytes()[0]
		s := b.Slice(0, 10)
		b.Release()
		s.Abandon()
		if in := p.Stats().InUse; in != 0 {
			t.Errorf("%d are in use", in)
		}
		for range 1000 {
			b, err := p.Get(min(n, 1<<16))
			if err != nil {
				t.Fatal(err)
			}
			if n < 1<<16 && &b.Bytes()[0] == mem {
				t.Fatal("it is handed out again")
			}
			defer b.Release()
		}
		if n == 100 {
			p.mu.Lock()
			p.shrink()
			if len(p.homes) == 0 {
				t.Error("its arena is gone")
			}
			p.mu.Unlock()
		}
	}
}
