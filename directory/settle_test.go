// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// following returns a server whose node has had another one before, and a client of it.
func following(t *testing.T, opts ...Option) (*Server, *Client) {
	t.Helper()
	path := sock(t)
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	return serve(t, path, opts...), joined(t, path)
}

// A server may take long to become a member. Contexts have the full settleTime afterwards: until
// they can connect, the server has not settled.
func TestSettlesWhenContextsCanCome(t *testing.T) {
	s, _ := following(t, WithMembership(func(s *Server, _ bool) (func(bool), error) {
		time.Sleep(settleTime + settleTime/2) // as if its address were in use
		if s.Settled() {
			t.Error("settled before any context could come")
		}
		return func(bool) {}, nil
	}))
	if s.Settled() && time.Since(*s.begun.Load()) < settleTime {
		t.Error("settled as contexts begin to come")
	}
}

// offerLater offers one resource of c at once and another one later, as after the death of an
// earlier server.
func offerLater(t *testing.T, s *Server, c *Client) (ids []resource.GID) {
	for i := range uint32(2) {
		ids = append(ids, c.Self().WithSerial(i+1))
	}
	l := list(t, resource.Attrs{"type": "lamp"})
	offer := func(id resource.GID) {
		if err := s.Database().Offer(id, c.Self(), 1, l); err != nil {
			t.Error(err)
		}
	}
	offer(ids[0])
	offered := make(chan struct{})
	time.AfterFunc(settleTime/3, func() { offer(ids[1]); close(offered) })
	t.Cleanup(func() { <-offered })
	return ids
}

// Resources that contexts are still offering again are in a listing.
func TestListingWhileSettling(t *testing.T) {
	s, c := following(t)
	ids := offerLater(t, s, c)
	if s.Settled() {
		t.Skip("this machine was too slow for the test")
	}
	n := 0
	for _, err := range c.FindAll(t.Context(), list(t, resource.Match{"type": "lamp"})) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != len(ids) {
		t.Errorf("%d of %d", n, len(ids))
	}
}

// Resources that contexts are still offering again come before Synced in a watch.
func TestWatchWhileSettling(t *testing.T) {
	s, c := following(t)
	ids := offerLater(t, s, c)
	if s.Settled() {
		t.Skip("this machine was too slow for the test")
	}
	n := 0
	for ev, err := range c.Watch(t.Context(), list(t, resource.Match{"type": "lamp"})) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind == Synced {
			break
		}
		n++
	}
	if n != len(ids) {
		t.Errorf("%d of %d before Synced", n, len(ids))
	}
}

// A question ends with its context, even while the server settles.
func TestCancelWhileSettling(t *testing.T) {
	s := NewServer(WithIdentity(&Identity{Node: 1, Epoch: 2}))
	defer s.Close()
	s.begun.Store(nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	time.AfterFunc(10*time.Millisecond, func() { cancel(enough) })
	_, err := s.direct(ctx, list(t, nil), func() (resource.Record, bool, error) { return s.find(ctx, list(t, resource.Match{"a": "b"})) })
	if !errors.Is(err, enough) {
		t.Error(err)
	}
}
