// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A buffer has the length of what was written, whatever length it was made with and
// whatever its memory held before.
//
// Promise (Buffers): A `Buffer` has the length of what was written. `Write` fails with
// `io.ErrShortWrite` when full, and with `ErrReadOnly` in another process's memory. See also
// TestWriteAfterResize.
func TestWrite(t *testing.T) {
	p := New()
	defer p.Close()
	for range 2 { // the second is the first one's memory
		b := get(t, p, 100)
		fmt.Fprintf(b, "%d and ", 7)
		try.Gives(b.WriteString("eight"))(t, 5)
		try.Equal(t, string(b.Bytes()), "7 and eight")
		if n, err := b.Write(nil); n != 0 || err != nil || b.Len() != 11 {
			t.Errorf("nothing: %d, %v, %d bytes", n, err, b.Len())
		}
		b.Release()
	}
	b := get(t, p, 100)
	defer b.Release()
	if n, err := b.Write(nil); n != 0 || err != nil || b.Len() != 100 {
		t.Errorf("nothing to a new buffer: %d, %v, %d bytes", n, err, b.Len())
	}
}

// Write goes on where Resize has ended the buffer.
func TestWriteAfterResize(t *testing.T) {
	p := New()
	defer p.Close()
	b := get(t, p, 100)
	defer b.Release()
	copy(b.Bytes(), "head")
	try.OK(t, b.Resize(4))
	b.WriteString(" tail")
	try.Equal(t, string(b.Bytes()), "head tail")
	try.OK(t, b.Resize(0))
	b.WriteString("x")
	try.Equal(t, string(b.Bytes()), "x")
	s := b.Slice(0, 1)
	defer s.Release()
	if n, err := s.WriteString("yz"); n != 1 || !errors.Is(err, io.ErrShortWrite) || string(b.Bytes()) != "y" {
		t.Errorf("a slice: %d, %v, and its buffer is %q", n, err, b.Bytes())
	}
}

// A full buffer takes what fits, and Write returns an error.
func TestWriteFull(t *testing.T) {
	p := New()
	defer p.Close()
	b := get(t, p, 64)
	defer b.Release()
	text := strings.Repeat("0123456789", 10)
	n, err := b.WriteString(text)
	if n != b.Cap() || !errors.Is(err, io.ErrShortWrite) || string(b.Bytes()) != text[:n] {
		t.Errorf("%d of %d bytes, %v: %q", n, b.Cap(), err, b.Bytes())
	}
	if n, err := b.Write([]byte("x")); n != 0 || !errors.Is(err, io.ErrShortWrite) || b.Len() != b.Cap() {
		t.Errorf("to a full one: %d, %v", n, err)
	}
	try.Gives(b.Write(nil))(t, 0, "nothing to a full one")
}

type lenderFunc func(bool)

func (f lenderFunc) Return(isAbandoned bool) { f(isAbandoned) }

func TestWriteReadOnly(t *testing.T) {
	p := New()
	defer p.Close()
	b := p.Borrow(new(Buffer), make([]byte, 8), lenderFunc(func(bool) {}))
	defer b.Release()
	s := b.Slice(0, 4)
	defer s.Release()
	for _, b := range []*Buffer{b, s} {
		if n, err := b.Write([]byte("x")); n != 0 || !errors.Is(err, ErrReadOnly) {
			t.Errorf("Write: %d, %v", n, err)
		}
		if n, err := b.WriteString("x"); n != 0 || !errors.Is(err, ErrReadOnly) {
			t.Errorf("WriteString: %d, %v", n, err)
		}
		if n, err := b.ReadFrom(strings.NewReader("x")); n != 0 || !errors.Is(err, ErrReadOnly) {
			t.Errorf("ReadFrom: %d, %v", n, err)
		}
	}
}

// ReadFrom reads to the end, and reports whether the reader or the buffer ended first.
func TestReadFrom(t *testing.T) {
	p := New()
	defer p.Close()
	text := strings.Repeat("x", 64)
	odd := errors.New("odd")
	for name, c := range map[string]struct {
		r    io.Reader
		want int
		err  error
	}{
		"nothing":       {strings.NewReader(""), 0, nil},
		"some":          {strings.NewReader(text[:10]), 10, nil},
		"byte by byte":  {iotest.OneByteReader(strings.NewReader(text)), 64, nil},
		"with its end":  {iotest.DataErrReader(strings.NewReader(text)), 64, nil},
		"exactly":       {strings.NewReader(text), 64, nil},
		"too much":      {strings.NewReader(text + "y"), 64, io.ErrShortWrite},
		"an error":      {io.MultiReader(strings.NewReader(text[:3]), iotest.ErrReader(odd)), 3, odd},
		"never":         {readFunc(func([]byte) (int, error) { return 0, nil }), 0, io.ErrNoProgress},
		"said too much": {readFunc(func(p []byte) (int, error) { return len(p) + 1, nil }), 0, errAny},
		"less than 0":   {readFunc(func([]byte) (int, error) { return -1, nil }), 0, errAny},
	} {
		b := get(t, p, 64)
		n, err := b.ReadFrom(c.r)
		wrong := !errors.Is(err, c.err)
		if c.err == errAny {
			wrong = err == nil
		}
		if wrong || n != int64(c.want) || n > 0 && string(b.Bytes()) != text[:c.want] {
			t.Errorf("%s: %d, %v: %q", name, n, err, b.Bytes())
		}
		b.Release()
	}
	b := get(t, p, 1000)
	defer b.Release()
	b.WriteString("head ")
	if n, err := io.Copy(b, bytes.NewBufferString("tail")); n != 4 || err != nil || string(b.Bytes()) != "head tail" {
		t.Errorf("%d, %v: %q", n, err, b.Bytes())
	}
}

var errAny = errors.New("any")

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }
