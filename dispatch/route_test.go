// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/life"
	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// listenToo opens another port and enters its address into the world.
func (w *world) listenToo(t testing.TB, d *Dispatcher, tr subsys.Transport) {
	t.Helper()
	listen(t, d, tr)
	w.setAddrs(d.self, d.Addrs()...)
}

// prefer puts the ports of d in another order.
func prefer(d *Dispatcher, names ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ports := slices.Clone(d.ports)
	slices.SortStableFunc(ports, func(a, b subsys.Port) int {
		return slices.Index(names, transportOf(a.Addr())) - slices.Index(names, transportOf(b.Addr()))
	})
	d.ports = ports
}

// onlyLink returns the link of d with peer, and its transport.
func onlyLink(d, peer *Dispatcher) (l *link, transport string) {
	l, err := d.link(peer.self)
	if err != nil {
		return nil, ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		transport = l.conn.Transport()
	}
	return l, transport
}

// breakLink makes d drop its connection with peer because of err.
func breakLink(d, peer *Dispatcher, err error) {
	l, _ := onlyLink(d, peer)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropFailedLocked(l.conn, err)
}

// talk sends one message from one context to another and waits for it.
func talk(t testing.TB, from, to *Dispatcher, mb *Mailbox, tag uint64) {
	t.Helper()
	ctx := soon(t)
	try.OK(t, flow(t, from, mb).SendBytes(ctx, 1, tag, []byte("hello")))
	takeTag(t, mb, tag)
}

// A link that came up over TCP, because shared memory did not work, moves to shared memory when
// that works. The failure is logged once.
//
// Promise (Transports): A link moves to a better route when that works. A link on which nothing
// travels tries nothing. See also TestPortLater.
func TestBetterRouteLater(t *testing.T) {
	w := newWorld()
	var log logged.Log
	a := w.node(t, 1, tcp.New(), func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	b := w.node(t, 2, tcp.New())
	c := w.node(t, 3, tcp.New())
	memory := &hooked{Transport: shm.New()}
	memory.fail(errors.New("no memory today"))
	w.listenToo(t, a, memory)
	prefer(a, "shm", "tcp")
	for _, d := range []*Dispatcher{b, c} {
		w.listenToo(t, d, shm.New())
		prefer(d, "shm", "tcp")
	}
	mb, mc := box(t, b, 1, 0), box(t, c, 1, 0)
	talk(t, a, b, mb, 1)
	talk(t, a, c, mc, 1)
	if _, transport := onlyLink(a, b); transport != "tcp" {
		t.Fatalf("over %s", transport)
	}
	memory.fail(nil)
	tag := uint64(1)
	eventually.True(t, "it is moved to shm", func() bool {
		tag++
		talk(t, a, b, mb, tag)
		_, transport := onlyLink(a, b)
		return transport == "shm"
	})
	talk(t, a, b, mb, 1)
	talk(t, b, a, box(t, a, 1, 0), 1)
	// The peer may close the former connection before a learns that the peer has taken the new one.
	if s := a.Stats(); s.Moved < 1 || s.Resumed > 1 || s.Sent["shm"] == 0 || s.Sent["tcp"] < 2 {
		t.Errorf("%+v", s)
	}
	if n := strings.Count(log.String(), "no memory today"); n != 1 {
		t.Errorf("said %d times:\n%s", n, &log)
	}
}

// If nothing travels over a link, it tries no better route; when frames travel again, it does.
func TestIdleLinksTryNothing(t *testing.T) {
	w := newWorld()
	a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New())
	memory := &hooked{Transport: shm.New()}
	memory.fail(errors.New("not yet"))
	w.listenToo(t, a, memory)
	prefer(a, "shm", "tcp")
	w.listenToo(t, b, shm.New())
	prefer(b, "shm", "tcp")
	mb := box(t, b, 1, 0)
	talk(t, a, b, mb, 1)
	l, _ := onlyLink(a, b)
	eventually.True(t, "it is idle", locked(&l.mu, func() bool { return l.life.State() == life.Idle })) // then no searcher runs
	l.mu.Lock()
	if l.retry.Stop() {
		t.Error("an idle link is about to try a better route")
	}
	l.mu.Unlock()
	memory.fail(nil)
	eventually.True(t, "it is moved when it is used", func() bool {
		talk(t, a, b, mb, 1)
		_, transport := onlyLink(a, b)
		return transport == "shm"
	})
}

