// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// stalling is a connection whose third write, the first of the offer, waits.
type stalling struct {
	net.Conn
	writes int
	reach  func()
}

func (s *stalling) Write(b []byte) (int, error) {
	if s.writes++; s.writes == 3 {
		s.reach()
	}
	return s.Conn.Write(b)
}

// A client can be closed at any point while it joins the next server.
func TestCloseWhileJoiningAgain(t *testing.T) {
	for _, early := range []bool{true, false} { // before it offers, or at any moment after
		path := sock(t)
		s := serve(t, path)
		var c *Client
		dials, closed := 0, make(chan error, 1)
		dial := func(ctx context.Context) (net.Conn, error) {
			nc, err := DialSocket(path)(ctx)
			if dials++; err != nil || dials == 1 {
				return nc, err
			}
			return &stalling{Conn: nc, reach: func() {
				go func() { closed <- c.Close() }()
				if early {
					<-c.lifetime.Done()
				}
			}}, nil
		}
		c = try.Get(Join(t.Context(), dial))(t)
		try.Get(c.Register(t.Context(), c.Self().WithSerial(1), list(t, resource.Attrs{"a": "b"})))(t)
		s.Close()
		serve(t, path)
		try.OK(t, <-closed)
	}
}

// A resource that is deleted while there is no server is not offered to the next one. That server
// does not know the resource, and Delete reports no error.
func TestDeleteWhileJoiningAgain(t *testing.T) {
	path, s, c := begun(t)
	for i := range uint32(20) {
		id := c.Self().WithSerial(i + 1)
		try.Get(c.Register(t.Context(), id, list(t, resource.Attrs{"a": "b"})))(t)
		deleted := make(chan error)
		s.Close()
		go func() { deleted <- c.Delete(t.Context(), id) }()
		s = serve(t, path)
		try.OK(t, <-deleted)
		try.Fails(c.Delete(t.Context(), id))(t, ErrNotFound)
	}
}

// A resource that is deleted while it is being offered to the next server is deleted there too,
// even if the caller gave up. It does not prevent a registration under the same identifier.
//
// Promise (Takeover): A resource that is deleted during a takeover does not stay behind.
func TestDeleteWhileOffering(t *testing.T) {
	path := sock(t)
	s := serve(t, path)
	var c *Client
	gone, anew, kept := uint32(1), uint32(2), uint32(3)
	l := list(t, resource.Attrs{"a": "b"})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	dials, registered := 0, make(chan error, 1)
	dial := func(ctx context.Context) (net.Conn, error) {
		nc, err := DialSocket(path)(ctx)
		if dials++; err != nil || dials == 1 {
			return nc, err
		}
		return &stalling{Conn: nc, reach: func() {
			for _, n := range []uint32{gone, anew} {
				try.Rejects(c.Delete(ended, c.self.WithSerial(n)))(t, "deleted without a server")
			}
			go func() {
				_, err := c.Register(t.Context(), c.self.WithSerial(anew), l)
				registered <- err
			}()
			for owned := false; !owned; { // until the registration waits for the next server
				c.mu.Lock()
				owned = c.owned[c.self.WithSerial(anew)] != nil
				c.mu.Unlock()
			}
		}}, nil
	}
	c = try.Get(Join(t.Context(), dial))(t)
	defer c.Close()
	for _, n := range []uint32{gone, anew, kept} {
		try.Get(c.Register(t.Context(), c.self.WithSerial(n), l))(t)
	}
	s.Close()
	s = serve(t, path)
	try.OK(t, <-registered)
	for n, want := range map[uint32]bool{gone: false, anew: true, kept: true} {
		if _, ok := s.Database().Get(c.self.WithSerial(n)); ok != want {
			t.Errorf("resource %d is there: %v, want %v", n, ok, want)
		}
	}
}

var replacements = flag.Int("replacements", 20, "how many times TestReplacedUnderLoad replaces the server")

// Callers of a client return, however often its server is replaced.
//
// Promise (Takeover): Calls return however often the directory is replaced meanwhile. See also
// TestLostIsNoticedTwice.
func TestReplacedUnderLoad(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	path, s, c := begun(t)
	const callers = 50
	var wg sync.WaitGroup
	var done [callers]atomic.Uint64
	ctx, cancel := context.WithCancel(t.Context())
	defer wg.Wait()
	defer cancel()
	for i := range callers {
		id := c.Self().WithSerial(uint32(i + 1))
		l := list(t, resource.Attrs{"type": "lamp"})
		wg.Go(func() {
			for ctx.Err() == nil {
				_, err := c.Register(ctx, id, l)
				if err == nil {
					_, err = c.Find(ctx, l)
				}
				if err == nil {
					err = c.Delete(ctx, id)
				}
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				done[i].Add(1)
			}
		})
	}
	n := *replacements
	if testing.Short() {
		n = min(n, 5)
	}
	for range n {
		s.Close()
		s = serve(t, path)
		var before [callers]uint64
		for i := range callers {
			before[i] = done[i].Load()
		}
		for i := range callers {
			eventually.True(t, "a caller goes on after its server was replaced", func() bool { return done[i].Load() > before[i] })
		}
	}
}

// Several goroutines may notice the end of a connection, in any order. A caller that waits for the
// next connection is woken.
func TestLostIsNoticedTwice(t *testing.T) {
	_, _, c := begun(t)
	lc := c.conn
	c.lost(lc)
	c.mu.Lock()
	joined := c.joined // what a caller waits for
	c.mu.Unlock()
	c.lost(lc)
	lc.c.Close()
	<-joined
}

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
//
// Promise (Takeover): What a directory has acknowledged is offered to the next one.
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
		c := try.Get(Join(t.Context(), dial))(t)
		rev, err := c.Register(t.Context(), id, list(t, resource.Attrs{"a": "1"}))
		if err == nil && last == wire.MsgUpdate {
			rev, err = c.Update(t.Context(), id, 0, list(t, resource.Attrs{"a": "2"}))
		}
		try.OK(t, err)
		if err := c.Delete(t.Context(), id); err != nil { // goes to the second server
			t.Fatal(err)
		}
		if len(offers) != 1 || offers[0] != rev {
			t.Errorf("acknowledged at revision %d, offered at %v", rev, offers)
		}
		c.Close()
	}
}
