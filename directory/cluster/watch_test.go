// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A station is a member with its server. Each of the two can be replaced without the other.
type station struct {
	t   *testing.T
	cfg Config
	srv *directory.Server
	c   *Cluster

	mu    sync.Mutex
	conns map[net.Conn]struct{} // streams of other members
	calls int                   // how many there were
}

func newStation(t *testing.T, n resource.NodeID, change func(*Config), join ...*station) *station {
	t.Helper()
	s := &station{t: t, conns: map[net.Conn]struct{}{}}
	id := directory.NewIdentity()
	id.Node = n
	s.srv = directory.NewServer(directory.WithIdentity(id))
	t.Cleanup(func() { s.srv.Close() })
	var of []*Cluster
	for _, j := range join {
		of = append(of, j.c)
	}
	s.c = member(t, n, func(c *Config) {
		c.DB, c.Serve = s.srv.Database(), s.serve
		if change != nil {
			change(c)
		}
	}, of...)
	s.cfg = s.c.cfg
	s.cfg.Bind = s.c.Addr() // the next member of the station binds it too
	s.srv.Attach(s.c)
	return s
}

func (s *station) serve(nc net.Conn) {
	s.mu.Lock()
	s.conns[nc] = struct{}{}
	s.calls++
	s.mu.Unlock()
	s.srv.ServePeer(nc)
	s.mu.Lock()
	delete(s.conns, nc)
	s.mu.Unlock()
}

func (s *station) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for nc := range s.conns {
		nc.Close()
	}
}

func (s *station) called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// open makes the node a member again, at the same address.
func (s *station) open() {
	s.t.Helper()
	eventually.True(s.t, "the address is free", func() bool {
		c, err := Open(s.cfg)
		if err == nil {
			s.c = c
			s.t.Cleanup(func() { c.Close() })
		}
		return err == nil
	})
	s.srv.Attach(s.c)
}

func (s *station) put(serial uint32, a resource.Attrs) resource.GID {
	s.t.Helper()
	return put(s.t, s.c, serial, a)
}

// twoStations and threeStations are two and three for stations.
func twoStations(t *testing.T, changes ...func(*Config)) (a, b *station) {
	t.Helper()
	changes = append(changes, nil, nil)
	a = newStation(t, 1, changes[0])
	b = newStation(t, 2, changes[1], a)
	meet(t, a, b)
	return a, b
}

func threeStations(t *testing.T, changes ...func(*Config)) (a, b, c *station) {
	t.Helper()
	changes = append(changes, nil, nil, nil)
	a = newStation(t, 1, changes[0])
	b, c = newStation(t, 2, changes[1], a), newStation(t, 3, changes[2], a)
	meet(t, a, b, c)
	return a, b, c
}

func meet(t *testing.T, ss ...*station) {
	t.Helper()
	var cs []*Cluster
	for _, s := range ss {
		cs = append(cs, s.c)
	}
	together(t, cs...)
}

// A watcher watches at a station, and checks that the events are in order.
type watcher struct {
	t      *testing.T
	events chan directory.Event
	mu     sync.Mutex
	knows  map[resource.GID]uint64
	wrong  string
	synced bool
}

func (s *station) watch(p *resource.List) *watcher {
	s.t.Helper()
	dc := try.Get(directory.Join(s.t.Context(), s.srv.Dialer()))(s.t)
	w := &watcher{t: s.t, events: make(chan directory.Event, 100_000), knows: map[resource.GID]uint64{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ev, err := range dc.Watch(ctx, p) {
			if err != nil {
				return
			}
			w.take(ev)
			w.events <- ev
		}
	})
	s.t.Cleanup(func() {
		cancel()
		wg.Wait()
		dc.Close()
		try.Equal(s.t, w.wrong, "")
	})
	return w
}

func (w *watcher) take(ev directory.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, known := w.knows[ev.ID]
	switch {
	case ev.Kind == directory.Synced && w.synced:
		w.wrong = "synced twice"
	case ev.Kind == directory.Synced:
		w.synced = true
	case known != (ev.Kind != directory.Appeared):
		w.wrong = fmt.Sprintf("%v %v, known before: %v", ev.ID, ev.Kind, known)
	case ev.Kind == directory.Gone:
		delete(w.knows, ev.ID)
	default:
		w.knows[ev.ID] = ev.Revision
	}
}

