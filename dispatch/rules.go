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
	"github.com/rocl-go/rocl/subsys"
)

// maxLanes is how many links two contexts have at most for the rules of either one: the common
// link, and those that the rules ask for.
const maxLanes = wire.MaxLanes

// ErrRule is returned by NewRules for rules with invalid values.
//
// Cause: a rule is invalid, or names a transport that the context lacks. Remedy: see [the
// rules](TRANSPORTS.md#rules).
var ErrRule = errors.New("rocl: invalid routing rule")

// A TagRange is the tags from First to Last.
type TagRange struct{ First, Last uint64 }

// A Rule says which transports carry messages that this context sends to other contexts. If several
// rules match a message, the first one counts. A message that no rule matches goes as if there were
// no rules.
//
// Messages of rules that name the same transports share a lane: a link of its own with the other
// context, beside the common one. Messages on different lanes have no order among each other.
// Messages of one tag from one resource to another keep their order. If their size chooses the
// lane, a message on another lane than its predecessor waits until the predecessor has been
// acknowledged, a millisecond or so.
type Rule struct {
	Tags []TagRange // none: any tag
	Min  int        // the smallest payload, in bytes
	Max  int        // the largest payload, in bytes; 0: any
	// Over names transports, best first; none: the common lane. An entry for a single network is
	// tcp://10.1.0.0/16: the peer listens in that network.
	Over []string
	Only bool // no other transports: if none of Over reaches a context, it is unreachable
}

// tagged reports whether the rule applies to a tag.
func (r *Rule) tagged(tag uint64) bool {
	for _, t := range r.Tags {
		if tag >= t.First && tag <= t.Last {
			return true
		}
	}
	return len(r.Tags) == 0
}

// sized reports whether the rule depends on the size of a message.
func (r *Rule) sized() bool { return r.Min > 0 || r.Max > 0 }

// fits reports whether the rule applies to a message.
func (r *Rule) fits(tag uint64, size int) bool {
	return size >= r.Min && (r.Max == 0 || size <= r.Max) && r.tagged(tag)
}

// check returns an error that matches ErrRule if a value of the rule is invalid.
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

// Rules are rules that have been checked, and their lanes. nil means that there are no rules.
type Rules struct {
	rules []Rule
	lane  []uint8 // the lane of each rule
	lanes []*Rule // one rule of each lane; nil for the common lane
}

// NewRules checks rules. Without any rule it returns nil.
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
	if len(p.lanes) > maxLanes {
		return nil, fmt.Errorf("%w: %d lanes, at most %d", ErrRule, len(p.lanes), maxLanes)
	}
	return p, nil
}

// pick returns the lane of a message. varies reports whether other messages with its tag may take
// another lane.
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
		if !r.sized() { // the rule fits all messages that have come this far
			break
		}
	}
	return lane, varies
}

// order puts routes in the order of a lane, and leaves out the routes that the lane may not use.
func (r *Rule) order(routes []route) (out []route) {
	for _, name := range r.Over {
		transport, network, _ := parseOver(name) // NewRules has checked the name
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

// parseOver splits an entry of Rule.Over.
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

// Transports returns the names of the transports in Over.
func (r *Rule) Transports() (names []string) {
	for _, s := range r.Over {
		names = append(names, transportOf(s))
	}
	return names
}

// A spread is a flow over several lanes.
type spread struct {
	rules *Rules
	base  *Flow // the flow over the common lane
	d     *Dispatcher
	peer  resource.GID

	mu    lock.Mutex[levelSpread]
	by    []*Flow       // the flows over the other lanes, once used
	floor []watermark   // for each lane, what it had taken before the first message
	marks [][]watermark // for each class of messages, if sizes choose lanes: by lane
}

// classes is how many classes of messages a flow distinguishes, by origin and tag. Messages of one
// class wait for each other when they change lanes.
const classes = 16

// A watermark is the last message of a class that took a lane. It is among the frames up to seq, or
// it is one of the first put messages of the flow's line. If the link leaves messages to a
// successor, it may be among these.
type watermark struct {
	l   *link // nil: no message, or it has been acknowledged
	seq uint32
	f   *Flow // nil: the message was not in the line
	put uint64
	// isHeld says that the message may be any message of the link, also one that is held.
	isHeld bool
}

// markLocked returns the watermark of the last message that was sent over f. mu must be held.
func (l *link) markLocked(f *Flow) watermark {
	w := watermark{l: l, seq: l.s.Next() - 1}
	if f != nil && f.line.IsWaiting() {
		w.f, w.put = f, f.line.Put()
	}
	return w
}

// join returns the later of two watermarks of one class and lane.
func (w watermark) join(o watermark) watermark {
	if w.l != o.l {
		return o
	}
	if int32(o.seq-w.seq) > 0 { // another goroutine may have noted a later one first
		w.seq = o.seq
	}
	if o.put > w.put || w.f == nil {
		w.f, w.put = o.f, o.put
	}
	return w
}

// lane returns the flow over a lane. A flow with a link that has ended is replaced.
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

// ended reports whether the link has ended. mu must not be held.
func (l *link) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life.HasEnded()
}

// accept is Flow.accept over the lane that the rules choose. It first waits for earlier messages of
// the class on other lanes.
func (s *spread) accept(ctx context.Context, src uint32, tag uint64, p []byte, b *buffers.Buffer, why purpose) (copied bool, err error) {
	n, varies := s.rules.pick(tag, len(p))
	f, err := s.lane(n)
	if err != nil {
		return false, err
	}
	if !varies {
		return f.accept(ctx, src, tag, p, b, nil, why)
	}
	class := classOf(src, tag)
	if err := s.follow(ctx, class, n, f); err != nil {
		return false, err
	}
	var at watermark
	if copied, err = f.accept(ctx, src, tag, p, b, &at, why); err == nil && (copied || b != nil) {
		s.mark(class, n, at)
	}
	return copied, err
}

// classOf returns the class of a message.
func classOf(src uint32, tag uint64) uint64 {
	return (uint64(src)*0x9e3779b97f4a7c15 ^ tag*0xc2b2ae3d27d4eb4f) >> 32 % classes
}

// classLocked returns the marks of a class of messages. Before the first message of the class,
// another flow may have led to the same resource, over a common link that has ended. What that flow
// sent over other lanes may still be under way. mu must be held.
func (s *spread) classLocked(n uint64) []watermark {
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
			if f := l.flows[s.base.dst]; !l.isIdleLocked() {
				s.floor[lane] = l.markLocked(f)
				s.floor[lane].isHeld = f.holdsLocked()
			}
			l.mu.Unlock()
		}
	}
	if s.marks[n] == nil {
		s.marks[n] = slices.Clone(s.floor)
	}
	return s.marks[n]
}