// A context opens a port that others can reach. Its links move there, whichever side dialled.
func TestPortLater(t *testing.T) {
	for _, first := range []int{0, 1} {
		w := newWorld()
		near := alias{Transport: tcp.New(), name: "near"}
		d := []*Dispatcher{w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New())}
		mb := box(t, d[1], 1, 0)
		talk(t, d[0], d[1], mb, 1)
		for _, i := range []int{first, 1 - first} {
			w.listenToo(t, d[i], near)
			prefer(d[i], "near", "tcp")
			d[i].Reconsider()
		}
		eventually.True(t, "the link is moved", func() bool {
			_, x := onlyLink(d[0], d[1])
			_, y := onlyLink(d[1], d[0])
			return x == "near" && y == "near"
		})
		talk(t, d[0], d[1], mb, 2)
	}
}

// Two contexts with different preferences leave a link where it is.
//
// Contexts that prefer different transports do not move a link back and forth, and avoid a
// transport that breaks at once. See also TestShunned.
func TestTastesDiffer(t *testing.T) {
	w := newWorld()
	a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New())
	mb := box(t, b, 1, 0)
	talk(t, a, b, mb, 1)
	for _, d := range []*Dispatcher{a, b} {
		w.listenToo(t, d, shm.New())
	}
	prefer(a, "shm", "tcp")
	for range 20 {
		a.Reconsider()
		b.Reconsider()
		talk(t, a, b, mb, 2)
	}
	eventually.True(t, "all was tried", func() bool {
		l, _ := onlyLink(a, b)
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.life.State() != life.Dialling && l.life.State() != life.Found && l.life.State() != life.Moving
	})
	if s := a.Stats(); s.Moved != 0 || s.Received["shm"] != 0 {
		t.Errorf("%+v", s)
	}
}

// A transport that breaks as soon as it is used is not tried again and again while there is another
// one.
func TestShunned(t *testing.T) {
	w := newWorld()
	a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New())
	for _, d := range []*Dispatcher{a, b} {
		w.listenToo(t, d, &breaking{shm.New()})
		prefer(d, "shm", "tcp")
	}
	mb := box(t, b, 1, 0)
	for tag := range uint64(100) {
		talk(t, a, b, mb, tag)
	}
	tag := uint64(100)
	eventually.True(t, "messages go over tcp", func() bool { // the other transport is tried now and then
		talk(t, a, b, mb, tag)
		tag++
		_, transport := onlyLink(a, b)
		return transport == "tcp"
	})
	if s := a.Stats(); s.Resumed > 10 {
		t.Errorf("%d connections were made for 100 messages", s.Resumed)
	}
}

// breaking makes connections that break when messages are sent.
type breaking struct{ subsys.Transport }

func (b *breaking) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	accept := cfg.Accept
	cfg.Accept = func(c subsys.Conn) subsys.Sink {
		return brokenSink{accept(c)}
	}
	return b.Transport.Listen(addr, cfg)
}

type brokenSink struct{ subsys.Sink }

func (s brokenSink) Frames(c subsys.Conn, fs []subsys.Frame) error {
	if fs[0].Type >= wire.TypeData {
		return errors.New("broken by the test")
	}
	return s.Sink.Frames(c, fs)
}

var moves = flag.Int("moves", 60, "how often TestMoves moves a link")