// want waits for the given events in any order. Any other event is an error.
func (w *watcher) want(kind directory.EventKind, ids ...resource.GID) {
	w.t.Helper()
	for limit := time.After(eventually.Timeout); len(ids) > 0; {
		select {
		case ev := <-w.events:
			i := slices.Index(ids, ev.ID)
			if ev.Kind != kind || i < 0 {
				w.t.Fatalf("%v %v, want %v %v", ev.Kind, ev.ID, kind, ids)
			}
			ids = slices.Delete(ids, i, i+1)
		case <-limit:
			w.t.Fatalf("not %v: %v", kind, ids)
		}
	}
}

func (w *watcher) none(what string) {
	w.t.Helper()
	select {
	case ev := <-w.events:
		w.t.Fatalf("%s: %v %v", what, ev.Kind, ev.ID)
	default:
	}
}

var lamp = resource.Attrs{"type": "lamp"}

func lamps() *resource.List { return pattern(resource.Match{"type": "lamp"}, "name") }

// A watch tells what all members have, then Synced, then what changes on any node. When a member
// leaves, its resources are gone. When it is back, they appear again.
func TestWatch(t *testing.T) { inMemory(t, testWatch) }

func testWatch(t *testing.T) {
	a, b, c := threeStations(t)
	there := []resource.GID{a.put(1, lamp), b.put(1, lamp), c.put(1, lamp), c.put(2, lamp)}
	b.put(3, resource.Attrs{"type": "other"})
	var ws []*watcher
	for _, s := range []*station{a, b} {
		w := s.watch(lamps())
		w.want(directory.Appeared, slices.Clone(there)...)
		w.want(directory.Synced, resource.GID{})
		ws = append(ws, w)
	}
	fresh := b.put(9, resource.Attrs{"type": "lamp", "name": "new"})
	for _, w := range ws {
		w.want(directory.Appeared, fresh)
	}
	try.Get(b.srv.Database().Update(fresh, 0, pattern(resource.Attrs{"type": "lamp", "name": "newer"})))(t)
	for _, w := range ws {
		w.want(directory.Changed, fresh)
	}
	try.Get(b.srv.Database().Update(fresh, 0, pattern(resource.Attrs{"type": "broken lamp"})))(t)
	try.OK(t, c.srv.Database().Delete(there[3]))
	for _, w := range ws {
		w.want(directory.Gone, fresh, there[3])
	}
	c.c.Close()
	for _, w := range ws {
		w.want(directory.Gone, there[2])
	}
	c.open()
	for _, w := range ws {
		w.want(directory.Appeared, there[2])
		w.none("in the end")
	}
}

// Resources are watched by their identifiers, on whichever node they are.
func TestWatchIDs(t *testing.T) { inMemory(t, testWatchIDs) }

func testWatchIDs(t *testing.T) {
	a, b := twoStations(t)
	here, there := a.put(1, lamp), b.put(1, lamp)
	b.put(2, lamp)
	never := b.put(3, lamp)
	try.OK(t, b.srv.Database().Delete(never))
	ids := try.Get(resource.NewIDs(here, there, never))(t)
	w := a.watch(ids)
	w.want(directory.Appeared, here, there)
	w.want(directory.Synced, resource.GID{})
	try.Get(b.srv.Database().Update(there, 0, pattern(resource.Attrs{"type": "broken lamp"})))(t)
	w.want(directory.Changed, there)
	b.c.Close()
	w.want(directory.Gone, there)
	b.open()
	w.want(directory.Appeared, there)
	try.OK(t, a.srv.Database().Delete(here))
	w.want(directory.Gone, here)
	w.none("in the end")
}

// When a member's directory is replaced, the watchers are told only the differences.
func TestWatchThroughRestart(t *testing.T) { inMemory(t, testWatchThroughRestart) }

