// SPDX-License-Identifier: Apache-2.0

package ofi_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/ofi"
	"github.com/rocl-go/rocl/subsys"
)

// sendAll sends frames of the given sizes, which have their index as tag and as each byte. The
// receiver makes no progress until the connection is full.
func sendAll(t *testing.T, a, b *end, sizes []int, far func(*sink)) *sink {
	t.Helper()
	b.onAccept = func(_ subsys.Conn, s *sink) { far(s) }
	near := newSink()
	c := try.Get(a.port.Dial(eventually.Context(t), b.port.Addr(), near))(t)
	c.Start()
	s := eventually.Value(t, "a connection", b.accepted)
	b.progress.Lock()
	goOn := sync.OnceFunc(b.progress.Unlock)
	defer goOn() // also if the test ends here
	for i, size := range sizes {
		buf := try.Get(a.pool.Get(size))(t)
		for j := range buf.Bytes() {
			buf.Bytes()[j] = byte(i)
		}
		f := []subsys.Frame{{Header: subsys.Header{Type: 16, Tag: uint64(i), Len: uint32(size)}, Data: buf.Bytes(), Buf: buf}}
		for try.Get(c.Send(f))(t) == 0 {
			goOn()
			eventually.Value(t, "room", near.writable)
		}
		buf.Release()
	}
	goOn()
	eventually.True(t, "all frames", func() bool { return s.frames.Load() == int64(len(sizes)) })
	try.OK(t, c.Close())
	eventually.Value(t, "the end", s.down)
	return s
}

// Payloads behind the one whose turn it is are read meanwhile. They arrive whole and in order, also
// between small frames.
func TestReadAhead(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		a, b := try.Get(listen(provider, false))(t), try.Get(listen(provider, false))(t)
		defer func() { try.OK(t, errors.Join(a.close(), b.close())) }()
		var sizes []int
		large := 0
		for i := range 100 {
			if i%5 == 3 {
				sizes = append(sizes, 10*i)
				continue
			}
			sizes = append(sizes, 9000+3000*i)
			large++
		}
		next := 0
		s := sendAll(t, a, b, sizes, func(s *sink) {
			s.onFrames = func(fs []subsys.Frame) {
				for _, f := range fs {
					isWhole := f.Tag == uint64(next) && len(f.Data) == sizes[next]
					for _, v := range f.Data {
						isWhole = isWhole && v == byte(next)
					}
					if !isWhole {
						t.Errorf("frame %d: tag %d, %d bytes", next, f.Tag, len(f.Data))
					}
					next++
				}
			}
		})
		if n := s.rooms.Load(); n >= int64(large) {
			t.Errorf("the sink was asked for memory for %d of %d payloads", n, large)
		}
	})
}

// What was read ahead gives its memory back when the payload whose turn it is lacks some.
func TestReadAheadGivesBack(t *testing.T) {
	overEach(t, func(t *testing.T, provider string) {
		a := try.Get(listen(provider, false))(t)
		b := try.Get(listenOver(ofi.New(provider, ofi.WithShm()), false, buffers.WithLimit(32<<20)))(t)
		defer func() { try.OK(t, errors.Join(a.close(), b.close())) }()
		sizes := make([]int, 16)
		for i := range sizes {
			sizes[i] = 1 << 20
		}
		refused := 0
		sendAll(t, a, b, sizes, func(s *sink) {
			s.refuses = func([]subsys.Frame) error {
				buf, err := b.pool.Get(20 << 20)
				if err != nil {
					refused++
					return err
				}
				buf.Release()
				return nil
			}
		})
		if refused == 0 {
			t.Error("no memory was lacking")
		}
	})
}
