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

	"github.com/rocl-go/rocl/resource"
)

// scripted is a connection to a server that answers each message within the client's Write, so that
// the client never waits for an answer.
type scripted struct {
	net.Conn // nil: its other methods are not used
	answer   func(m message, out *codec) (more bool)

	mu     sync.Mutex
	come   *sync.Cond
	in     bytes.Buffer
	ended  bool
	greets int // bytes of the greeting that are still to come
}

// newScripted returns a connection whose server answers with the function answer.
func newScripted(answer func(m message, out *codec) bool) *scripted {
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
		m := message{b[4], binary.LittleEndian.Uint64(b[8:]), b[msgHead:size]}
		var out codec
		more := s.answer(m, &out)
		if len(out.out) > 0 {
			out.seal()
			s.in.Write(out.out)
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
	for _, last := range []byte{msgRegister, msgUpdate} { // the last message that the first server acknowledges
		var offers []uint64
		dials := 0
		dial := func(context.Context) (net.Conn, error) {
			dials++
			first := dials == 1
			rev := uint64(0)
			return newScripted(func(m message, out *codec) bool {
				p := parser{b: m.body}
				p.gid()
				switch m.typ {
				case msgJoin:
					out.begin(msgJoined, m.id)
					out.gid(self)
					out.bytes(make([]byte, 32))
					var l resource.List
					_ = l.AddString(termKey, "key")
					out.bytes(l.Wire())
					return true
				case msgLeave:
					return false
				case msgRegister:
					if !first {
						offers = append(offers, p.u64())
					}
				}
				rev++
				out.begin(msgDone, m.id)
				out.u64(rev)
				return !first || m.typ != last
			}), nil
		}
		c, err := Join(t.Context(), dial)
		if err != nil {
			t.Fatal(err)
		}
		rev, err := c.Register(t.Context(), id, list(t, resource.Attrs{"a": "1"}))
		if err == nil && last == msgUpdate {
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
