// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// follower returns a server whose node has had another one before.
func follower(t *testing.T) *Server {
	s := NewServer(WithIdentity(&Identity{Node: 1, Epoch: 2}))
	t.Cleanup(func() { s.Close() })
	return s
}

// An offering is the registration connection of a context that has joined again.
type offering struct {
	t    *testing.T
	k    *wire.Conn
	self resource.GID
	n    uint64
}

// announce joins s as context n of the earlier server and announces count resources, or none.
func announce(t *testing.T, s *Server, n uint64, count int) *offering {
	t.Helper()
	nc := try.Get(s.Dialer()(t.Context()))(t)
	c := &Client{self: resource.MakeGID(1, 1<<24|n, 0), dial: func(context.Context) (net.Conn, error) { return nc, nil }}
	c.token = s.id.Token(c.self)
	lc := try.Get(c.join(t.Context(), func() int { return count }))(t)
	return &offering{t, lc.c, c.self, 0}
}

// next offers one more resource.
func (o *offering) next() resource.GID {
	o.t.Helper()
	o.n++
	id := o.self.WithSerial(uint32(o.n))
	o.k.Begin(wire.MsgRegister, o.n)
	o.k.GID(id)
	o.k.U64(1)
	o.k.Append(list(o.t, resource.Attrs{"type": "lamp"}).Wire())
	try.OK(o.t, o.k.Send())
	if m, err := o.k.ReadMessage(); err != nil || m.Type != wire.MsgDone {
		o.t.Fatal(m.Type, err)
	}
	return id
}

// A resource that a context is still offering is never denied, however long the offer takes: Find,
// Lookup, a listing and Synced wait for the end of the offer.
func TestOfferIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := follower(t)
		o := announce(t, s, 1, 12)
		c := joinedBy(t, s.Dialer())
		last := o.self.WithSerial(12)
		lamps := list(t, resource.Match{"type": "lamp"})
		var wg sync.WaitGroup
		wg.Go(func() {
			try.Works(c.Lookup(t.Context(), last))(t, "a look-up")
		})
		wg.Go(func() {
			try.Fails(c.Find(t.Context(), list(t, resource.Match{"type": "another"})))(t, ErrNotFound)
			if s.Database().Len() < 12 {
				t.Error("denied in the midst of an offer")
			}
		})
		wg.Go(func() {
			n := 0
			for _, err := range c.FindAll(t.Context(), lamps) {
				try.Check(t, err)
				n++
			}
			try.Equal(t, n, 12, "resources of a listing")
		})
		wg.Go(func() {
			n := 0
			for ev, err := range c.Watch(t.Context(), lamps) {
				if err != nil || ev.Kind == Synced {
					break
				}
				n++
			}
			try.Equal(t, n, 12, "resources of a watch before Synced")
		})
		for range 12 {
			time.Sleep(offerSilence / 2) // the bubble's time: longer than offerSilence in all
			if s.Recovered() {
				t.Error("recovered in the midst of an offer")
			}
			o.next()
		}
		wg.Wait()
		if !s.Recovered() {
			t.Error("not recovered after all offers")
		}
		o.k.Close()
	})
}

// A context that hangs, lies or dies in the middle of its offer delays a "no" for a limited time.
func TestOfferNeverEnds(t *testing.T) {
	many := int(^uint(0) >> 1)
	for name, c := range map[string]struct {
		count int
		play  func(o *offering)
		most  time.Duration // after which the server has recovered
	}{
		"hangs": {many, func(o *offering) { o.next() }, offerSilence},
		"drips": {many, func(o *offering) {
			for range maxRecovery / (offerSilence / 2) {
				time.Sleep(offerSilence / 2)
				o.next()
			}
		}, 0},
		"dies":            {many, func(o *offering) { o.next(); o.k.Close() }, 0},
		"comes to an end": {1, func(o *offering) { o.next() }, 0},
		"offers nothing":  {0, func(o *offering) {}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := follower(t)
				o := announce(t, s, 1, c.count)
				c.play(o)
				if c.most > 0 && s.Recovered() {
					t.Error("recovered at once")
				}
				time.Sleep(c.most)
				synctest.Wait()
				if !s.Recovered() {
					t.Errorf("not recovered %v after the last that came", c.most)
				}
				o = announce(t, s, 2, many) // too late
				if !s.Recovered() {
					t.Error("recovered no more")
				}
				o.k.Close()
			})
		})
	}
}

