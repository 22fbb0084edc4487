// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/nice"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A connection that is cut anywhere loses no monitor. The end of a resource is reported once,
// behind all messages of that resource, also to a monitor that is set later.
func TestMonitorCutAnywhere(t *testing.T) {
	cutsAt(t, 61, 1009, 5_000, func(after int64) { cutMonitors(t, after) })
}

func cutMonitors(t *testing.T, after int64) {
	a, b, end := cutPair(t, after, unreported(t))
	mine := box(t, a, 1, 0)
	for round := range uint32(3) {
		its := box(t, b, 1+round, 0)
		id := monitored(its)
		const before, later, each = 100, 101, 10
		if round != 1 { // otherwise the first frames are the other context's
			monitorOf(t, mine, id, before)
		}
		f := flow(t, b, mine)
		for i := range uint64(each) {
			size := int(i) * 17
			if i == each-2 {
				size = 10_000
			}
			try.OK(t, f.SendBytes(soon(t), its.serial, i, make([]byte, size)), "cut after %d", after)
		}
		if round == 1 {
			monitorOf(t, mine, id, before)
		}
		its.Close()
		for i := range uint64(each) {
			msg, err := mine.Recv(soon(t))
			if err != nil || msg.IsGone() || msg.Tag() != i {
				t.Fatalf("cut after %d: message %d: %v", after, i, err)
			}
			msg.Release()
		}
		awaitGone(t, mine, id, before)
		monitorOf(t, mine, id, later)
		awaitGone(t, mine, id, later)
	}
	isEmpty(t, mine)
	end()
}

// Monitors that are set, calls that begin, and receives that wait while the context of their
// resource is closed or killed are all told that it has ended.
func TestContextEndsAsItIsAwaited(t *testing.T) {
	for name, tr := range transports() {
		for _, isKilled := range []bool{false, true} {
			if isKilled && name == "inproc" {
				continue
			}
			t.Run(fmt.Sprint(name, ", killed ", isKilled), func(t *testing.T) {
				w := newWorld()
				a := w.node(t, 1, tr)
				mine := box(t, a, 1, 0)
				for i := range uint64(20) {
					b := w.node(t, 2+i, tr)
					its := box(t, b, 1, 0)
					id := monitored(its)
					if i%2 == 0 { // otherwise there is no connection yet
						talk(t, a, b, its, 1)
					}
					var all sync.WaitGroup
					all.Go(func() {
						for range i % 7 {
							runtime.Gosched()
						}
						if isKilled {
							w.kill(b)
							return
						}
						w.setGone(b.self, true)
						try.Check(t, b.Close(soon(t)))
					})
					const each = 3
					for tag := range uint64(each) {
						all.Go(func() {
							if _, err := mine.Monitor(soon(t), id, tag); err != nil {
								t.Errorf("monitor: %v", err)
							}
						})
						all.Go(func() {
							f, err := a.Flow(b.self, its.serial)
							if err == nil {
								_, err = called(soon(t), mine, f, tag, nil)
							}
							if !errors.Is(err, ErrGone) {
								t.Errorf("call: %v", err)
							}
						})
						all.Go(func() {
							try.Fails(mine.Recv(soon(t), From(id), Tag(99)))(t, ErrGone, "receive")
						})
					}
					all.Wait()
					var seen [each]bool
					for range each {
						msg, err := mine.Recv(soon(t))
						if err != nil || !msg.IsGone() || msg.From() != id || seen[msg.Tag()] {
							t.Fatal("not an end, or one that was reported before:", err)
						}
						seen[msg.Tag()] = true
						msg.Release()
					}
					if isKilled { // the context lives on, without ports
						b.eachLink(func(l *link) { l.endLink(ErrUnreachable) })
					}
				}
				isEmpty(t, mine)
				noCalls(t, a, 0)
			})
		}
	}
}

// For monitors, calls and receives, a machine that falls silent has not ended while only the
// network is cut. It has ended when the directory says that its node is dead.
//
// Promise (Ends): Monitors, calls and receives of another node's resources end with `ErrGone` when
// gossip declares the node dead; `Message.GoneErr` then matches `ErrNodeDead`, as the resource may
// live. A shorter cut, or the death of its directory alone, ends none. See also
// TestAwaitedNodeDies, TestContextOfDeadNode.
func TestSilentNodeIsDeadWhenTheDirectorySaysSo(t *testing.T) {
	inSimulation(t, silentNodeIsDeadWhenTheDirectorySaysSo)
}

