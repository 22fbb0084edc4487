// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/internal/os/netsource"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

const (
	shakeTimeout = 2 * time.Second
	maxPending   = 256 // accepted connections that have not attached yet
)

// An endpoint is the sink of one connection. First it does the handshake, then it passes frames to
// the link.
type endpoint struct {
	d         *Dispatcher
	link      atomic.Pointer[link]
	isCurrent atomic.Bool // the connection is that of the link

	mu      lock.Mutex[levelEndpoint]
	step    uint8           // the frame type expected next
	cluster uint64          // the number that stands for the cluster; see Trust.hash
	said    wire.Transcript // what both sides have said, and the keys that the handshake may go on with
	peer    resource.GID    // the other context
	mine    wire.Attach     // the Attach that this context has sent

	// Only the acceptor's endpoint uses the following fields.
	trust   Trust             // what Config.Trust said as the handshake began
	lane    Lane              // the lane that the dialler has asked for
	expiry  *time.Timer       // ends the handshake when its time is over
	pending *subsys.Handshake // the endpoint's entry in Handshakes, until the peer is known

	// Only the dialler's endpoint uses the following fields.
	want    *link       // the link to bind the connection to
	from    subsys.Conn // the connection that the link is to leave; nil: the link has none
	outcome chan error  // receives one value, the result
}

// hash returns the number that stands for the cluster in a Hello.
func (t *Trust) hash() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.Cluster))
	return h.Sum64()
}

// welcome makes the endpoint of an accepted connection. Beyond maxPending, an older connection with
// an unfinished handshake is closed; see subsys.Handshakes.
func (d *Dispatcher) welcome(c subsys.Conn) subsys.Sink {
	trust := d.trust()
	ep := &endpoint{d: d, step: wire.TypeHello, cluster: trust.hash(), said: wire.Transcript{Keys: trust.Keys}, trust: trust}
	source := netsource.OfURL(c.Remote())
	end := func(why string) {
		if ep.link.Load() == nil {
			d.often.Info(source, why, "remote", c.Remote())
			ep.endHandshake()
			c.Close()
		}
	}
	// A connection may be cut before its entry is noted: then its time runs out.
	//
	// Cause (info): many processes connect without a handshake. Remedy: find them by their address.
	pending := d.handshakes.Add(source, func() { end("dispatch: a peer gives way to newer ones, because it has not completed the handshake") })
	ep.mu.Lock()
	ep.pending = pending
	// Cause (info): a process connected and sent nothing useful. Remedy: find it by its address.
	ep.expiry = time.AfterFunc(shakeTimeout, func() { end("dispatch: peer did not complete the handshake") })
	ep.mu.Unlock()
	return ep
}

// endHandshake takes the connection out of Handshakes, and stops the timer of the handshake.
func (ep *endpoint) endHandshake() {
	ep.mu.Lock()
	t, pending := ep.expiry, ep.pending
	ep.expiry = nil
	ep.mu.Unlock()
	if t != nil {
		t.Stop()
		pending.Done()
	}
}

// shake dials addr and binds the connection to l, in place of from, which may be nil.
func (d *Dispatcher) shake(ctx context.Context, l *link, p subsys.Port, addr string, from subsys.Conn) error {
	trust := d.trust()
	ep := &endpoint{d: d, step: wire.TypeChallenge, cluster: trust.hash(), said: wire.Transcript{Keys: trust.Keys}, want: l, from: from, peer: l.peer, outcome: make(chan error, 1)}
	c, err := p.Dial(ctx, addr, ep)
	if err != nil {
		return &dialError{err}
	}
	if err = trust.checkTransport(l.peer, c.Transport()); err != nil {
		c.Close()
		return fmt.Errorf("handshake with %s: %w", addr, err)
	}
	h := wire.Hello{From: d.self, To: l.peer, Lane: string(l.key.lane), Cluster: ep.cluster}
	_, _ = rand.Read(h.Nonce[:])
	said := h.Append(nil)
	ep.said.Said = slices.Clip(said) // another goroutine uses said from Start on
	c.Start()
	if err := ep.sendFrame(c, wire.TypeHello, said); err != nil {
		l.mu.Lock()
		l.life.EndProposal() // the answer may have come before sendFrame returned
		l.mu.Unlock()
		c.Close()
		return err
	}
	d.progress.CallKeeper()
	select {
	case err = <-ep.outcome:
		if errors.Is(err, ErrRefused) || errors.Is(err, ErrProtocol) { // errors of the transport name the address
			err = fmt.Errorf("handshake with %s: %w", addr, err)
		}
	case <-ctx.Done():
		err = fmt.Errorf("dispatch: handshake with %s: %w", addr, context.Cause(ctx))
		// It may have succeeded just now: then the link has the connection.
		if ep.link.Load() != nil {
			return nil
		}
	}
	l.mu.Lock()
	l.life.EndProposal()
	l.mu.Unlock()
	if err != nil {
		c.Close()
	}
	return err
}

