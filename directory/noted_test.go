// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// scripted is a connection to a server that answers each message within the client's Write, so that
// the client never waits for an answer.
type scripted struct {
	net.Conn // nil: its other methods are not used
	answer   func(m wire.Message, out *wire.Builder) (more bool)

	mu     sync.Mutex
	come   *sync.Cond
	in     bytes.Buffer
	ended  bool
	greets int // bytes of the greeting that are still to come
}

// newScripted returns a connection whose server answers with the function answer.
func newScripted(answer func(m wire.Message, out *wire.Builder) bool) *scripted {
	s := &scripted{answer: answer, greets: 8}
	s.come = sync.NewCond(&s.mu)
	return s
}

func (s *scripted) RemoteAddr() net.Addr { return &net.TCPAddr{} }

func (s *scripted) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return 0, net.ErrClosed
	}
	n := len(b)
	k := min(s.greets, len(b))
	s.greets -= k
	for b = b[k:]; len(b) > 0; {
		size := 4 + int(binary.LittleEndian.Uint32(b))
		m := wire.Message{Type: b[4], ID: binary.LittleEndian.Uint64(b[8:]), Body: b[16:size]}
		var out wire.Builder
		more := s.answer(m, &out)
		if out.Len() > 0 {
			s.in.Write(out.Finish())
		}
		s.ended = s.ended || !more
		b = b[size:]
	}
	s.come.Broadcast()
	return n, nil
}

func (s *scripted) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.in.Len() == 0 {
		if s.ended {
			return 0, io.EOF
		}
		s.come.Wait()
	}
	return s.in.Read(b)
}

func (s *scripted) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.come.Broadcast()
	return nil
}

// A registration or update that the server has acknowledged is offered to the next server, even if
// the server dies before the caller runs again. With one processor, the reading goroutine joins the
// next server first.
func TestAcknowledgedIsOffered(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	self := resource.MakeGID(1, 1, 0)
	id := self.WithSerial(1)
	for _, last := range []byte{wire.MsgRegister, wire.MsgUpdate} { // the last message that the first server acknowledges
		var offers []uint64
		dials := 0
		dial := func(context.Context) (net.Conn, error) {
			dials++
			first := dials == 1
			rev := uint64(0)
			return newScripted(func(m wire.Message, out *wire.Builder) bool {
				p := m.Parser()
				p.GID()
				switch m.Type {
				case wire.MsgJoin:
					out.Begin(wire.MsgJoined, m.ID)
					out.GID(self)
					out.Append(make([]byte, 32))
					var l resource.List
					_ = l.AddString(termKey, "key")
					out.Append(l.Wire())
					return true
				case wire.MsgLeave:
					return false
				case wire.MsgRegister:
					if !first {
						offers = append(offers, p.U64())
					}
				}
				rev++
				out.Begin(wire.MsgDone, m.ID)
				out.U64(rev)
				return !first || m.Type != last
			}), nil
		}
		c, err := Join(t.Context(), dial)
		if err != nil {
			t.Fatal(err)
		}
		rev, err := c.Register(t.Context(), id, list(t, resource.Attrs{"a": "1"}))
		if err == nil && last == wire.MsgUpdate {
			rev, err = c.Update(t.Context(), id, 0, list(t, resource.Attrs{"a": "2"}))
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Delete(t.Context(), id); err != nil { // goes to the second server
			t.Fatal(err)
		}
		if len(offers) != 1 || offers[0] != rev {
			t.Errorf("acknowledged at revision %d, offered at %v", rev, offers)
		}
		c.Close()
	}
}