func silentNodeIsDeadWhenTheDirectorySaysSo(t *testing.T, n *simulated) {
	w := newWorld()
	a := w.node(t, 1, n.transport(), func(c *Config) { c.GiveUp = time.Hour })
	b := w.node(t, 2, n.transport(), func(c *Config) { c.GiveUp = time.Millisecond })
	mine, its := box(t, a, 1, 0), box(t, b, 1, 0)
	talk(t, a, b, its, 1)
	monitorOf(t, mine, monitored(its), 7)
	received, replied := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := mine.Recv(soon(t), From(monitored(its)), Tag(8))
		received <- err
	}()
	c := try.Get(mine.RequestBytes(soon(t), flow(t, a, its), 1, nil))(t)
	request := requestAt(t, its)
	go func() {
		_, err := c.Wait(soon(t))
		replied <- err
	}()
	l, _ := onlyLink(a, b)
	n.cutAll()
	eventually.True(t, "the silent machine is dialled", locked(&l.mu, func() bool { return l.conn == nil }))
	time.Sleep(time.Minute) // of virtual time: only the directory says that the machine is dead
	isEmpty(t, mine)
	select {
	case err := <-received:
		t.Errorf("the receive ended: %v", err)
	case err := <-replied:
		t.Errorf("the call ended: %v", err)
	default:
	}
	w.setGone(b.self, true)
	awaitGone(t, mine, monitored(its), 7)
	awaitEnd(t, received, ErrGone)
	awaitEnd(t, replied, ErrGone)
	noCalls(t, a, 0)
	request.Release()
	n.Heal()
}

// A context with a node that the directory takes for dead is tried once more at the known
// addresses. If it lives, as after the end of its directory alone, its link resumes. If it does not
// answer, it has ended, however long GiveUp is. A context without a known address has ended.
func TestContextOfDeadNode(t *testing.T) {
	nice.Raise(t) // the attempt has two seconds
	over(t, links(), func(t *testing.T, w *world, tr subsys.Transport) {
		var isDead atomic.Bool
		a := w.node(t, 1, tr, func(c *Config) {
			c.GiveUp = time.Hour
			c.Resolve = func(ctx context.Context, id resource.GID) ([]string, error) {
				if isDead.Load() {
					return nil, fmt.Errorf("%w: %v", ErrNodeDead, id)
				}
				return w.resolve(ctx, id)
			}
		})
		b := w.node(t, 2, tr)
		mine, its := box(t, a, 1, 0), box(t, b, 1, 0)
		talk(t, a, b, its, 1)
		monitorOf(t, mine, monitored(its), 7)
		isDead.Store(true)
		for round := range uint64(3) {
			resumed := a.Stats().Resumed
			breakLink(a, b, errSilent)
			eventually.True(t, "the link resumes", func() bool { return a.Stats().Resumed > resumed })
			talk(t, a, b, its, 2+round)
		}
		isEmpty(t, mine)
		w.kill(b)
		gone := try.Get(mine.Recv(soon(t)))(t)
		if of := monitored(its); !gone.IsGone() || gone.From() != of || !errors.Is(gone.GoneErr(), ErrNodeDead) {
			t.Errorf("the end of %v: from %v: %v", of, gone.From(), gone.GoneErr())
		}
		gone.Release()
		b.eachLink(func(l *link) { l.endLink(ErrUnreachable) }) // the context lives on, without ports

		unknown := resource.MakeGID(1, 9, 1)
		monitorOf(t, mine, unknown, 8)
		awaitGone(t, mine, unknown, 8)
		f, err := a.Flow(unknown.Context(), 1)
		if err == nil {
			_, err = called(soon(t), mine, f, 1, nil)
		}
		if !errors.Is(err, ErrGone) || errors.Is(err, ErrUnreachable) {
			t.Errorf("a call to a context of which no address is known: %v", err)
		}
	})
}