func testWatchThroughRestart(t *testing.T) {
	a, b := twoStations(t)
	var ids []resource.GID
	for i := range uint32(10) {
		ids = append(ids, b.put(i+1, lamp))
	}
	w := a.watch(lamps())
	w.want(directory.Appeared, slices.Clone(ids)...)
	w.want(directory.Synced, resource.GID{})
	b.c.HandOver()
	db := b.srv.Database()
	changed, gone, stays := ids[0], ids[1], ids[2:]
	try.Get(db.Update(changed, 0, pattern(resource.Attrs{"type": "lamp", "name": "x"})))(t)
	try.OK(t, db.Delete(gone))
	again := stays[0] // its context offers it again, before the server has heard of all contexts
	try.OK(t, db.Delete(again))
	try.OK(t, db.Offer(again, again.Context(), 1, pattern(lamp)))
	b.open()
	w.want(directory.Changed, changed)
	w.want(directory.Gone, gone)
	w.none("what stayed")
}

// A watch at a directory that has just started waits for the members that it is about to meet,
// before it says Synced.
func TestWatchNewcomer(t *testing.T) { inMemory(t, testWatchNewcomer) }

func testWatchNewcomer(t *testing.T) {
	a := newStation(t, 1, nil)
	id := a.put(1, lamp)
	b := newStation(t, 2, nil, a)
	w := b.watch(lamps())
	w.want(directory.Appeared, id)
	w.want(directory.Synced, resource.GID{})
}

// A server may be attached to its cluster while it is watched.
func TestWatchBeforeAttach(t *testing.T) { inMemory(t, testWatchBeforeAttach) }

func testWatchBeforeAttach(t *testing.T) {
	a := newStation(t, 1, nil)
	id := a.put(1, lamp)
	b := newStation(t, 2, nil, a)
	meet(t, a, b)
	alone := directory.NewServer()
	defer alone.Close()
	s := &station{t: t, srv: alone}
	w := s.watch(lamps())
	w.want(directory.Synced, resource.GID{})
	alone.Attach(b.c)
	w.want(directory.Appeared, id)
}

// A member that accepts a stream and is silent does not delay a watch for long, and is called
// again.
func TestWatchSilentMember(t *testing.T) { inMemory(t, testWatchSilentMember) }

func testWatchSilentMember(t *testing.T) {
	a := newStation(t, 1, nil)
	var calls atomic.Int32
	var b *station
	silent := func(nc net.Conn) {
		if calls.Add(1) == 1 {
			_, _ = nc.Read(make([]byte, 1000))
			for { // until the caller closes the stream
				if _, err := nc.Read(make([]byte, 1000)); err != nil {
					nc.Close()
					return
				}
			}
		}
		b.serve(nc)
	}
	b = newStation(t, 2, func(c *Config) { c.Serve = silent }, a)
	meet(t, a, b)
	id := b.put(1, lamp)
	w := a.watch(lamps())
	w.want(directory.Synced, resource.GID{})
	w.want(directory.Appeared, id)
	try.Equal(t, calls.Load(), 2, "calls")
}

// A member cannot report resources of another node: neither make them up nor end them.
func TestWatchLiar(t *testing.T) { inMemory(t, testWatchLiar) }

func testWatchLiar(t *testing.T) {
	liar := newStation(t, 1, nil)
	a := newStation(t, 2, nil, liar)
	b := newStation(t, 3, nil, liar)
	meet(t, liar, a, b)
	id := b.put(1, lamp)
	w := a.watch(lamps())
	w.want(directory.Appeared, id)
	w.want(directory.Synced, resource.GID{})
	db := liar.srv.Database()
	_, _ = db.Put(id, id.Context(), pattern(lamp))
	_, _ = db.Put(id.WithSerial(7), id.Context(), pattern(lamp))
	_ = db.Delete(id)
	w.want(directory.Appeared, liar.put(1, lamp)) // sent after all the lies
	w.none("lies")
}

