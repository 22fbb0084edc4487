// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

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
					<-c.life.Done()
				}
			}}, nil
		}
		c, err := Join(t.Context(), dial)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Register(t.Context(), c.Self().WithSerial(1), list(t, resource.Attrs{"a": "b"})); err != nil {
			t.Fatal(err)
		}
		s.Close()
		serve(t, path)
		select {
		case err := <-closed:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("it does not close")
		}
	}
}

// A resource that is deleted while there is no server is not offered to the next one. That server
// does not know the resource, and Delete reports no error.
func TestDeleteWhileJoiningAgain(t *testing.T) {
	path := sock(t)
	s := serve(t, path)
	c := joined(t, path)
	for i := range uint32(20) {
		id := c.Self().WithSerial(i + 1)
		if _, err := c.Register(t.Context(), id, list(t, resource.Attrs{"a": "b"})); err != nil {
			t.Fatal(err)
		}
		deleted := make(chan error)
		s.Close()
		go func() { deleted <- c.Delete(t.Context(), id) }()
		s = serve(t, path)
		if err := <-deleted; err != nil {
			t.Errorf("the first delete: %v", err)
		}
		if err := c.Delete(t.Context(), id); !errors.Is(err, ErrNotFound) {
			t.Errorf("another: %v", err)
		}
	}
}

// A resource that is deleted while it is being offered to the next server is deleted there too,
// even if the caller gave up. It does not prevent a registration under the same identifier.
func TestDeleteWhileOffering(t *testing.T) {
	path := sock(t)
	s := serve(t, path)
	var c *Client
	gone, anew, kept := uint32(1), uint32(2), uint32(3)
	l := list(t, resource.Attrs{"a": "b"})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	dials, registered := 0, make(chan error, 1)
	dial := func(ctx context.Context) (net.Conn, error) {
		nc, err := DialSocket(path)(ctx)
		if dials++; err != nil || dials == 1 {
			return nc, err
		}
		return &stalling{Conn: nc, reach: func() {
			for _, n := range []uint32{gone, anew} {
				if err := c.Delete(over, c.self.WithSerial(n)); err == nil {
					t.Error("deleted without a server")
				}
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
	c, err := Join(t.Context(), dial)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, n := range []uint32{gone, anew, kept} {
		if _, err := c.Register(t.Context(), c.self.WithSerial(n), l); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s = serve(t, path)
	if err := <-registered; err != nil {
		t.Errorf("registered again: %v", err)
	}
	for n, want := range map[uint32]bool{gone: false, anew: true, kept: true} {
		if _, ok := s.Database().Get(c.self.WithSerial(n)); ok != want {
			t.Errorf("resource %d is there: %v, want %v", n, ok, want)
		}
	}
}