// When the directory says that a node is dead, links that only the peer dials do not end: the peer
// is left the time to dial. Such links are those that this side has accepted, and knows no address
// for.
func TestAcceptedLinkOfDeadNode(t *testing.T) {
	inSimulation(t, func(t *testing.T, n *simulated) {
		w := newWorld()
		var looks atomic.Int64
		a := w.node(t, 1, n.transport(), func(c *Config) {
			c.GiveUp = time.Hour
			c.Resolve = func(_ context.Context, id resource.GID) (addrs []string, err error) {
				looks.Add(1)
				return nil, fmt.Errorf("%w: %v", ErrNodeDead, id)
			}
		})
		var await atomic.Int64 // b does not dial before there have been so many checks
		b := w.node(t, 2, n.transport(), func(c *Config) {
			c.Resolve = func(ctx context.Context, id resource.GID) ([]string, error) {
				for looks.Load() < await.Load() && ctx.Err() == nil {
					time.Sleep(time.Millisecond) // of virtual time
				}
				return w.resolve(ctx, id)
			}
		}, unreported(t))
		mine, its := box(t, a, 1, 0), box(t, b, 1, 0)
		talk(t, b, a, mine, 1)
		monitorOf(t, mine, monitored(its), 7)
		l := try.Get(a.link(b.self))(t)
		for round := range uint64(3) {
			await.Store(looks.Load() + 2)
			resumed := a.Stats().Resumed
			breakLink(a, b, errSilent)
			eventually.True(t, "the link resumes", func() bool { return a.Stats().Resumed > resumed })
			talk(t, b, a, mine, 2+round)
		}
		isEmpty(t, mine)
		try.OK(t, b.Flush(soon(t)))
		n.processes[1].Kill()
		b.eachLink(func(l *link) { l.endLink(ErrUnreachable) })
		awaitGone(t, mine, monitored(its), 7)
		eventually.True(t, "the link ends", l.ended)
		l.mu.Lock()
		defer l.mu.Unlock()
		try.Fails(l.life.Cause())(t, ErrGone, "the link ended of")
	})
}

// nodesAreDead makes c resolve contexts to their addresses, and say that their nodes are dead.
func (w *world) nodesAreDead(c *Config) {
	c.Resolve = func(ctx context.Context, id resource.GID) ([]string, error) {
		addrs, _ := w.resolve(ctx, id)
		return addrs, ErrNodeDead
	}
}

// A link that has never been told an address dials the addresses that the resolver returns beside
// ErrNodeDead: another link of this context has used them.
func TestAddressesOfDeadNode(t *testing.T) {
	inSimulation(t, func(t *testing.T, n *simulated) {
		w := newWorld()
		a := w.node(t, 1, n.transport(), w.nodesAreDead)
		b := w.node(t, 2, n.transport())
		talk(t, a, b, box(t, b, 1, 0), 1)
	})
}

// hooked is a transport that calls a function before it dials. The function may make the dial fail.
type hooked struct {
	subsys.Transport
	dial atomic.Pointer[func(ctx context.Context, addr string) error]
}

type hookedPort struct {
	subsys.Port
	h *hooked
}

// fail makes dials fail with err, or lets them be.
func (h *hooked) fail(err error) {
	f := func(context.Context, string) error { return err }
	h.dial.Store(&f)
}

func (h *hooked) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	p, err := h.Transport.Listen(addr, cfg)
	return &hookedPort{p, h}, err
}

func (p *hookedPort) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	if f := p.h.dial.Load(); f != nil {
		if err := (*f)(ctx, addr); err != nil {
			return nil, err
		}
	}
	return p.Port.Dial(ctx, addr, s)
}

// A context with a node that the directory takes for dead has not ended, but is out of reach, in
// three cases: one of its addresses refuses the link, this machine could not dial, or GiveUp ends
// the attempt.
//
// Promise (Ends): The report that a node is dead does not end a context that refuses the link or
// cannot be dialled from here: it is given up after `WithGiveUp`. A directory that reaches no other
// member declares none dead. See also TestNodeDead.
func TestNotGoneThoughNodeDead(t *testing.T) {
	for what, dial := range map[string]func(ctx context.Context, isMissing bool) error{
		"refused": nil,
		"no descriptor": func(_ context.Context, isMissing bool) error {
			if isMissing {
				return subsys.ErrNoPeer
			}
			return fmt.Errorf("dialling: %w", syscall.EMFILE)
		},
		"given up": func(ctx context.Context, _ bool) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(what, func(t *testing.T) {
			inSimulation(t, func(t *testing.T, n *simulated) {
				w, missing := newWorld(), n.nowhere()
				var isDead atomic.Bool
				h := &hooked{Transport: n.transport()}
				reported := make(chan error, 1)
				a := w.node(t, 1, h, func(c *Config) {
					c.GiveUp = 3 * time.Second // less than an attempt may take
					c.Undelivered = func(u Undelivered) { reported <- u.Err }
					c.Trust = func() Trust {
						if isDead.Load() && dial == nil {
							return trusting("", "another")()
						}
						return trusting("", "key")()
					}
					c.Resolve = func(ctx context.Context, id resource.GID) ([]string, error) {
						addrs, err := w.resolve(ctx, id)
						if isDead.Load() {
							err = ErrNodeDead
						}
						return append(slices.Clone(addrs), missing), err
					}
				})
				b := w.node(t, 2, n.transport(), doesNotDial, givesUp)
				its := box(t, b, 1, 0)
				talk(t, a, b, its, 1)
				isDead.Store(true)
				if dial != nil {
					do := func(ctx context.Context, addr string) error { return dial(ctx, addr == missing) }
					h.dial.Store(&do)
				}
				breakLink(a, b, errSilent)
				err := flow(t, a, its).SendBytes(soon(t), 1, 2, nil)
				if err == nil {
					err = <-reported
				}
				if !errors.Is(err, ErrUnreachable) || errors.Is(err, ErrGone) {
					t.Error(err)
				}
			})
		})
	}
}

