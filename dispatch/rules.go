// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/resource"
)

// MaxLanes is how many links two contexts have at most in either's name: the
// common one and those that its rules ask for.
const MaxLanes = wire.MaxLanes

// ErrRule says that rules make no sense.
var ErrRule = errors.New("rocl: rule")

// A TagRange is that of the tags from First to Last.
type TagRange struct{ First, Last uint64 }

// A Rule says over what messages go that this context sends to others. Of
// several that fit a message the first counts; what none fits goes as without
// rules.
//
// Messages of rules that name the same transports share a lane: a link of its
// own with the other context, beside the common one. What takes different lanes
// has no order among it. Messages of one tag from one resource to another keep
// theirs: where their size decides, a message that takes another lane than the
// one before waits until that one has been acknowledged, a millisecond or so.
type Rule struct {
	Tags []TagRange // none: any tag
	Min  int        // the least payload, in bytes
	Max  int        // the largest; 0: any
	// Over names transports, best first; none: the common lane. That of one
	// network alone is tcp://10.1.0.0/16: the peer listens there.
	Over []string
	Only bool // over no others: where none of them reaches a context, it is unreachable
}

func (r *Rule) tagged(tag uint64) bool {
	for _, t := range r.Tags {
		if tag >= t.First && tag <= t.Last {
			return true
		}
	}
	return len(r.Tags) == 0
}

func (r *Rule) sized() bool { return r.Min > 0 || r.Max > 0 }

func (r *Rule) fits(tag uint64, size int) bool {
	return size >= r.Min && (r.Max == 0 || size <= r.Max) && r.tagged(tag)
}

func (r *Rule) check() error {
	for _, t := range r.Tags {
		if t.First > t.Last {
			return fmt.Errorf("%w: tags from %d to %d", ErrRule, t.First, t.Last)
		}
	}
	switch {
	case r.Min < 0 || r.Max < 0 || r.Max > 0 && r.Min > r.Max:
		return fmt.Errorf("%w: payloads from %d to %d bytes", ErrRule, r.Min, r.Max)
	case r.Only && len(r.Over) == 0:
		return fmt.Errorf("%w: only over transports that are not named", ErrRule)
	}
	for i, name := range r.Over {
		if _, _, err := parseOver(name); err != nil {
			return err
		}
		if slices.Contains(r.Over[:i], name) {
			return fmt.Errorf("%w: over %q, twice", ErrRule, name)
		}
	}
	return nil
}

// Rules are rules that have been checked, and their lanes. nil is none.
type Rules struct {
	rules []Rule
	lane  []uint8 // of each rule
	lanes []*Rule // one rule of each lane; that of the common one is nil
}

// NewRules checks rules. Without any it returns nil.
func NewRules(rules ...Rule) (*Rules, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	p := &Rules{rules: slices.Clone(rules), lanes: []*Rule{nil}}
	for i := range p.rules {
		r := &p.rules[i]
		if err := r.check(); err != nil {
			return nil, err
		}
		lane := 0
		if len(r.Over) > 0 {
			lane = slices.IndexFunc(p.lanes, func(o *Rule) bool {
				return o != nil && o.Only == r.Only && slices.Equal(o.Over, r.Over)
			})
		}
		if lane < 0 {
			lane = len(p.lanes)
			p.lanes = append(p.lanes, r)
		}
		p.lane = append(p.lane, uint8(lane))
	}
	if len(p.lanes) > MaxLanes {
		return nil, fmt.Errorf("%w: %d lanes, at most %d", ErrRule, len(p.lanes), MaxLanes)
	}
	return p, nil
}

// pick says which lane a message takes, and whether others with its tag may take
// another.
func (p *Rules) pick(tag uint64, size int) (lane uint8, varies bool) {
	found := false
	for i := range p.rules {
		r := &p.rules[i]
		if !r.tagged(tag) {
			continue
		}
		varies = varies || r.sized()
		if !found && r.fits(tag, size) {
			lane, found = p.lane[i], true
		}
		if !r.sized() { // it fits all that have come so far
			break
		}
	}
	return lane, varies
}

