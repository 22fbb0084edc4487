// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/internal/netsource"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

const (
	shakeTimeout = 2 * time.Second
	maxPending   = 256 // accepted conns that have not attached yet
)

// An endpoint is the sink of one conn: first it shakes hands, then it passes
// frames to the link.
type endpoint struct {
	d         *Dispatcher
	link      atomic.Pointer[link]
	isCurrent atomic.Bool // the conn is that of the link

	mu      lock.Mutex[levelEndpoint]
	step    uint8 // the frame type expected next
	trust   Trust // the acceptor's
	cluster uint64
	said    transcript
	peer    resource.GID
	lane    uint8            // the acceptor's
	want    *link            // the dialler's,
	from    subsys.Conn      // which it is to leave; nil: it has none
	mine    attach           // what we said
	outcome chan error       // the dialler's, one value
	expiry  *time.Timer      // the acceptor's,
	place   *subsys.Stranger // until it knows its peer
}

func (t *Trust) hash() uint64 { return xxhash.Sum64String(t.Cluster) }

// welcome is the acceptor's beginning. Beyond maxPending an older conn that has
// not shaken hands gives way, see subsys.Strangers.
func (d *Dispatcher) welcome(c subsys.Conn) subsys.Sink {
	trust := d.trust()
	ep := &endpoint{d: d, step: frameHello, cluster: trust.hash(), said: transcript{keys: trust.Keys}, trust: trust}
	source := netsource.OfURL(c.Remote())
	end := func(why string) {
		if ep.link.Load() == nil {
			d.often.Info(source, why, "remote", c.Remote())
			ep.settle()
			c.Close()
		}
	}
	// A conn may be cut before its place is noted: its time runs out then.
	place := d.strangers.Add(source, func() { end("dispatch: a peer gives way to newer ones, because it has not completed the handshake") })
	ep.mu.Lock()
	ep.place = place
	ep.expiry = time.AfterFunc(shakeTimeout, func() { end("dispatch: peer did not complete the handshake") })
	ep.mu.Unlock()
	return ep
}

// settle ends the time of being a stranger.
func (ep *endpoint) settle() {
	ep.mu.Lock()
	t, place := ep.expiry, ep.place
	ep.expiry = nil
	ep.mu.Unlock()
	if t != nil {
		t.Stop()
		place.Done()
	}
}

// shake dials addr and binds the conn to l, in place of from, which may be nil.
func (d *Dispatcher) shake(ctx context.Context, l *link, p subsys.Port, addr string, from subsys.Conn) error {
	trust := d.trust()
	ep := &endpoint{d: d, step: frameChallenge, cluster: trust.hash(), said: transcript{keys: trust.Keys}, want: l, from: from, peer: l.peer, outcome: make(chan error, 1)}
	c, err := p.Dial(ctx, addr, ep)
	if err != nil {
		return &dialError{err}
	}
	if err = trust.over(l.peer, c.Transport()); err != nil {
		c.Close()
		return err
	}
	h := hello{from: d.self, to: l.peer, lane: l.key.lane, cluster: ep.cluster}
	_, _ = rand.Read(h.nonce[:])
	said := h.append(nil)
	ep.said.said = slices.Clip(said) // which is another goroutine's from Start on
	c.Start()
	if err := ep.say(c, frameHello, said); err != nil {
		l.mu.Lock()
		l.life.proposed = 0 // where the answer came before say returned
		l.mu.Unlock()
		c.Close()
		return err
	}
	d.summon()
	select {
	case err = <-ep.outcome:
	case <-ctx.Done():
		err = fmt.Errorf("dispatch: handshake with %s: %w", addr, context.Cause(ctx))
		// It may have succeeded just now: then the link has the conn.
		if ep.link.Load() != nil {
			return nil
		}
	}
	l.mu.Lock()
	l.life.proposed = 0
	l.mu.Unlock()
	if err != nil {
		c.Close()
	}
	return err
}

// say sends one handshake frame. The dialler's first may be under way still when the answer
// asks for the next.
func (ep *endpoint) say(c subsys.Conn, typ uint8, b []byte) error {
	f := [1]subsys.Frame{{Data: b}}
	f[0].Type, f[0].Len = typ, uint32(len(b))
	ep.mu.Lock()
	n, err := c.Send(f[:])
	ep.mu.Unlock()
	if err == nil && n == 0 {
		err = errors.New("dispatch: no room for a handshake")
	}
	return err
}