// A route whose backoff ends during the attempt that decides whether a context of a dead node has
// ended is dialled in that attempt.
func TestBackoffEndsDuringLastAttempt(t *testing.T) {
	nice.Raise(t) // the attempt has two seconds
	w := newWorld()
	a := w.node(t, 1, tcp.New(), w.nodesAreDead)
	h := &hooked{Transport: shm.New()}
	w.listenToo(t, a, h)
	prefer(a, "tcp", "shm")
	b := w.node(t, 2, tcp.New())
	w.listenToo(t, b, shm.New())
	l, _ := onlyLink(a, b)
	backoff := &routeBackoff{until: time.Now().Add(time.Hour), wait: time.Hour}
	l.mu.Lock()
	l.backoffs = map[string]*routeBackoff{"tcp": backoff}
	l.mu.Unlock()
	dial := func(context.Context, string) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		backoff.until = time.Now()
		return subsys.ErrNoPeer
	}
	h.dial.Store(&dial)
	talk(t, a, b, box(t, b, 1, 0), 1)
}

// The attempt that decides that a context of a dead node has ended has as much time as an attempt
// to reach a distant peer.
func TestLastAttemptIsLong(t *testing.T) { inSimulation(t, lastAttemptIsLong) }

func lastAttemptIsLong(t *testing.T, n *simulated) {
	w := newWorld()
	var isLong atomic.Bool
	var attempts atomic.Int64
	h, missing := &hooked{Transport: n.transport()}, n.nowhere()
	dial := func(ctx context.Context, _ string) error {
		end, _ := ctx.Deadline()
		isLong.Store(time.Until(end) > shakeBriefly)
		attempts.Add(1)
		return subsys.ErrNoPeer
	}
	h.dial.Store(&dial)
	a := w.node(t, 1, h, func(c *Config) {
		c.GiveUp = time.Hour
		c.Resolve = func(context.Context, resource.GID) ([]string, error) {
			addrs := []string{missing}
			if attempts.Load() > 0 { // the second attempt is a short one
				return addrs, ErrNodeDead
			}
			return addrs, nil
		}
	})
	mine, its := box(t, a, 1, 0), resource.MakeGID(1, 9, 1)
	monitorOf(t, mine, its, 1)
	awaitGone(t, mine, its, 1)
	if k := attempts.Load(); k != 2 || !isLong.Load() {
		t.Errorf("%d attempts, the last was long: %v", k, isLong.Load())
	}
}

// A lateContext has a deadline that has passed, and its timer has not run yet.
type lateContext struct{ context.Context }

func (lateContext) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// The attempt of a link whose deadline has passed is no proof that the peer has ended, even if the
// timer that ends the context of the attempt has not run yet.
func TestDeadlineIsNoDeath(t *testing.T) {
	w := newWorld()
	a := w.node(t, 1, tcp.New(), func(c *Config) {
		c.Resolve = func(context.Context, resource.GID) ([]string, error) {
			return []string{"tcp://127.0.0.1:1"}, ErrNodeDead
		}
	})
	l := try.Get(a.linkOf(linkKey{peer: resource.MakeGID(1, 9, 0)}))(t)
	try.Fails(l.try(t.Context(), shakeTimeout, time.Now()))(t, ErrNodeDead)
	if _, err := l.try(lateContext{t.Context()}, shakeTimeout, time.Now()); err == nil || errors.Is(err, ErrGone) {
		t.Error(err)
	}
}