// A program that is no member, or that addresses another member or life, gets no answer.
func TestStreamStrangers(t *testing.T) {
	key := func(c *Config) { c.Keys = [][]byte{[]byte("0123456789abcdef")} }
	a, b := twoStations(t, key, key)
	mine, theirs := b.c.mux.Epoch(), a.c.mux.Epoch()
	for what, h := range map[string][]byte{
		"nothing but the protocol": []byte("RDIR\x02\x05\x00\x00aaaaaaaaaaaaaaaaaaaaaaaa"),
		"another life of ours":     head(directoryByte, 2, mine, theirs+1),
		"another life of his":      head(directoryByte, 2, mine+1, theirs),
		"not a member":             head(directoryByte, 3, mine, theirs),
		"no life":                  head(directoryByte, 3, 0, theirs),
		"ourselves":                head(directoryByte, 1, 0, theirs),
		"no stream of ours":        head(directoryByte+1, 2, mine, theirs),
		"more than zeros":          slices.Replace(head(directoryByte, 2, mine, theirs), 1, 2, 1),
	} {
		nc := try.Get(net.Dial("tcp", a.c.Addr()))(t)
		_, _ = nc.Write(append(h, "RDIR\x02\x05\x00\x00"...))
		_ = nc.SetReadDeadline(time.Now().Add(60 * time.Second))
		if n, err := nc.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%s: an answer", what)
		} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Errorf("%s: kept", what)
		}
		nc.Close()
	}
	try.Equal(t, a.called(), 0, "strangers were let in")
	id := b.put(1, lamp)
	w := a.watch(lamps())
	w.want(directory.Appeared, id) // members are let in
}

// Many watches of a node share one stream to each member, which ends with the last of them.
func TestWatchesShareStream(t *testing.T) { inMemory(t, testWatchesShareStream) }

func testWatchesShareStream(t *testing.T) {
	a, b := twoStations(t)
	id := b.put(1, lamp)
	dc := try.Get(directory.Join(t.Context(), a.srv.Dialer()))(t)
	defer dc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Timeout)
	defer cancel()
	var wg, seen sync.WaitGroup
	leave := make(chan struct{})
	seen.Add(100)
	for range 100 {
		wg.Go(func() {
			here := 0
			for ev, err := range dc.Watch(ctx, lamps()) {
				if err != nil {
					t.Error(err)
					seen.Done()
					return
				}
				if ev.ID == id {
					here++
				}
				if ev.Kind == directory.Synced {
					break
				}
			}
			try.Equal(t, here, 1)
			seen.Done()
			<-leave
		})
	}
	seen.Wait()
	close(leave)
	wg.Wait()
	eventually.True(t, "nothing is left", func() bool {
		a.c.watches.mu.Lock()
		defer a.c.watches.mu.Unlock()
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(a.c.watches.all) == 0 && len(a.c.watches.feeds) == 0 && len(b.conns) == 0
	})
	if n := b.called(); n > 100 {
		t.Errorf("%d streams for 100 watches", n)
	}
}

// Resources come, change and go at all members while streams break and members leave and return. In
// the end every watch knows all resources that exist, and its events were in order.
func TestWatchChurn(t *testing.T) { inMemory(t, testWatchChurn) }

