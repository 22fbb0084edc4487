// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// peering connects a Peer to a server.
func peering(t *testing.T, s *Server) (*Peer, *sync.WaitGroup) {
	t.Helper()
	near, far := net.Pipe()
	var served sync.WaitGroup
	served.Go(func() { s.ServePeer(far) })
	p := try.Get(NewPeer(near))(t)
	t.Cleanup(func() {
		p.Close()
		served.Wait()
	})
	return p, &served
}

// next returns the next event, which must be of watch id and of a kind.
func next(t *testing.T, p *Peer, id uint64, kind EventKind) Event {
	t.Helper()
	got, ev, refused, err := p.Next()
	if err != nil || refused != nil || got != id || ev.Kind != kind {
		t.Fatalf("watch %d: %v %v, refused %v, %v; want %d: %v", got, ev.Kind, ev.ID, refused, err, id, kind)
	}
	return ev
}

// A member has several watches over one connection, and ends one of them.
func TestPeer(t *testing.T) {
	s := NewServer()
	defer s.Close()
	db := s.Database()
	id := resource.MakeGID(s.Node(), 1, 1)
	try.Get(db.Put(id, id.Context(), list(t, resource.Attrs{"a": "1", "b": "2"})))(t)
	p, _ := peering(t, s)
	try.OK(t, p.Watch(5, list(t, resource.Match{"a": "1"}, "b")))
	if ev := next(t, p, 5, Appeared); ev.ID != id || ev.Owner != id.Context() || ev.Revision != 1 || ev.Attrs.GetString("b") != "2" {
		t.Fatalf("%+v", ev)
	}
	next(t, p, 5, Synced)
	try.OK(t, p.Watch(9, list(t, resource.Match{"b": "2"})))
	next(t, p, 9, Appeared)
	next(t, p, 9, Synced)
	try.OK(t, p.Stop(5))
	if err := p.Stop(77); err != nil { // a number without a watch: no effect
		t.Fatal(err)
	}
	if err := p.Beat(); err != nil { // read after Stop
		t.Fatal(err)
	}
	try.OK(t, db.Delete(id))
	next(t, p, 9, Gone)
}

// The patterns of a member's watches have a common limit. A watch beyond it is refused, other
// watches go on, and a watch that ends makes room.
func TestPeerPatterns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // both ends are silent for long
		s := NewServer()
		defer s.Close()
		p, _ := peering(t, s)
		large := new(resource.List)
		_ = large.Add("a", make([]byte, resource.MaxValue))
		last := uint64(maxPatterns / len(large.Wire()))
		for id := range last {
			try.OK(t, p.Watch(id, large))
			next(t, p, id, Synced)
		}
		try.OK(t, p.Watch(last, large))
		if id, _, refused, err := p.Next(); id != last || refused == nil || err != nil {
			t.Fatalf("beyond the bound: watch %d refused with %v, %v", id, refused, err)
		}
		try.OK(t, errors.Join(p.Watch(last+1, list(t, nil)), p.Stop(0), p.Stop(last)))
		next(t, p, last+1, Synced)
		try.OK(t, p.Watch(last, large))
		next(t, p, last, Synced)
	})
}