// A link that has ended is not dialled for.
func TestEndedLinkIsNotDialled(t *testing.T) {
	w := newWorld()
	var looks atomic.Int64
	a := w.node(t, 1, tcp.New(), func(c *Config) {
		c.Resolve = func(context.Context, resource.GID) ([]string, error) {
			looks.Add(1)
			return nil, ErrGone
		}
	})
	mine, its := box(t, a, 1, 0), resource.MakeGID(1, 9, 1)
	monitorOf(t, mine, its, 1)
	awaitGone(t, mine, its, 1)
	try.OK(t, a.Close(soon(t)))
	if n := looks.Load(); n != 1 {
		t.Errorf("the directory was asked %d times", n)
	}
}

// A resource is closed while goroutines select messages from it, in each way that exists. Each of
// them ends with ErrClosed. Each message that was accepted is received or reported, once.
//
// Promise (Receiving): Closing a resource ends its receives with `ErrClosed`. Each accepted message
// is received or reported, once.
func TestSelectWhileClosed(t *testing.T) {
	const senders, most = 3, 1000
	over(t, transports(), func(t *testing.T, _ *world, tr subsys.Transport) {
		for round := range 20 {
			w := newWorld()
			var reported, accepted, received atomic.Int64
			a := w.node(t, 1, tr, func(c *Config) { c.Undelivered = func(Undelivered) { reported.Add(1) } })
			b := w.node(t, 2, tr)
			its, m, other := box(t, a, 1, 0), box(t, b, 1, 0), box(t, b, 2, 0)
			from := From(monitored(its))
			var seen [senders * most]atomic.Bool
			got := func(msg *Message) {
				received.Add(1)
				if i := binary.LittleEndian.Uint64(msg.Bytes()); seen[i].Swap(true) {
					t.Errorf("message %d was received twice", i)
				}
				msg.Release()
			}
			var all sync.WaitGroup
			for what, sel := range map[string][]Select{
				"all": nil, "tag": {Tag(1)}, "tags": {Tags(2, 5)}, "mask": {TagMask(3, 2)}, "origin": {from},
				"origin and tag": {from, Tag(4)}, "any": {Any(Tag(3), All(from, Tag(6)))}, "none that comes": {Tag(999)},
			} {
				all.Go(func() {
					for {
						msg, err := m.Recv(soon(t), sel...)
						if err != nil {
							if !errors.Is(err, ErrClosed) {
								t.Errorf("Recv of %s: %v", what, err)
							}
							return
						}
						got(msg)
					}
				})
				all.Go(func() {
					for {
						of, msg, err := RecvAny(soon(t), []*Mailbox{other, m}, sel...)
						if err != nil {
							if !errors.Is(err, ErrClosed) || of != 1 {
								t.Errorf("RecvAny of %s: %d, %v", what, of, err)
							}
							return
						}
						got(msg)
					}
				})
			}
			all.Go(func() {
				for {
					if _, err := m.Peek(Tag(3)); errors.Is(err, ErrClosed) {
						return
					} else if err != nil && !errors.Is(err, ErrEmpty) {
						t.Errorf("Peek: %v", err)
						return
					}
					runtime.Gosched()
				}
			})
			f := flow(t, a, m)
			for s := range uint64(senders) {
				all.Go(func() {
					for i := range uint64(most) {
						p := binary.LittleEndian.AppendUint64(nil, s*most+i)
						if i%10 == 9 {
							p = append(p, make([]byte, 5000)...)
						}
						if err := f.SendBytes(soon(t), its.serial, i%8, p); err != nil {
							if !errors.Is(err, ErrGone) {
								t.Error(err)
							}
							return
						}
						accepted.Add(1)
					}
				})
			}
			eventually.True(t, "some messages have come", func() bool { return received.Load() >= int64(round*20) })
			m.Close()
			all.Wait()
			eventually.True(t, "each message is received or reported", func() bool { return received.Load()+reported.Load() >= accepted.Load() })
			try.Check(t, errors.Join(a.Close(soon(t)), b.Close(soon(t))))
			if received.Load()+reported.Load() != accepted.Load() {
				t.Fatalf("%d messages accepted, %d received, %d reported", accepted.Load(), received.Load(), reported.Load())
			}
		}
	})
}