// sendFrame sends one handshake frame. mu orders the frames: the dialler's first may still be being
// sent when the answer asks for the next.
func (ep *endpoint) sendFrame(c subsys.Conn, typ uint8, b []byte) error {
	f := [1]subsys.Frame{{Data: b}}
	f[0].Type, f[0].Len = typ, uint32(len(b))
	ep.mu.Lock()
	n, err := c.Send(f[:])
	ep.mu.Unlock()
	if err == nil && n == 0 {
		err = errors.New("dispatch: connection has no room for a handshake frame")
	}
	return err
}

// Frames implements subsys.Sink.
func (ep *endpoint) Frames(c subsys.Conn, fs []subsys.Frame) error {
	for i := range fs {
		if l := ep.link.Load(); l != nil {
			return l.receive(ep, c, fs[i:])
		}
		if err := ep.onFrame(c, &fs[i]); err != nil {
			ep.endHandshake()
			ep.finish(err)
			// Cause: a peer with another cluster or key, or without memory, was refused. Remedy:
			// use the same settings on all nodes.
			ep.d.often.Info(netsource.OfURL(c.Remote()), "dispatch: handshake", "remote", c.Remote(), "err", err)
			return err
		}
	}
	return nil
}

// finish tells shake the result of the handshake, unless it has one.
func (ep *endpoint) finish(err error) {
	if ep.outcome != nil {
		select {
		case ep.outcome <- err:
		default:
		}
	}
}

// Room implements subsys.Sink.
func (ep *endpoint) Room(c subsys.Conn, h *subsys.Header) (*buffers.Buffer, error) {
	l := ep.link.Load()
	if l == nil {
		return nil, fmt.Errorf("%w: %d bytes before the handshake", ErrProtocol, h.Len)
	}
	return l.payloadBuffer(ep, h)
}

// Writable implements subsys.Sink.
func (ep *endpoint) Writable(c subsys.Conn) {
	if l := ep.link.Load(); l != nil {
		l.onWritable(c)
	}
}

// Down implements subsys.Sink.
func (ep *endpoint) Down(c subsys.Conn, err error) {
	ep.endHandshake()
	ep.finish(err)
	if l := ep.link.Load(); l != nil {
		l.mu.Lock()
		l.dropFailedLocked(c, err)
		l.mu.Unlock()
	}
}

// onFrame handles one frame of the handshake. The token must be held, as for the methods below that
// handle a frame.
func (ep *endpoint) onFrame(c subsys.Conn, f *subsys.Frame) error {
	if f.Type == wire.TypeRefuse && ep.want != nil && ep.step == wire.TypeReady {
		return ep.refused(f.Data)
	}
	if f.Type != ep.step {
		return fmt.Errorf("%w: frame type %d during the handshake", ErrProtocol, f.Type)
	}
	switch f.Type {
	case wire.TypeHello:
		return ep.onHello(c, f.Data)
	case wire.TypeChallenge:
		return ep.onChallenge(c, f.Data)
	case wire.TypeAttach:
		return ep.onAttach(c, f.Data)
	}
	return ep.onReady(c, f.Data)
}