// A link moves to and fro between transports, and connections of all lanes are cut, while both ends
// send as fast as they can. Nothing is lost, doubled, changed or reordered: neither small messages,
// nor large ones, nor payloads in the sender's memory.
//
// Promise (Transports): A link that moves between transports loses, doubles and reorders nothing.
// See also TestSessionModel.
func TestMoves(t *testing.T) {
	w := newWorld()
	var lost atomic.Int32
	note := func(c *Config) {
		c.GiveUp = 20 * time.Second
		c.Undelivered = func(Undelivered) { lost.Add(1) }
	}
	near := alias{Transport: tcp.New(), name: "near"}
	d := [2]*Dispatcher{w.node(t, 1, near, note), w.node(t, 2, near, note)}
	for _, d := range d {
		w.listenToo(t, d, shm.New())
		w.listenToo(t, d, tcp.New())
	}
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Timeout)
	defer cancel()
	const flows = 5
	lanes := [flows]Lane{"", "", "", "shm", "tcp,shm"}
	sizes := []int{0, 1, 64, 1000, session.Inline, session.Inline + 1, 5000, 20_000, 70_000, session.PieceLen, session.PieceLen + 1, 3*session.PieceLen - 1}
	var stop atomic.Bool
	var wg, senders sync.WaitGroup
	var sent, got [2][flows]atomic.Uint64
	seed := func(from, flow int, n uint64) uint64 { return n*2*flows + uint64(from*flows+flow) }
	sum := func(from, flow int, n uint64, size int) uint32 {
		p := make([]byte, size)
		fill(p, seed(from, flow, n))
		return crc32.ChecksumIEEE(p)
	}
	size := func(flow int, n uint64) int { return sizes[(n*7+uint64(flow)*3+n/11)%uint64(len(sizes))] }
	for from := range d {
		for i := range flows {
			mb := box(t, d[1-from], uint32(10+i), 1<<20)
			senders.Go(func() {
				f := flowOver(t, d[from], mb, lanes[i])
				if got, isKnown := d[from].LaneTo(d[1-from].self, mb.serial); !isKnown || got != lanes[i] {
					t.Errorf("the lane is said to be %q, not %q", got, lanes[i])
				}
				for n := uint64(0); !stop.Load(); n++ {
					b, err := d[from].Buffer(size(i, n))
					if err == nil {
						fill(b.Bytes(), seed(from, i, n))
						err = f.Send(ctx, uint32(i+1), n, b)
					}
					if err != nil {
						t.Errorf("%d: sending %d of flow %d: %v", from, n, i, err)
						return
					}
					sent[from][i].Store(n + 1)
				}
			})
			wg.Go(func() {
				var kept []*Message // some messages are held for a while
				for n := uint64(0); ; n++ {
					m, err := mb.Recv(ctx)
					if err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Errorf("%d: receiving %d of flow %d: %v", 1-from, n, i, err)
						}
						break
					}
					if m.Tag() != n || m.Len() != size(i, n) {
						t.Errorf("%d: message %d of %d bytes, want %d of %d", 1-from, m.Tag(), m.Len(), n, size(i, n))
						cancel()
						return
					}
					got[from][i].Store(n + 1)
					if kept = append(kept, m); len(kept) < 20 {
						continue
					}
					for k, m := range kept {
						if x := crc32.ChecksumIEEE(m.Bytes()); x != sum(from, i, m.Tag(), m.Len()) {
							t.Errorf("%d: message %d (%d of the last 20) of %d bytes is damaged", 1-from, m.Tag(), k, m.Len())
						}
						m.Release()
					}
					kept = kept[:0]
				}
				for _, m := range kept {
					m.Release()
				}
			})
		}
	}
	defer func() { // if the test fails, its goroutines end before it does
		if t.Failed() {
			for from := range d {
				if l, transport := onlyLink(d[from], d[1-from]); l != nil {
					l.mu.Lock()
					t.Logf("%d: over %q, %v, pen %d, %v, binders %d", from, transport, &l.s, l.pen.Load(), l.life.State(), l.binders)
					l.mu.Unlock()
				}
			}
		}
		stop.Store(true)
		cancel()
		senders.Wait()
		wg.Wait()
	}()
	all := []string{"near", "shm", "tcp"}
	routes := map[string]int{}
	most := 20 * *moves // if goroutines are late, many changes of the best route move nothing
	for i := 0; i < *moves || i < most && d[0].Stats().Moved < uint64(*moves)/10; i++ {
		if t.Failed() {
			break
		}
		for _, d := range d { // a route does not count as bad because its connection was cut
			d.eachLink(func(l *link) { l.mu.Lock(); l.backoffs = nil; l.mu.Unlock() })
		}
		switch rand.IntN(4) {
		case 0: // a connection breaks, as one end sees it
			var all []*link
			d[rand.IntN(2)].eachLink(func(l *link) { all = append(all, l) })
			if len(all) == 0 {
				continue
			}
			l := all[rand.IntN(len(all))]
			l.mu.Lock()
			c := l.conn
			l.mu.Unlock()
			if c != nil {
				c.Close()
				l.mu.Lock()
				l.dropFailedLocked(c, errors.New("cut by the test"))
				l.mu.Unlock()
			}
		default: // another route is the best one now, and one end or both notice
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			for _, d := range d {
				prefer(d, all...)
			}
			turn := rand.IntN(3)
			if turn != 0 {
				d[0].Reconsider()
			}
			if turn != 1 {
				d[1].Reconsider()
			}
		}
		_, transport := onlyLink(d[0], d[1])
		routes[transport]++
		before := got[0][0].Load() + got[1][0].Load()
		time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond) // the moment of the next change varies
		eventually.True(t, "messages travel", func() bool {
			return got[0][0].Load()+got[1][0].Load() > before || t.Failed()
		})
	}
	stop.Store(true)
	senders.Wait()
	eventually.True(t, "all that was sent has come", func() bool {
		done := true
		for from := range d {
			for i := range flows {
				done = done && sent[from][i].Load() == got[from][i].Load()
			}
		}
		return done || t.Failed()
	})
	total := uint64(0)
	for from := range d {
		for i := range flows {
			total += got[from][i].Load()
		}
	}
	s := d[0].Stats()
	t.Logf("%d messages; %d moves, %d broken, %d frames sent again; seen %v", total, s.Moved, s.Resumed, s.Resent, routes)
	try.Check(t, flushAndClose(ctx, d[0], d[1]))
	wg.Wait()
	if n := lost.Load(); n > 0 {
		t.Errorf("%d reported undelivered", n)
	}
	if s.Moved < uint64(*moves)/10 {
		t.Error(fmt.Errorf("only %d moves: this shows nothing", s.Moved))
	}
}