// RecvAny fails with ErrStuck when one of its mailboxes is full of messages that it does not select
// and senders wait. It has lost no message.
func TestStuckRecvAny(t *testing.T) {
	const limit, size, n = 1 << 20, 100_000, 40
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr, func(c *Config) { c.GiveUp = 100 * time.Millisecond })
		full, empty := box(t, b, 1, limit), box(t, b, 2, 0)
		sent := behind(t, a, full, n, size)
		if of, _, err := RecvAny(soon(t), []*Mailbox{empty, full}, Tag(2)); !errors.Is(err, ErrStuck) || of != -1 {
			t.Errorf("%d, %v", of, err)
		}
		if waiting(full) || waiting(empty) {
			t.Error("a receiver is left behind")
		}
		if n := b.Stats().StuckReceives; n != 1 {
			t.Errorf("%d receives are counted", n)
		}
		for range n {
			take(t, full, Tag(1))
		}
		take(t, full, Tag(2))
		try.Check(t, <-sent)
	})
}

// Two contexts each send the other more than its mailbox holds, and select the message that comes
// last. Both receives fail with ErrStuck, and both contexts continue.
func TestStuckInBothDirections(t *testing.T) {
	const limit, size, n = 1 << 20, 100_000, 40
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		patient := func(c *Config) { c.GiveUp = time.Hour } // the test calls checkStuck itself
		a, b := w.node(t, 1, tr, patient), w.node(t, 2, tr, patient)
		ma, mb := box(t, a, 1, limit), box(t, b, 1, limit)
		var ends sync.WaitGroup
		for _, end := range []struct {
			mine *Mailbox
			sent chan error
		}{{ma, behind(t, a, mb, n, size)}, {mb, behind(t, b, ma, n, size)}} {
			ends.Go(func() {
				result := make(chan error, 1)
				go func() {
					_, err := end.mine.Recv(soon(t), Tag(2))
					result <- err
				}()
				eventually.Within(eventually.Timeout, func() bool { end.mine.checkStuck(); return len(result) == 1 })
				try.Fails(<-result)(t, ErrStuck, "the receive")
				for range n {
					take(t, end.mine, Tag(1))
				}
				take(t, end.mine, Tag(2))
				try.Check(t, <-end.sent)
			})
		}
		ends.Wait()
	})
}

// A request that is put back is received and replied to like any other. If its resource is closed
// meanwhile, its call ends.
func TestPutBackRequest(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		var calls [2]Pending
		for i := range calls {
			var err error
			if calls[i], err = ma.RequestBytes(soon(t), f, uint64(i), []byte("abc")); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			first, second := requestAt(t, mb), requestAt(t, mb)
			try.OK(t, errors.Join(mb.PutBack(second), mb.PutBack(first)))
		}
		msg := requestAt(t, mb)
		try.OK(t, mb.ReplyBytes(soon(t), msg, reversed(msg.Bytes())))
		msg.Release()
		reply, err := calls[0].Wait(soon(t))
		if err != nil || reply.Tag() != 0 || string(reply.Bytes()) != "cba" {
			t.Fatal(err)
		}
		reply.Release()
		mb.Close()
		try.Fails(calls[1].Wait(soon(t)))(t, ErrGone)
		noCalls(t, a, 0)
	})
}

// Messages and calls that are sent while the context of their target closes leave no goroutine that
// waits: each ends with one of the errors of an end.
func TestWaitersEndWithTheirContext(t *testing.T) {
	over(t, transports(), func(t *testing.T, _ *world, tr subsys.Transport) {
		for range 10 {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			mine, its := box(t, a, 1, 0), box(t, b, 1, FirstCredit)
			f := flow(t, a, its)
			ends := make(chan error, 10)
			go func() { _, err := mine.Recv(context.Background(), Tag(1)); ends <- err }()
			go func() { _, _, err := RecvAny(context.Background(), []*Mailbox{mine}, Tags(1, 2)); ends <- err }()
			go func() { _, err := called(context.Background(), mine, f, 1, nil); ends <- err }()
			go func() {
				var err error
				for err == nil {
					err = f.SendBytes(context.Background(), 1, 1, make([]byte, 10_000))
				}
				ends <- err
			}()
			eventually.True(t, "a sender waits", locked(&its.mu, func() bool { return len(its.credit.Waiting()) > 0 }))
			done := ended()
			_ = a.Close(done) // messages are not waited for
			for range 4 {
				awaitEnd(t, ends, ErrClosed)
			}
		}
	})
}