// onHello checks the dialler's Hello, and answers with a Challenge.
func (ep *endpoint) onHello(c subsys.Conn, b []byte) error {
	var h wire.Hello
	if err := h.Parse(b); err != nil {
		return err
	}
	switch {
	case h.Cluster != ep.cluster:
		return fmt.Errorf("%w: %v is of another cluster", ErrRefused, h.From)
	case h.To != ep.d.self:
		return fmt.Errorf("%w: %v looks for %v, this is %v", ErrRefused, h.From, h.To, ep.d.self)
	case h.From == ep.d.self || h.From != h.From.Context() || h.From.IsZero():
		return fmt.Errorf("%w: %v is no peer", ErrRefused, h.From)
	}
	if err := ep.trust.checkTransport(h.From, c.Transport()); err != nil {
		return err
	}
	lane, err := ParseLane(h.Lane)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	ep.peer, ep.lane = h.From, lane
	ep.said.Said = append(ep.said.Said, b...)
	ch := wire.Challenge{From: ep.d.self}
	_, _ = rand.Read(ch.Nonce[:])
	part := ch.Append(nil)
	part = append(part, ep.said.MACs(wire.TypeChallenge, part)...)
	ep.said.Said = append(ep.said.Said, part...)
	ep.step = wire.TypeAttach
	return ep.sendFrame(c, wire.TypeChallenge, part)
}

// onChallenge checks the acceptor's Challenge, and answers with an Attach.
func (ep *endpoint) onChallenge(c subsys.Conn, b []byte) error {
	var ch wire.Challenge
	if err := ch.Parse(b); err != nil {
		return err
	}
	if ch.From != ep.peer {
		return fmt.Errorf("%w: %v answers in place of %v", ErrRefused, ch.From, ep.peer)
	}
	if !ep.said.Proves(wire.TypeChallenge, b[:wire.ChallengePart], ch.MACs) {
		return fmt.Errorf("%w: %v has another key", ErrRefused, ep.peer)
	}
	ep.said.Said = append(ep.said.Said, b...)
	l := ep.want
	l.mu.Lock()
	if l.life.HasEnded() || l.conn != nil && l.conn != ep.from {
		l.mu.Unlock()
		return fmt.Errorf("%w: the link has another connection", ErrRefused)
	}
	ep.mine = wire.Attach{Session: l.life.ID(), Known: l.life.PeerID(), Gen: l.life.Propose(), Have: l.s.Expected(), IsMove: l.conn != nil, Features: wire.FeatureTraces, Past: l.d.formerOf(l.key)}
	l.mu.Unlock()
	part := ep.mine.Append(nil)
	ep.mine.MAC = ep.said.MAC(ep.said.Keys[0], wire.TypeAttach, part[:wire.AttachPart])
	part = ep.mine.Append(part[:0])
	ep.said.Said = append(ep.said.Said, part...)
	ep.step = wire.TypeReady
	return ep.sendFrame(c, wire.TypeAttach, part)
}

// onAttach checks the dialler's Attach. If the link admits the connection, onAttach binds it and
// answers with Ready, otherwise with Refuse.
func (ep *endpoint) onAttach(c subsys.Conn, b []byte) error {
	var a wire.Attach
	if err := a.Parse(b); err != nil {
		return err
	}
	if !ep.said.Proves(wire.TypeAttach, b[:wire.AttachPart], a.MAC[:]) {
		return fmt.Errorf("%w: %v has another key", ErrRefused, ep.peer)
	}
	ep.said.Said = append(ep.said.Said, b...)
	for k := (linkKey{ep.peer, ep.lane}); ; {
		if a.Known != 0 && ep.d.known(k) == nil { // a link made for a session that is not known would stay
			return ep.refuse(c, &a, wire.RefusedUnknown, 0)
		}
		l, err := ep.d.linkOf(k)
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.blockWritersLocked()
		isWorse := a.IsMove && l.conn != nil && l.worseLocked(c)
		v := l.life.Admits(&a, ep.d.self.Compare(ep.peer) < 0, isWorse)
		isAdmitted := v.IsAdmitted()
		if isAdmitted {
			err = l.bindLocked(ep, c, &a)
		}
		if !isAdmitted || err != nil {
			l.unblockWritersLocked()
			l.mu.Unlock()
			switch {
			case v.IsGivenUp:
				l.giveUp(v.Fatal, a.Past)
			case v.Fatal != nil:
				l.endLink(v.Fatal)
			}
			switch {
			case err != nil:
				return err
			case v.IsForSuccessor:
				ep.d.unlink(l)
				continue
			}
			return ep.refuse(c, &a, v.Why, v.Gen)
		}
		ready := wire.Attach{Session: l.life.ID(), Known: a.Session, Gen: a.Gen, Have: l.s.Expected(), Features: wire.FeatureTraces}
		ep.link.Store(l)
		l.pen.Store(penWriting) // Ready goes first
		l.binders--
		l.mu.Unlock()
		part := ready.Append(nil)
		ready.MAC = ep.said.MAC(ep.said.Keys[0], wire.TypeReady, part[:wire.AttachPart])
		err = ep.sendFrame(c, wire.TypeReady, ready.Append(part[:0]))
		ep.endHandshake()
		l.mu.Lock()
		if err != nil {
			l.dropFailedLocked(c, err)
		}
		l.putDownLocked(penIdle)
		l.writeLocked()
		l.mu.Unlock()
		return nil
	}
}