// slowly is a connection that delays each message that is offered.
type slowly struct {
	net.Conn
	writes int
}

func (s *slowly) Write(b []byte) (int, error) {
	if s.writes++; s.writes > 2 {
		time.Sleep(offerSilence / 5) // the bubble's time
	}
	return s.Conn.Write(b)
}

// A client announces what it offers. Until all of that has come, the server does not report a
// resource gone, and does not deny it.
func TestSlowOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := NewServer(WithIdentity(&Identity{Node: 1, Epoch: 1}))
		now, slow := first, false
		var mu sync.Mutex
		dialer := func(mayBeSlow bool) Dialer {
			return func(ctx context.Context) (net.Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				nc, err := now.Dialer()(ctx)
				if err == nil && slow && mayBeSlow {
					nc = &slowly{Conn: nc}
				}
				return nc, err
			}
		}
		owner := joinedBy(t, dialer(true))
		asker := joinedBy(t, dialer(false))
		const n = 10
		for i := range uint32(n) {
			try.Get(owner.Register(t.Context(), owner.Self().WithSerial(i+1), list(t, resource.Attrs{"type": "lamp"})))(t)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			for ev := range asker.Watch(ctx, list(t, resource.Match{"type": "lamp"})) {
				if ev.Kind == Gone {
					t.Errorf("told that %v is gone, which is being offered", ev.ID)
				}
			}
		})
		synctest.Wait()
		second := follower(t)
		second.awaits = func() bool { return !second.hasJoined(owner.Self()) } // as if owner showed its presence
		mu.Lock()
		now, slow = second, true
		mu.Unlock()
		first.Close()
		for i := range uint32(n) {
			try.Get(asker.Lookup(t.Context(), owner.Self().WithSerial(n-i)))(t)
		}
		time.Sleep(2 * GoneGrace)
		cancel()
		wg.Wait()
	})
}

// The server waits for a context that has connected and not joined yet, as for one in the middle of
// its offer.
func TestJoinIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := follower(t)
		raw(t, s.Dialer(), wire.KindRegistration)
		synctest.Wait()
		if s.Recovered() {
			t.Error("recovered while a context joins")
		}
		time.Sleep(offerSilence)
		if !s.Recovered() {
			t.Error("a context that does not join is waited for still")
		}
	})
}

// A server may take long to become a member. Contexts have the full offerSilence afterwards: until
// they can connect, the server has not recovered.
func TestRecoversWhenContextsCanCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := sock(t)
		serve(t, path).Close()
		s := serve(t, path, WithMembership(func(s *Server, _ bool) (func(bool), error) {
			time.Sleep(offerSilence + offerSilence/2) // the bubble's time, as if its address were in use
			if s.Recovered() {
				t.Error("recovered before any context could come")
			}
			return func(bool) {}, nil
		}))
		s.awaits = func() bool { return true }
		if s.Recovered() {
			t.Error("recovered as contexts begin to come")
		}
	})
}

// offerLater offers one resource of c at once and another one later, as after the death of an
// earlier server. Then it sets done.
func offerLater(t *testing.T, s *Server, c *Client, done *atomic.Bool) (ids []resource.GID) {
	for i := range uint32(2) {
		ids = append(ids, c.Self().WithSerial(i+1))
	}
	l := list(t, resource.Attrs{"type": "lamp"})
	offer := func(id resource.GID) {
		try.Check(t, s.Database().Offer(id, c.Self(), 1, l))
	}
	offer(ids[0])
	offered := make(chan struct{})
	time.AfterFunc(offerSilence/20, func() { offer(ids[1]); done.Store(true); close(offered) })
	t.Cleanup(func() { <-offered })
	return ids
}

