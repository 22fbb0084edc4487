// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/rocl-go/rocl/buffers"
)

var (
	_ io.Reader   = (*Message)(nil)
	_ io.WriterTo = (*Message)(nil)
)

// Read implements [io.Reader]: it copies the next bytes of the payload to p, and returns [io.EOF]
// after the last byte. Bytes, Len and Buffer return the whole payload, even if some of it has been
// read. Calls of Read and WriteTo must not overlap.
func (m *Message) Read(p []byte) (n int, err error) {
	if int(m.read) == len(m.data) && len(p) > 0 {
		return 0, io.EOF
	}
	n = copy(p, m.data[m.read:])
	m.read += uint32(n)
	return n, nil
}

// WriteTo implements [io.WriterTo]: it writes to w the part of the payload that Read has not
// returned, without a copy.
func (m *Message) WriteTo(w io.Writer) (int64, error) {
	left := m.data[m.read:]
	if len(left) == 0 {
		return 0, nil
	}
	n, err := w.Write(left)
	if n < 0 || n > len(left) {
		return 0, fmt.Errorf("dispatch: writing a message to %T: it says that it wrote %d of %d bytes", w, n, len(left))
	}
	m.read += uint32(n)
	if err == nil && n < len(left) {
		err = io.ErrShortWrite
	}
	return int64(n), err
}

// BufferWait returns a buffer of n bytes, as [Dispatcher.Buffer] does, but waits, until ctx ends,
// while the memory is used up. It fails with the cause of ctx's end, and otherwise as Buffer does.
// It never fails with an error that [buffers.IsTemporary] reports true for.
func (d *Dispatcher) BufferWait(ctx context.Context, n int) (*buffers.Buffer, error) {
	b, err := d.bufferWithin(ctx, n)
	if !buffers.IsTemporary(err) {
		return b, err
	}
	b, err = d.cfg.Pool.GetWait(ctx, n)
	if errors.Is(err, buffers.ErrClosed) {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return b, err
}