func testWatchChurn(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	a := newStation(t, 1, nil)
	ss := []*station{a, newStation(t, 2, nil, a), newStation(t, 3, nil, a)}
	for _, s := range ss { // each has the addresses to join again
		s.cfg.Join = []string{ss[0].cfg.Bind, ss[1].cfg.Bind, ss[2].cfg.Bind}
	}
	meet(t, ss...)
	var ws []*watcher
	for i := range 6 {
		ws = append(ws, ss[i%3].watch(lamps()))
	}
	next := uint32(1)
	live := map[resource.GID]bool{}
	types := []string{"lamp", "lamp", "other"}
	for range 3000 {
		s := ss[r.IntN(3)]
		db := s.srv.Database()
		var id resource.GID
		for id = range live {
			break
		}
		kind := types[r.IntN(3)]
		switch n := r.IntN(1000); {
		case n < 400 || len(live) < 5:
			live[s.put(next, resource.Attrs{"type": kind})] = true
			next++
		case n < 700:
			l := pattern(resource.Attrs{"type": kind, "name": fmt.Sprint(n)})
			try.Get(ss[id.Node()-1].srv.Database().Update(id, 0, l))(t)
		case n < 970:
			try.OK(t, ss[id.Node()-1].srv.Database().Delete(id))
			delete(live, id)
		case n < 996:
			s.cut()
		default:
			if r.IntN(2) == 0 {
				s.c.HandOver()
			} else {
				s.c.Close()
			}
			for range r.IntN(5) { // changes while the member is gone
				id := resource.MakeGID(s.cfg.Node, 1, next)
				try.Get(db.Put(id, id.Context(), pattern(lamp)))(t)
				live[id] = true
				next++
			}
			s.open()
		}
		if r.IntN(20) == 0 {
			time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond) // the moments of changes vary
		}
	}
	meet(t, ss...)
	want := map[resource.GID]uint64{}
	for _, s := range ss {
		for cur := s.srv.Database().Cursor(pattern(resource.Match{"type": "lamp"})); ; {
			rec, ok := cur.Next()
			if !ok {
				break
			}
			want[rec.ID] = rec.Revision
		}
	}
	defer func() {
		for i, w := range ws {
			if w.mu.Lock(); t.Failed() {
				t.Logf("watch %d knows %v, want %v", i, w.knows, want)
			}
			w.mu.Unlock()
		}
	}()
	for i, w := range ws {
		eventually.True(t, "the watch knows what there is", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.wrong != "" {
				t.Fatalf("watch %d: %s", i, w.wrong)
			}
			return w.synced && maps.Equal(w.knows, want)
		})
	}
	t.Logf("%d resources at the end, %d in all, %d streams", len(want), next, ss[0].called()+ss[1].called()+ss[2].called())
}

// A watch that is not read costs other watches nothing. Its memory is bounded by what it watches.
//
// Promise (Watches): A slow reader delays no other watch, and is told the latest state of each
// resource.
func TestWatchSlowReader(t *testing.T) { inMemory(t, testWatchSlowReader) }

func testWatchSlowReader(t *testing.T) {
	a, b := twoStations(t)
	id := b.put(1, resource.Attrs{"type": "lamp", "n": "0"})
	dc := try.Get(directory.Join(t.Context(), a.srv.Dialer()))(t)
	defer dc.Close()
	slow, read := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	reports := 0
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Timeout)
	defer cancel()
	const changes = 5000
	wg.Go(func() {
		for ev, err := range dc.Watch(ctx, pattern(resource.Match{"type": "lamp"}, "n")) {
			if err != nil {
				t.Error(err)
				return
			}
			if reports++; ev.Kind == directory.Synced {
				close(slow)
				<-read
			}
			if ev.Attrs.GetString("n") == fmt.Sprint(changes) {
				return
			}
		}
	})
	<-slow
	w := a.watch(pattern(resource.Match{"type": "lamp"}, "n"))
	for i := range changes {
		try.Get(b.srv.Database().Update(id, 0, pattern(resource.Attrs{"type": "lamp", "n": fmt.Sprint(i + 1)})))(t)
	}
	eventually.True(t, "the other sees the last", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.knows[id] == changes+1
	})
	close(read)
	wg.Wait()
	if reports > changes/2 {
		t.Errorf("%d reports of %d changes it did not read", reports, changes)
	}
}

// Watches that come and go while a member cannot be called leave no orders behind.
func TestWatchesWithoutStream(t *testing.T) { inMemory(t, testWatchesWithoutStream) }

func testWatchesWithoutStream(t *testing.T) {
	a := member(t, 1, nil)
	b := member(t, 2, nil, a) // which serves no streams
	together(t, a, b)
	keep := a.cfg.DB.Watch(lamps())
	defer keep.Close()
	defer a.Watch(lamps(), keep)()
	for range 100 {
		w := a.cfg.DB.Watch(lamps())
		a.Watch(lamps(), w)()
		w.Close()
	}
	// Orders are kept only while a stream is up, until the peer has closed it.
	eventually.True(t, "what cannot be ordered is not kept", func() bool {
		a.watches.mu.Lock()
		defer a.watches.mu.Unlock()
		l := a.watches.feeds[2]
		return l != nil && len(l.todo) <= 10
	})
}
