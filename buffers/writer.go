// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"fmt"
	"io"
)

var (
	_ io.Writer       = (*Buffer)(nil)
	_ io.StringWriter = (*Buffer)(nil)
	_ io.ReaderFrom   = (*Buffer)(nil)
)

// Write implements [io.Writer]. The first Write to a buffer begins at its first byte. Each further
// one begins where the last Write or Resize ended. Len is then the end of the written bytes. So a
// buffer that only Write fills has the length of what was written, and after Resize(n) Write
// appends to the first n bytes.
//
// A buffer does not grow. Write writes what fits up to Cap, and fails with
// [io.ErrShortWrite] if that is not all of p. It fails with ErrReadOnly, and writes nothing,
// if the buffer is ReadOnly.
//
// Only the owner may write, and not while another reference is in use, such as after Send of a
// retained buffer.
func (b *Buffer) Write(p []byte) (n int, err error) {
	to, err := b.space()
	if err != nil {
		return 0, err
	}
	return b.wrote(copy(to, p), len(p))
}

// WriteString is Write of the bytes of s.
func (b *Buffer) WriteString(s string) (n int, err error) {
	to, err := b.space()
	if err != nil {
		return 0, err
	}
	return b.wrote(copy(to, s), len(s))
}

// ReadFrom implements [io.ReaderFrom]. It reads r to its end into the buffer, from where Write
// would begin. If r has more bytes than fit up to Cap, ReadFrom fails with [io.ErrShortWrite],
// after it has read one byte more than n from r. It returns the error of r, and ErrReadOnly for a
// read-only buffer.
func (b *Buffer) ReadFrom(r io.Reader) (n int64, err error) {
	to, err := b.space()
	if err != nil {
		return 0, err
	}
	var beyond [1]byte // a full buffer is an error only if r has more
	for empty := 0; ; {
		into := to
		if len(into) == 0 {
			into = beyond[:]
		}
		got, err := r.Read(into)
		switch {
		case got < 0 || got > len(into):
			return n, fmt.Errorf("buffers: reading from %T: it says that it read %d bytes of at most %d", r, got, len(into))
		case got > 0 && len(to) == 0:
			return n, fmt.Errorf("buffers: reading from %T: the buffer is full, at %d bytes: %w", r, len(b.mem), io.ErrShortWrite)
		case got > 0:
			_, _ = b.wrote(got, got)
			n, to, empty = n+int64(got), to[got:], 0
		default:
			empty++
		}
		if err == io.EOF {
			return n, nil
		}
		if err == nil && empty == 100 {
			err = io.ErrNoProgress
		}
		if err != nil {
			return n, err
		}
	}
}

// space returns the memory that Write may write to.
func (b *Buffer) space() ([]byte, error) {
	if b.ReadOnly() {
		return nil, fmt.Errorf("%w: writing to a buffer of %d bytes", ErrReadOnly, b.n)
	}
	return b.mem[b.at:], nil
}

// wrote moves the end by n bytes, and returns io.ErrShortWrite if n is less than wanted.
func (b *Buffer) wrote(n, wanted int) (int, error) {
	if wanted > 0 {
		b.at += n
		b.n = b.at
	}
	if n < wanted {
		return n, fmt.Errorf("buffers: writing %d bytes: the buffer is full, at %d bytes: %w", wanted, len(b.mem), io.ErrShortWrite)
	}
	return n, nil
}