// order puts routes in the order of a lane, and leaves out those it may not use.
func (r *Rule) order(routes []route) (out []route) {
	for _, name := range r.Over {
		transport, network, _ := parseOver(name) // checked
		for _, o := range routes {
			if o.transport == transport {
				o.net = network
				out = append(out, o)
			}
		}
	}
	if !r.Only {
		for _, o := range routes {
			if !slices.Contains(r.Over, o.transport) {
				out = append(out, o)
			}
		}
	}
	return out
}

// parseOver takes an entry of Rule.Over apart.
func parseOver(s string) (transport string, network netip.Prefix, err error) {
	transport, cidr, cut := strings.Cut(s, "://")
	if cut {
		network, err = netip.ParsePrefix(cidr)
	}
	if err != nil || transport == "" {
		return "", netip.Prefix{}, fmt.Errorf("%w: over %q, which is neither a transport nor TRANSPORT://NETWORK/BITS", ErrRule, s)
	}
	return transport, network.Masked(), nil
}

// Transports are the names of those that r is about.
func (r *Rule) Transports() (names []string) {
	for _, s := range r.Over {
		names = append(names, transportOf(s))
	}
	return names
}

// A spread is a flow over several lanes.
type spread struct {
	rules *Rules
	base  *Flow // that of the common lane
	d     *Dispatcher
	peer  resource.GID

	mu    lock.Mutex[levelSpread]
	by    []*Flow       // of the other lanes, once used
	floor []watermark   // what lanes had taken before the first message, by lane
	marks [][]watermark // where sizes decide: of each class of messages, by lane
}

// classes is how many classes of messages a flow tells apart: by origin and tag.
// Those of one class wait for each other where they change lanes.
const classes = 16

// A watermark is the last message of a class that took a lane: it is among the frames
// up to seq, or it is one of the first put of the flow's line.
type watermark struct {
	l   *link // nil: none, or it has been acknowledged
	seq uint32
	f   *Flow // nil: it was not in the line
	put uint64
}

// mark is the watermark of what was sent last over f. mu is held.
func (l *link) mark(f *Flow) watermark {
	w := watermark{l: l, seq: l.s.Next() - 1}
	if f != nil && f.line.IsWaiting() {
		w.f, w.put = f, f.line.Put()
	}
	return w
}

// join is the later of two watermarks of one class and lane.
func (w watermark) join(o watermark) watermark {
	if w.l != o.l {
		return o
	}
	if int32(o.seq-w.seq) > 0 { // others may have been quicker to say so
		w.seq = o.seq
	}
	if o.put > w.put || w.f == nil {
		w.f, w.put = o.f, o.put
	}
	return w
}

// lane is the flow over a lane. One whose link has ended is made anew.
func (s *spread) lane(n uint8) (*Flow, error) {
	if n == 0 {
		return s.base, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = make([]*Flow, len(s.rules.lanes))
	}
	if f := s.by[n]; f != nil && (f.l == nil || !f.l.ended()) {
		return f, nil
	}
	if o, _ := s.d.neighbour(s.peer, s.rules.lanes[n]); o.Dispatcher != nil {
		f, err := s.d.directly(o, s.base.dst)
		if err != nil {
			return nil, err
		}
		s.by[n] = &Flow{dst: f.dst, mb: f.mb, in: f.in, to: o, lane: n}
		return s.by[n], nil
	}
	l, err := s.d.linkOf(linkKey{peer: s.peer, lane: n})
	if err != nil {
		return nil, err
	}
	s.by[n] = l.flow(s.base.dst)
	return s.by[n], nil
}

func (l *link) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life.HasEnded()
}

func (s *spread) accept(ctx context.Context, src uint32, tag uint64, p []byte, b *buffers.Buffer, call uint64) (copied bool, err error) {
	n, varies := s.rules.pick(tag, len(p))
	f, err := s.lane(n)
	if err != nil {
		return false, err
	}
	if !varies {
		return f.accept(ctx, src, tag, p, b, nil, call)
	}
	class := classOf(src, tag)
	if err := s.follow(ctx, class, n); err != nil {
		return false, err
	}
	var at watermark
	if copied, err = f.accept(ctx, src, tag, p, b, &at, call); err == nil && (copied || b != nil) {
		s.mark(class, n, at)
	}
	return copied, err
}