// A question ends with its context, even while the server recovers.
func TestCancelWhileRecovering(t *testing.T) {
	s := NewServer(WithIdentity(&Identity{Node: 1, Epoch: 2}))
	defer s.Close()
	s.opened.Store(nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	time.AfterFunc(10*time.Millisecond, func() { cancel(enough) })
	_, err := s.direct(ctx, list(t, nil), func() (resource.Record, bool, error) { return s.find(ctx, list(t, resource.Match{"a": "b"})) })
	try.Fails(err)(t, enough)
}

// A server that follows another one denies no resource of a context that lives and has not joined
// yet, even if all other contexts have joined: the process of that context may be waiting for a
// processor. A context that has ended is not waited for.
func TestLateContextIsAwaited(t *testing.T) {
	path := sock(t)
	first := try.Get(Listen(path))(t)
	early, ended := joined(t, path), joined(t, path)
	come, dials := make(chan struct{}), 0
	late := try.Get(Join(t.Context(), func(ctx context.Context) (net.Conn, error) {
		if dials++; dials > 1 {
			select {
			case <-come:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return DialSocket(path)(ctx)
	}))(t)
	defer late.Close()
	id := late.Self().WithSerial(1)
	try.Get(late.Register(t.Context(), id, list(t, resource.Attrs{"type": "lamp"})))(t)
	ended.Close()
	first.Close()
	s := serve(t, path)
	// The context early has joined by now.
	try.Rejects(early.Update(t.Context(), id, 0, list(t, resource.Attrs{"a": "b"})))(t, "changed what is another's")
	if !s.awaits() {
		t.Error("a context that lives is not awaited")
	}
	begun := *s.opened.Load()
	if s.Recovered() && time.Since(begun) < offerSilence {
		t.Error("recovered without a context that lives")
	}
	close(come)
	found(t, id)(early.Find(t.Context(), list(t, resource.Attrs{"type": "lamp"})))
	if s.awaits() {
		t.Error("no other context lives, and one is awaited")
	}
}

// Once all contexts that live have joined and offered what they own, the server has recovered: no
// time has to pass. Contexts at a Unix socket, at a second path and at a TCP port count.
//
// Promise (Takeover): A new directory denies nothing until the living contexts have offered what
// they own, within bounds of 2 s and 30 s. See also TestFilesPutBack.
func TestRecoveryTakesNoTime(t *testing.T) {
	path := sock(t)
	first := try.Get(Listen(path, AsDaemon(), Also(path+"2")))(t)
	at := try.Get(first.ListenTCP("tcp://" + try.Get(freeaddr.Loopback())(t)))(t)
	overTCP := at + "?node=" + path + nodeSuffix
	killed := joined(t, path)
	all := map[string]*Client{"Unix": joined(t, path), "second": joined(t, path+"2"), "TCP": joined(t, overTCP)}
	for name, c := range all {
		try.Get(c.Register(t.Context(), c.Self().WithSerial(1), list(t, resource.Attrs{"at": name})))(t)
	}
	killed.Close()
	first.Close()
	s := serve(t, path, AsDaemon(), Also(path+"2"))
	if s.Recovered() && time.Since(*s.opened.Load()) < offerSilence {
		t.Error("recovered without the context at the TCP port")
	}
	try.Get(s.ListenTCP(at))(t)
	for name, c := range all { // each answer comes after the context's offer
		try.Get(c.Update(t.Context(), c.Self().WithSerial(1), 0, list(t, resource.Attrs{"at": name})))(t)
	}
	now := time.Now()
	s.opened.Store(&now)
	if !s.Recovered() {
		t.Error("all contexts that live have offered what they own, and the server has not recovered")
	}
}