// refuse tells the dialler that the connection is not attached, and returns the error that ends it.
func (ep *endpoint) refuse(c subsys.Conn, a *wire.Attach, why wire.Refusal, gen uint64) error {
	r := wire.Refuse{Why: why, Gen: gen}
	if p := ep.former(); why == wire.RefusedUnknown && p.Session == a.Known {
		r.Past = p
	}
	_ = ep.sendFrame(c, wire.TypeRefuse, r.Append(nil))
	return fmt.Errorf("%w: connection of %v is not attached (%d)", ErrRefused, ep.peer, why)
}

// refused handles a Refuse frame at the dialler.
func (ep *endpoint) refused(b []byte) error {
	var r wire.Refuse
	if err := r.Parse(b); err != nil {
		return err
	}
	l := ep.want
	err := fmt.Errorf("%w by %v (%d)", ErrRefused, ep.peer, r.Why)
	l.mu.Lock()
	fatal := l.life.Refused(r.Why, r.Gen)
	l.mu.Unlock()
	if fatal != nil {
		l.giveUp(fatal, r.Past)
	}
	return err
}

// onReady checks the acceptor's Ready, and binds the connection to the link.
func (ep *endpoint) onReady(c subsys.Conn, b []byte) error {
	var a wire.Attach
	if err := a.Parse(b); err != nil {
		return err
	}
	if !ep.said.Proves(wire.TypeReady, b[:wire.AttachPart], a.MAC[:]) {
		return fmt.Errorf("%w: %v has another key", ErrRefused, ep.peer)
	}
	l := ep.want
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blockWritersLocked()
	defer l.unblockWritersLocked()
	if err := l.life.Confirms(&ep.mine, &a); err != nil {
		return err
	}
	a.IsMove = ep.mine.IsMove // as the peer has seen it
	if err := l.bindLocked(ep, c, &a); err != nil {
		return err
	}
	ep.link.Store(l)
	l.life.EndProposal()
	ep.finish(nil)
	return nil
}

// bindLocked makes c, whose handshake has succeeded and whose sink is ep, the link's connection, in
// place of an earlier one. It resumes the session where a says. mu and the token must be held, and
// no goroutine may write.
func (l *link) bindLocked(ep *endpoint, c subsys.Conn, a *wire.Attach) error {
	resume := l.s.Resume
	if a.IsMove {
		resume = l.s.Switch
	}
	if err := resume(a.Have); err != nil {
		return err
	}
	if l.conn != nil {
		l.detachLocked()
	}
	if l.life.PeerID() != 0 && !a.IsMove {
		l.traffic.resumed++
	}
	l.traffic.resent += uint64(l.s.Repeats())
	if c, ok := c.(subsys.Admitter); ok {
		c.Admit()
	}
	l.actLocked(l.life.Bound(a.Session, a.Gen))
	l.conn, l.endpoint = c, ep
	ep.isCurrent.Store(true)
	l.pace.rx = l.s.Expected() - 1
	_, l.canSplit = c.(subsys.Streamer)
	if b, ok := c.(subsys.Brief); ok && b.Retain() {
		l.brief = b
	}
	l.knowsTraces = a.Features&wire.FeatureTraces != 0
	if !l.hasMet && !l.knowsTraces {
		l.s.HideTraces()
	}
	l.hasMet = true
	l.since, l.outage = time.Now(), outage{}
	l.watchLocked()
	if name := c.Transport(); name != l.transport {
		if l.transport != "" {
			l.traffic.moved++
			l.d.log.Info("dispatch: change of route", "peer", l.peer, "from", l.transport, "to", name)
		}
		l.transport = name
	}
	l.releaseLocked()
	return nil
}