func classOf(src uint32, tag uint64) uint64 {
	return (uint64(src)*0x9e3779b97f4a7c15 ^ tag*0xc2b2ae3d27d4eb4f) >> 32 % classes
}

// class are the marks of a class of messages. Before its first message there may
// have been a flow to the same resource over a common link that has ended: what
// it sent over other lanes may be under way. mu is held.
func (s *spread) class(n uint64) []watermark {
	if s.marks == nil {
		s.marks = make([][]watermark, classes)
		s.floor = make([]watermark, len(s.rules.lanes))
		d := s.d
		for lane := range s.floor {
			d.mu.RLock()
			l := d.links[linkKey{peer: s.peer, lane: uint8(lane)}]
			d.mu.RUnlock()
			if lane == 0 || l == nil {
				continue
			}
			l.mu.Lock()
			if !l.s.IsIdle() {
				s.floor[lane] = l.mark(l.flows[s.base.dst])
			}
			l.mu.Unlock()
		}
	}
	if s.marks[n] == nil {
		s.marks[n] = slices.Clone(s.floor)
	}
	return s.marks[n]
}

// follow waits until what went before in a class over other lanes than n is
// where it should be.
func (s *spread) follow(ctx context.Context, class uint64, n uint8) error {
	for other := range s.rules.lanes {
		if other == int(n) {
			continue
		}
		s.mu.Lock()
		w := s.class(class)[other]
		s.mu.Unlock()
		if w.l == nil {
			continue
		}
		if err := w.passed(ctx); err != nil {
			return err
		}
		s.hasPassed(class, other, w)
	}
	return nil
}

// hasPassed forgets the watermark w of a class, which has been acknowledged: that is, what was
// sent before it is in its mailbox.
func (s *spread) hasPassed(class uint64, lane int, w watermark) {
	s.mu.Lock()
	if m := &s.marks[class][lane]; *m == w {
		*m = watermark{}
	}
	s.mu.Unlock()
}

func (s *spread) mark(class uint64, n uint8, at watermark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &s.class(class)[n]
	*m = m.join(at)
}

// passed waits until the peer has acknowledged the frames of a watermark, or until the link
// has ended and what was not acknowledged has been counted as undelivered.
func (w watermark) passed(ctx context.Context) error {
	l := w.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		seq := w.seq
		if w.f != nil {
			if w.f.line.Gone() < w.put {
				seq = l.s.Next() // it is in the line still: look again when more has passed
			} else {
				w.seq, w.f = l.s.Next()-1, nil
				continue
			}
		}
		if int32(l.s.Head()-seq) > 0 { // or the session has been drained
			return nil
		}
		before := l.s.Next()
		if l.write(); l.s.Next() != before || int32(l.s.Head()-seq) > 0 { // it was paced
			continue
		}
		w := l.d.waiter()
		w.charge = uint64(seq)
		l.behind.push(w)
		l.attend()
		if !l.calls() { // what was acknowledged before
			l.release()
		}
		if err := l.await(ctx, &l.behind, w); err != nil {
			return err
		}
	}
}

// pass wakes those who wait for frames that have been acknowledged. mu is held.
func (l *link) pass() {
	for w := l.behind.first; w != nil; {
		next := w.next
		if int32(l.s.Head()-uint32(w.charge)) > 0 {
			l.behind.remove(w)
			w.fire()
		}
		w = next
	}
}

// A linkKey names a link of a context: its peer, the lane, and whether it is a
// lane of the peer's rules. The common one is nobody's.
type linkKey struct {
	peer   resource.GID
	lane   uint8
	theirs bool
}

// linkOf finds or makes a link.
func (d *Dispatcher) linkOf(k linkKey) (*link, error) {
	d.mu.RLock()
	l := d.links[k]
	d.mu.RUnlock()
	if l != nil {
		return l, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.links[k]; l != nil {
		return l, nil
	}
	if d.closing {
		return nil, ErrClosed
	}
	l = newLink(d, k)
	if k.lane > 0 && !k.theirs {
		l.rule = d.cfg.Rules.lanes[k.lane]
	}
	d.links[k] = l
	return l, nil
}