// Close may come while links move: it returns, and leaves nothing.
func TestCloseWhileMoving(t *testing.T) {
	for round := range 40 {
		a, b := both(t)
		closeAmid(t, a, b, 1, []Lane{"", "tcp,shm", "shm"}, time.Duration(round*150)*time.Microsecond, func(d *Dispatcher) {
			all := []string{"inproc", "shm", "tcp"}
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			prefer(a, all...)
			prefer(b, all...)
			d.Reconsider()
			time.Sleep(100 * time.Microsecond) // messages travel between two changes
		})
	}
}

// refusing makes a context refuse links over some transports.
func refusing(transports ...string) func(*Config) {
	return func(c *Config) {
		trust := c.Trust()
		trust.CheckTransport = func(_ resource.GID, transport string) error {
			if slices.Contains(transports, transport) {
				return fmt.Errorf("no links over %s", transport)
			}
			return nil
		}
		c.Trust = func() Trust { return trust }
	}
}

// A transport that a context refuses does not keep messages to a context of its process from going
// within the process, even if it comes early in the order.
//
// Promise (Transports): Contexts of one process use `inproc` where neither refuses it or prefers
// another transport. See also TestLinkWithinProcess.
func TestRefusedTransportIsNotBetter(t *testing.T) {
	w, near := newWorld(), inproc.NewNetwork().Transport()
	a, b := w.node(t, 1, tcp.New(), refusing("tcp")), w.node(t, 2, tcp.New())
	w.listenToo(t, a, near)
	w.listenToo(t, b, near)
	exchange(t, a, box(t, b, 1, 0), 1, 10)
	if s := a.Stats(); s.Sent["inproc"] != 1 {
		t.Errorf("sent %v", s.Sent)
	}
}