// A member may only watch. The server closes the connection of one that sends anything else.
//
// Promise (Watches): A member may only watch what another member holds, within bounds. It cannot
// report events of foreign resources. See also TestPeerPatterns.
func TestPeerMayOnlyWatch(t *testing.T) {
	s := NewServer()
	defer s.Close()
	s.Attach(unasked(t))
	w := &wire.Builder{}
	w.Begin(wire.MsgJoin, 1)
	w.Append(make([]byte, 48))
	join := slices.Clone(w.Finish())
	w.Begin(wire.MsgFind, 1)
	w.Append(list(t, nil).Wire())
	find := slices.Clone(w.Finish())
	w.Begin(wire.MsgWatch, 1)
	w.Append([]byte("not a list"))
	bad := slices.Clone(w.Finish())
	for what, b := range map[string][]byte{
		"registration":    append(wire.Greeting(wire.KindRegistration), join...),
		"ask":             append(wire.Greeting(wire.KindAsk), find...),
		"yield":           wire.Greeting(wire.KindYield),
		"join as a peer":  append(wire.Greeting(wire.KindPeer), join...),
		"find as a peer":  append(wire.Greeting(wire.KindPeer), find...),
		"a watch of junk": append(wire.Greeting(wire.KindPeer), bad...),
		"junk":            []byte("GET / HTTP/1.1\r\n\r\n"),
		"a huge length":   append(wire.Greeting(wire.KindPeer), 255, 255, 255, 255, wire.MsgWatch, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
	} {
		near, done := fed(s.ServePeer, b)
		<-done // although this end has not hung up
		near.Close()
		if t.Failed() {
			t.Fatal(what)
		}
	}
	if st := s.Stats(); st.Contexts != 0 || st.Connections != 0 {
		t.Errorf("left behind: %+v", st)
	}
	near, far := net.Pipe() // a context is no member
	go s.ServeConn(far)
	_, _ = near.Write(wire.Greeting(wire.KindPeer))
	try.Fails(near.Read(make([]byte, 1)))(t, io.EOF) // a context may not say what members say
	near.Close()
}

// Each end hangs up when the other has been silent for peerTimeout, and only then.
//
// Promise (Watches): A member that is silent delays no watch by more than 3 s. See also
// TestWatchSilentMember.
func TestPeerSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer()
		defer s.Close()
		p, served := peering(t, s)
		gone := make(chan error, 1)
		go func() {
			_, _, _, err := p.Next()
			gone <- err
		}()
		for range 100 { // both ends send beats
			time.Sleep(BeatTime)
			try.OK(t, p.Beat())
		}
		if len(gone) > 0 {
			t.Fatalf("hung up on a server that lives: %v", <-gone)
		}
		begun := time.Now() // this end is silent
		served.Wait()
		if d := time.Since(begun); d > peerTimeout {
			t.Errorf("served on for %v", d)
		}
		try.Rejects(<-gone)(t, "no error")
		near, far := net.Pipe() // a server that is silent, though it takes what is sent
		defer far.Close()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		q := try.Get(NewPeer(near))(t)
		begun = time.Now()
		if _, _, _, err := q.Next(); err == nil || time.Since(begun) != peerTimeout {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		q.Close()
		near, far = net.Pipe() // a server that takes nothing
		defer far.Close()
		begun = time.Now()
		if _, err := NewPeer(near); err == nil || time.Since(begun) != peerTimeout {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		near.Close()
	})
}

// There is a limit to the watches of one member.
func TestPeerManyWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a busy machine is silent for long
		s := NewServer()
		defer s.Close()
		p, _ := peering(t, s)
		l := list(t, resource.Match{"a": "1"})
		go func() {
			for i := range uint64(maxWatches + 1) {
				if p.Watch(i, l) != nil {
					return
				}
			}
		}()
		for synced := 0; ; synced++ {
			id, _, refused, err := p.Next()
			try.OK(t, err)
			if refused == nil {
				continue
			}
			try.Equal(t, id, maxWatches, "watches before one is refused")
			break
		}
	})
}

// FuzzPeer sends arbitrary bytes on a connection of a member.
func FuzzPeer(f *testing.F) {
	k := &wire.Builder{}
	k.Begin(wire.MsgWatch, 1)
	var all resource.List
	k.Append(all.Wire())
	f.Add(append(wire.Greeting(wire.KindPeer), k.Finish()...))
	k.Begin(wire.MsgStop, 1)
	f.Add(append(wire.Greeting(wire.KindPeer), k.Finish()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewServer()
		near, done := fed(s.ServePeer, b)
		near.Close()
		<-done
		s.Close()
	})
}

// The server keeps nothing of the resources that came and went for a watch whose connection is not
// read. The watch may be a context's or another member's.
func TestUnreadWatch(t *testing.T) {
	for name, kind := range map[string]byte{"a context": wire.KindWatch, "a member": wire.KindPeer} {
		t.Run(name, func(t *testing.T) {
			s := NewServer()
			near, far := net.Pipe() // has no buffer
			done := make(chan struct{})
			go func() {
				defer close(done)
				if kind == wire.KindPeer {
					s.ServePeer(far)
				} else {
					s.ServeConn(far)
				}
			}()
			defer func() {
				near.Close()
				s.Close()
				<-done
			}()
			try.Get(near.Write(wire.Greeting(kind)))(t)
			pattern := list(t, resource.Match{"type": "lamp"})
			k := wire.NewConn(near)
			if kind == wire.KindPeer { // a member sends a beat first; then nothing is read
				if m, err := k.ReadMessage(); err != nil || m.Type != wire.MsgBeat {
					t.Fatal(m.Type, err)
				}
			}
			k.Begin(wire.MsgWatch, 1)
			k.Append(pattern.Wire())
			try.OK(t, k.Send())
			for m := (wire.Message{}); m.Type != wire.MsgEvent; { // until Synced: the watch has begun
				m = try.Get(k.ReadMessage())(t)
			}
			owner, lamp := resource.MakeGID(s.Node(), 1, 0), list(t, resource.Attrs{"type": "lamp"})
			for i := range uint32(4_000) {
				try.Get(s.Database().Put(owner.WithSerial(i+1), owner, lamp))(t)
				try.OK(t, s.Database().Delete(owner.WithSerial(i+1)))
			}
			st := s.Database().Stats()
			if st.Watched > 1 { // one event may be on its way; a member that is silent for long is cut off
				t.Errorf("%d watches keep %d entries of 4,000 resources that came and went", st.Watches, st.Watched)
			}
		})
	}
}