// Frames implements subsys.Sink.
func (ep *endpoint) Frames(c subsys.Conn, fs []subsys.Frame) error {
	for i := range fs {
		if l := ep.link.Load(); l != nil {
			return l.receive(ep, c, fs[i:])
		}
		if err := ep.hear(c, &fs[i]); err != nil {
			ep.settle()
			ep.finish(err)
			ep.d.often.Info(netsource.OfURL(c.Remote()), "dispatch: handshake", "remote", c.Remote(), "err", err)
			return err
		}
	}
	return nil
}

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
	return l.makeRoom(ep, h)
}

// Writable implements subsys.Sink.
func (ep *endpoint) Writable(c subsys.Conn) {
	if l := ep.link.Load(); l != nil {
		l.onWritable(c)
	}
}

// Down implements subsys.Sink.
func (ep *endpoint) Down(c subsys.Conn, err error) {
	ep.settle()
	ep.finish(err)
	if l := ep.link.Load(); l != nil {
		l.mu.Lock()
		l.lose(c, err)
		l.mu.Unlock()
	}
}

// hear takes the handshake one step further.
func (ep *endpoint) hear(c subsys.Conn, f *subsys.Frame) error {
	if f.Type == frameRefuse && ep.want != nil && ep.step == frameReady {
		return ep.refused(f.Data)
	}
	if f.Type != ep.step {
		return fmt.Errorf("%w: frame type %d during the handshake", ErrProtocol, f.Type)
	}
	switch f.Type {
	case frameHello:
		return ep.onHello(c, f.Data)
	case frameChallenge:
		return ep.onChallenge(c, f.Data)
	case frameAttach:
		return ep.onAttach(c, f.Data)
	}
	return ep.onReady(c, f.Data)
}

func (ep *endpoint) onHello(c subsys.Conn, b []byte) error {
	var h hello
	if err := h.parse(b); err != nil {
		return err
	}
	switch {
	case h.cluster != ep.cluster:
		return fmt.Errorf("%w: %v is of another cluster", ErrRefused, h.from)
	case h.to != ep.d.self:
		return fmt.Errorf("%w: %v looks for %v, this is %v", ErrRefused, h.from, h.to, ep.d.self)
	case h.from == ep.d.self || h.from != h.from.Context() || h.from.IsZero():
		return fmt.Errorf("%w: %v is no peer", ErrRefused, h.from)
	}
	if err := ep.trust.over(h.from, c.Transport()); err != nil {
		return err
	}
	ep.peer, ep.lane = h.from, h.lane
	ep.said.said = append(ep.said.said, b...)
	ch := challenge{from: ep.d.self}
	_, _ = rand.Read(ch.nonce[:])
	part := ch.append(nil)
	part = append(part, ep.said.macs(frameChallenge, part)...)
	ep.said.said = append(ep.said.said, part...)
	ep.step = frameAttach
	return ep.say(c, frameChallenge, part)
}

func (ep *endpoint) onChallenge(c subsys.Conn, b []byte) error {
	var ch challenge
	if err := ch.parse(b); err != nil {
		return err
	}
	if ch.from != ep.peer {
		return fmt.Errorf("%w: %v answers in place of %v", ErrRefused, ch.from, ep.peer)
	}
	if !ep.said.proven(frameChallenge, b[:challengeLen], ch.macs) {
		return fmt.Errorf("%w: %v has another key", ErrRefused, ep.peer)
	}
	ep.said.said = append(ep.said.said, b...)
	l := ep.want
	l.mu.Lock()
	if l.life.hasEnded() || l.conn != nil && l.conn != ep.from {
		l.mu.Unlock()
		return fmt.Errorf("%w: linked meanwhile", ErrRefused)
	}
	ep.mine = attach{session: l.life.id, known: l.life.peerID, gen: l.life.propose(), have: l.s.rxNext.Load(), move: l.conn != nil, features: features}
	l.mu.Unlock()
	part := ep.mine.append(nil)
	ep.mine.mac = ep.said.mac(ep.said.keys[0], frameAttach, part[:32])
	part = ep.mine.append(part[:0])
	ep.said.said = append(ep.said.said, part...)
	ep.step = frameReady
	return ep.say(c, frameAttach, part)
}