// A link between contexts of one process over a later transport has its best route: the route
// within the process is none for a link.
func TestLinkWithinProcess(t *testing.T) {
	w, near := newWorld(), inproc.NewNetwork().Transport()
	a, b := w.node(t, 1, near, refusing("inproc")), w.node(t, 2, near)
	w.listenToo(t, a, tcp.New())
	w.listenToo(t, b, tcp.New())
	exchange(t, a, box(t, b, 1, 0), 1, 10)
	l := try.Get(a.link(b.self))(t)
	if !l.isBest(l.routes(), b.Addrs(), nil) {
		t.Errorf("of %v the link looks for a better route than %+v", b.Addrs(), l.route())
	}
}

// A context of the process with which links are refused is not only out of reach: the error says
// that a link is refused.
func TestRefusedWithinProcess(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"another key":     func(c *Config) { c.Trust = trusting("", "another") },
		"another cluster": func(c *Config) { c.Trust = trusting("another", "key") },
		"over inproc":     refusing("inproc"),
	} {
		t.Run(name, func(t *testing.T) {
			w, near := newWorld(), inproc.NewNetwork().Transport()
			reported := make(chan Undelivered, 1)
			a := w.node(t, 1, near, func(c *Config) {
				c.GiveUp = 20 * time.Millisecond
				c.Undelivered = func(u Undelivered) { reported <- u }
			})
			b := w.node(t, 2, near, change)
			err := flow(t, a, box(t, b, 1, 0)).SendBytes(soon(t), 1, 0, []byte("hello"))
			if err == nil {
				err = (<-reported).Err
			}
			if !errors.Is(err, ErrUnreachable) || !errors.Is(err, ErrRefused) {
				t.Error(err)
			}
		})
	}
}

// The reason why a context that refuses the link is not reached has the address.
func TestRefusalNamesAddress(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*Config)
		refusal string // what the dialling context knows
	}{
		"another key":     {func(c *Config) { c.Trust = trusting("", "another") }, "another key"},
		"another cluster": {func(c *Config) { c.Trust = trusting("another", "key") }, "peer closed"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New(), c.change)
			try.OK(t, flow(t, a, box(t, b, 1, 0)).SendAndForget(soon(t), 1, 0, []byte("hello")))
			var why string
			eventually.True(t, "the link is refused", func() bool {
				if all := a.Routes(); len(all) == 1 {
					why = all[0].Dialling
				}
				return strings.Contains(why, c.refusal)
			})
			if strings.Count(why, b.Addrs()[0]) != 1 {
				t.Errorf("the address is to be in %q once", why)
			}
		})
	}
}

// Contexts of one process that prefer another transport have a link over that one. When it fails,
// they do not continue within the process.
func TestNoFallbackToMemory(t *testing.T) {
	reported := make(chan Undelivered, 1)
	w, near := newWorld(), inproc.NewNetwork().Transport()
	a := w.node(t, 1, tcp.New(), func(c *Config) {
		c.GiveUp = 50 * time.Millisecond
		c.Undelivered = func(u Undelivered) { reported <- u }
	})
	b := w.node(t, 2, tcp.New(), refusing("tcp"))
	w.listenToo(t, a, near)
	w.listenToo(t, b, near)
	try.OK(t, flow(t, a, box(t, b, 1, 0)).SendBytes(soon(t), 1, 0, []byte("hello")))
	if u := <-reported; !errors.Is(u.Err, ErrUnreachable) {
		t.Error(u.Err)
	}
	if s := a.Stats(); s.Sent["inproc"] != 0 {
		t.Errorf("sent %v", s.Sent)
	}
}