// follow waits until the earlier messages of a class on lanes other than n have been acknowledged,
// or their link has ended. Meanwhile the link of f, the flow of lane n, dials if it has no
// connection, so that the message waits once for connections of both lanes. If that link ends
// meanwhile, follow returns the reason.
func (s *spread) follow(ctx context.Context, class uint64, n uint8, f *Flow) error {
	for other := range s.rules.lanes {
		if other == int(n) {
			continue
		}
		s.mu.Lock()
		w := s.classLocked(class)[other]
		s.mu.Unlock()
		if w.l == nil {
			continue
		}
		lived := f.requestConn()
		if err := w.passed(ctx, s.covers); err != nil {
			return err
		}
		s.dropMark(class, other, w)
		if lived && f.Dead() {
			return f.gone
		}
	}
	return nil
}

// requestConn makes the link of a flow dial if it has no connection. It reports false if the flow
// has failed, or leads to a resource of this process.
func (f *Flow) requestConn() bool {
	if f.l == nil {
		return false
	}
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	if f.gone == nil {
		f.l.actLocked(f.l.life.RequestConn())
	}
	return f.gone == nil
}

// dropMark forgets the watermark w of a class, which has been acknowledged: the messages up to w
// are in their mailbox.
func (s *spread) dropMark(class uint64, lane int, w watermark) {
	s.mu.Lock()
	if m := &s.marks[class][lane]; *m == w {
		*m = watermark{}
	}
	s.mu.Unlock()
}

// mark notes that a message of a class took lane n, up to the watermark at.
func (s *spread) mark(class uint64, n uint8, at watermark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &s.classLocked(class)[n]
	*m = m.join(at)
}

// covers selects the messages to the target of the spread, for passed.
func (s *spread) covers(_ *link, h *subsys.Header) bool { return h.Dst == s.base.dst }

// passed waits until the peer has acknowledged the frames of a watermark. If the link ends, it
// waits until the frames that were not acknowledged have been counted as undelivered. Of messages
// that are held, or that a successor has, it waits for those that covers selects.
func (w watermark) passed(ctx context.Context, covers func(*link, *subsys.Header) bool) error {
	next, err := w.passedOver(ctx, covers)
	for _, w := range next {
		if err == nil {
			err = w.passed(ctx, covers)
		}
	}
	return err
}

// passedOver is passed for one link. It returns the watermarks that are to be passed next.
func (w watermark) passedOver(ctx context.Context, covers func(*link, *subsys.Header) bool) (next []watermark, _ error) {
	l := w.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		seq := w.seq
		if l.heir != nil {
			return []watermark{{l: l.heir, isHeld: true}}, nil
		}
		if w.isHeld {
			if !l.holdsLocked(covers) {
				return l.underWayLocked(nil, covers), nil
			}
			seq = l.s.Next() // check again when more has passed
		} else if w.f != nil {
			if w.f.line.Gone() < w.put {
				seq = l.s.Next() // the message is still in the line: check again when more has passed
			} else {
				w.seq, w.f = l.s.Next()-1, nil
				continue
			}
		}
		if int32(l.s.Head()-seq) > 0 { // true also after the session has been drained
			return next, nil
		}
		before := l.s.Next()
		if l.writeLocked(); l.s.Next() != before || int32(l.s.Head()-seq) > 0 { // the frames were paced
			continue
		}
		w := l.d.waiter()
		w.charge = uint64(seq)
		l.behind.push(w)
		l.attendLocked()
		if !l.callWriter() { // act on earlier acknowledgements first
			l.releaseLocked()
		}
		if err := l.await(ctx, &l.behind, w); err != nil {
			return next, err
		}
	}
}

// wakePassedLocked wakes the senders that wait for frames that have been acknowledged. mu must be
// held.
func (l *link) wakePassedLocked() {
	for w := l.behind.first; w != nil; {
		next := w.next
		if int32(l.s.Head()-uint32(w.charge)) > 0 {
			l.behind.remove(w)
			w.fire()
		}
		w = next
	}
}

// A linkKey names a link of a context: its peer, the lane, and whether it is a lane of the peer's
// rules. The common lane belongs to neither side's rules.
type linkKey struct {
	peer   resource.GID
	lane   uint8
	theirs bool
}

// known returns the link with the key k, or nil if there is none. It makes no link.
func (d *Dispatcher) known(k linkKey) *link {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.links[k]
}

// linkOf returns the link of a key, and makes it if necessary.
func (d *Dispatcher) linkOf(k linkKey) (*link, error) {
	l := d.known(k)
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