func (ep *endpoint) onAttach(c subsys.Conn, b []byte) error {
	var a attach
	if err := a.parse(b); err != nil {
		return err
	}
	if !ep.said.proven(frameAttach, b[:32], a.mac[:]) {
		return fmt.Errorf("%w: %v has another key", ErrRefused, ep.peer)
	}
	ep.said.said = append(ep.said.said, b...)
	for {
		l, err := ep.d.linkOf(linkKey{ep.peer, ep.lane, ep.lane > 0})
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.hold()
		isWorse := a.move && l.conn != nil && l.worse(c)
		v := l.life.admits(&a, ep.d.self.Compare(ep.peer) < 0, l.s.idle(), isWorse)
		isAdmitted := v.why == 0 && v.fatal == nil
		if isAdmitted {
			err = l.bind(ep, c, &a)
		}
		if !isAdmitted || err != nil {
			l.unhold()
			l.mu.Unlock()
			if v.fatal != nil {
				l.die(v.fatal)
			}
			switch {
			case err != nil:
				return err
			case v.again:
				ep.d.unlink(l)
				continue
			}
			return ep.refuse(c, v.why, v.gen)
		}
		ready := attach{session: l.life.id, known: a.session, gen: a.gen, have: l.s.rxNext.Load(), features: features}
		ep.link.Store(l)
		l.pen.Store(penWriting) // Ready goes first
		l.binders--
		l.mu.Unlock()
		part := ready.append(nil)
		ready.mac = ep.said.mac(ep.said.keys[0], frameReady, part[:32])
		err = ep.say(c, frameReady, ready.append(part[:0]))
		ep.settle()
		l.mu.Lock()
		if err != nil {
			l.lose(c, err)
		}
		l.putDown(penIdle)
		l.write()
		l.mu.Unlock()
		return nil
	}
}

func (ep *endpoint) refuse(c subsys.Conn, why refusal, gen uint64) error {
	b := binary.LittleEndian.AppendUint32(nil, uint32(why))
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, gen)
	_ = ep.say(c, frameRefuse, b)
	return fmt.Errorf("%w: conn of %v not attached (%d)", ErrRefused, ep.peer, why)
}

func (ep *endpoint) refused(b []byte) error {
	if len(b) != refuseLen {
		return fmt.Errorf("%w: not a refusal", ErrProtocol)
	}
	why, gen := refusal(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint64(b[8:])
	l := ep.want
	err := fmt.Errorf("%w by %v (%d)", ErrRefused, ep.peer, why)
	l.mu.Lock()
	fatal := l.life.refused(why, gen)
	l.mu.Unlock()
	if fatal != nil {
		l.die(fatal)
	}
	return err
}

func (ep *endpoint) onReady(c subsys.Conn, b []byte) error {
	var a attach
	if err := a.parse(b); err != nil {
		return err
	}
	if !ep.said.proven(frameReady, b[:32], a.mac[:]) {
		return fmt.Errorf("%w: %v has another key", ErrRefused, ep.peer)
	}
	l := ep.want
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold()
	defer l.unhold()
	if err := l.life.confirms(&ep.mine, &a); err != nil {
		return err
	}
	a.move = ep.mine.move // as it was for the peer
	if err := l.bind(ep, c, &a); err != nil {
		return err
	}
	ep.link.Store(l)
	l.life.proposed = 0
	ep.finish(nil)
	return nil
}

// bind makes c, whose handshake has succeeded and whose sink is ep, the link's connection,
// in place of an earlier one, and resumes the session where a says. mu and the token must
// be held, and no goroutine may write.
func (l *link) bind(ep *endpoint, c subsys.Conn, a *attach) error {
	resume := l.s.resume
	if a.move {
		resume = l.s.handOver
	}
	if err := resume(a.have); err != nil {
		return err
	}
	if l.conn != nil {
		l.detach()
	}
	if l.life.peerID != 0 && !a.move {
		l.traffic.resumed++
	}
	l.traffic.resent += uint64(max(0, int32(l.s.most.Load()-l.s.sent)))
	if c, ok := c.(subsys.Admitter); ok {
		c.Admit()
	}
	l.act(l.life.bound(a.session, a.gen))
	l.conn, l.end = c, ep
	ep.isCurrent.Store(true)
	l.stream.rx = l.s.rxNext.Load() - 1
	_, streams := c.(subsys.Streamer)
	l.cuts = streams && a.features&featurePieces != 0
	l.since = time.Now()
	l.watch()
	if name := c.Transport(); name != l.over {
		if l.over != "" {
			l.traffic.moved++
			l.d.log.Info("dispatch: change of route", "peer", l.peer, "from", l.over, "to", name)
		}
		l.over = name
	}
	l.release()
	return nil
}
