// SPDX-License-Identifier: Apache-2.0

package search

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// Defaults of Config.
const (
	DefaultFan   = 16
	Flat         = 1<<16 - 1 // the fan-out of a tree with one level, of up to so many nodes
	DefaultHop   = 20 * time.Millisecond
	MostCast     = 128 // others up to whom Auto casts, if it can: they all answer at once (docs/SCALING.md says why so many)
	MostFlat     = 64  // others up to whom Auto asks each: for more a tree is sooner where a hop is quick
	DefaultTries = 5   // where one packet of twenty is lost, one living node of 100,000 is not reached
)

const (
	castFan    = 1                    // of a question that each who hears it answers for itself
	keepDone   = 5 * time.Second      // how long a finished part is remembered, for those who ask again
	maxJobs    = 1 << 14              // parts under way for others; beyond it they are not taken
	maxFirst   = 8                    // nodes asked because of their summaries before everybody
	firstTries = 2                    // of them
	maxFailed  = 128                  // named in one packet
	maxBusy    = 1 << 8               // times that a head may say so of one part
	pace       = 5 * time.Microsecond // for which one packet keeps the sender of many
)

// Config is what a Node needs. Self, Members, Local and Send are required.
type Config struct {
	Self     resource.NodeID
	Members  func() []resource.NodeID                               // all live nodes with Self, in order; not changed afterwards
	Local    func(question []byte) (answer []byte, ok bool)         // which is valid until the next
	Send     func(to resource.NodeID, p *Packet)                    // p is lent for the call
	May      func(search uint64, question []byte) []resource.NodeID // whose summary has it, a few of them; may be nil
	Cast     func(p *Packet)                                        // sends to all; nil if the network cannot
	Room     int                                                    // bytes that a cast carries, what does not fit is asked of Each; 0: any
	Strategy strategy.Strategy
	Fan      int              // 0: DefaultFan
	Hop      time.Duration    // what one hop there and back takes at most, mostly; 0: DefaultHop
	Now      func() time.Time // for a Search without a time; nil: time.Now
	Tries    int              // of one node, before it counts as failed; 0: DefaultTries
}

// A Result is how a search ended.
type Result struct {
	Found   bool
	From    resource.NodeID // who answered
	Answer  []byte
	Covered int               // nodes that said no
	Failed  []resource.NodeID // nodes that could not be asked: a no is definite if there are none
}

// Definite says that nothing is left to ask.
func (r *Result) Definite() bool { return r.Found || len(r.Failed) == 0 }

// An Asker is told, once, how his search has ended.
type Asker interface{ Over(Result) }

// Func is an Asker that is no more than that.
type Func func(Result)

// Over implements Asker.
func (f Func) Over(r Result) { f(r) }

// A Node is one member's part in all searches. Its methods are called by one
// goroutine at a time.
type Node struct {
	cfg  Config
	next uint64
	jobs map[key]*job
	byID map[ID][]*job // of these, those not done
	own  map[uint64]*own
	due  alarms
	sum  uint64 // of Self
	lent Packet
	free []*own // to be used again
}

// mostFree is how many searches that have ended are kept to be used again: for a
// question that is answered in microseconds garbage is much of the price.
const mostFree = 64

// key names a part: who asks for it tells ours from theirs.
type key struct {
	id     ID
	lo, hi resource.NodeID
	from   resource.NodeID
}

// own is a search of this node.
type own struct {
	id       uint64
	question []byte
	asker    Asker
	trace    *Trace            // nil: nobody wants to know
	first    []resource.NodeID // nodes asked because of their summaries, and not heard of
	only     bool              // first is everybody there is: one
	one      [1]resource.NodeID
	tries    int
	late     alarm
	cover    *job // the second half
}

// job is a part that this node covers, for another or for a search of its own.
type job struct {
	key
	fan      int
	question []byte
	parts    map[resource.NodeID]*part // still to be answered, by head
	covered  uint32
	sum      uint64
	failed   []resource.NodeID
	reply    *Packet // once it is done
	forget   alarm   // and then
	own      *own
}

// part is a range of which a head was asked.
type part struct {
	members []resource.NodeID // as we know them
	tries   int               // since the head was last heard of
	busy    int               // times it said so
	late    alarm             // when patience ends
}

func (p *part) head() resource.NodeID { return p.members[0] }
func (p *part) last() resource.NodeID { return p.members[len(p.members)-1] }

// NewNode makes a node.
func NewNode(cfg Config) *Node {
	if cfg.Fan < 2 {
		cfg.Fan = DefaultFan
	}
	cfg.Fan = min(cfg.Fan, Flat)
	if cfg.Hop <= 0 {
		cfg.Hop = DefaultHop
	}
	if cfg.Tries <= 0 {
		cfg.Tries = DefaultTries
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	// A node that was started anew must not repeat its numbers: others may still
	// have the answers to its last questions ready.
	return &Node{cfg: cfg, sum: sum(cfg.Self), next: rand.Uint64(), jobs: map[key]*job{}, byID: map[ID][]*job{}, own: map[uint64]*own{}}
}

func sum(n resource.NodeID) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	return xxhash.Sum64(b[:])
}

// Checksum returns a checksum of a list of nodes, which is never 0. Lists in
// different orders have the same one.
func Checksum(nodes []resource.NodeID) uint64 {
	var all uint64
	for _, n := range nodes {
		all ^= sum(n)
	}
	return max(all, 1)
}

// Search asks all other nodes and tells by the end of it once. The caller has looked at
// what it holds itself. It returns a number for Cancel. Without a time, Begun
// has to be called when what it sends has gone.
func (n *Node) Search(now time.Time, question []byte, by Asker) uint64 {
	return n.SearchTraced(now, question, nil, by)
}

// Begun says when a search without a time has begun. A clock, and an alarm, cost
// as much as a question: so they are had while it is under way.
func (n *Node) Begun(now time.Time, id uint64) {
	if s := n.own[id]; s != nil && s.cover == nil && s.late.place == 0 {
		n.due.set(&s.late, now.Add(n.cfg.Hop))
	}
}

// SearchTraced is Search that tells t, until the search is over, what happens.
func (n *Node) SearchTraced(now time.Time, question []byte, t *Trace, by Asker) uint64 {
	s := n.begin(question, t, by)
	if all := n.cfg.Members(); len(all) == 2 { // nobody to choose from
		s.one[0], s.only = all[0], true
		if all[0] == n.cfg.Self {
			s.one[0] = all[1]
		}
		s.first = s.one[:]
	} else if n.cfg.May != nil && !t.everybody() {
		for _, m := range n.cfg.May(s.id, question) {
			if m != n.cfg.Self && len(s.first) < maxFirst {
				s.first = append(s.first, m)
			}
		}
	}
	id := s.id // s may have ended when it has begun
	n.askFirst(now, s)
	return id
}

func (n *Node) begin(question []byte, t *Trace, by Asker) *own {
	var s *own
	if k := len(n.free); k > 0 {
		s, n.free = n.free[k-1], n.free[:k-1]
	} else {
		s = &own{}
		s.late.ring = func(now time.Time) { n.askFirst(now, s) }
	}
	n.next++
	s.id, s.question, s.trace, s.asker = n.next, question, t, by
	n.own[s.id] = s
	return s
}

// SearchAmong asks some nodes alone, each by itself: who holds the identifier it
// minted, or did not answer before. A node that is named twice is asked as one. It is
// otherwise as SearchTraced; t may be nil.
func (n *Node) SearchAmong(now time.Time, who []resource.NodeID, question []byte, t *Trace, by Asker) uint64 {
	s := n.begin(question, t, by)
	id, j := s.id, n.ours(s)
	j.fan = Flat
	if len(who) > 1 {
		who = slices.Compact(slices.Sorted(slices.Values(who)))
	}
	for _, m := range who {
		if _, known := slices.BinarySearch(n.cfg.Members(), m); known && m != n.cfg.Self {
			n.ask(now, j, &part{members: []resource.NodeID{m}})
		} else {
			n.count(j, m)
			j.failed = append(j.failed, m)
		}
	}
	n.settle(now, j)
	return id
}

// Asker is whose search has the number, nil if it has ended.
func (n *Node) Asker(id uint64) Asker {
	if s := n.own[id]; s != nil {
		return s.asker
	}
	return nil
}

// Cancel forgets a search; its asker is told nothing.
func (n *Node) Cancel(id uint64) {
	if s := n.own[id]; s != nil {
		n.end(s)
	}
}

// end forgets a search of our own; s is another's from then on.
func (n *Node) end(s *own) {
	delete(n.own, s.id)
	n.due.stop(&s.late)
	if s.cover != nil {
		n.drop(s.cover)
	}
	if len(n.free) < mostFree {
		late := s.late
		*s = own{late: late}
		n.free = append(n.free, s)
	}
}

// ours begins the one part of a search of our own.
func (n *Node) ours(s *own) *job {
	j := &job{key: key{ID{n.cfg.Self, s.id}, 0, 1<<64 - 1, n.cfg.Self}, fan: n.cfg.Fan, question: s.question, own: s}
	s.cover = j
	n.add(j)
	return j
}

func (n *Node) add(j *job) {
	j.parts = map[resource.NodeID]*part{}
	j.forget.ring = func(time.Time) { delete(n.jobs, j.key) }
	n.jobs[j.key] = j
	n.byID[j.id] = append(n.byID[j.id], j)
}

// rest says that j asks nobody any more.
func (n *Node) rest(j *job) {
	for _, p := range j.parts {
		n.due.stop(&p.late)
	}
	j.parts = nil
	left := slices.DeleteFunc(n.byID[j.id], func(o *job) bool { return o == j })
	if len(left) == 0 {
		delete(n.byID, j.id)
	} else {
		n.byID[j.id] = left
	}
}

func (n *Node) drop(j *job) {
	if n.jobs[j.key] == j {
		delete(n.jobs, j.key)
		n.due.stop(&j.forget)
		n.rest(j)
	}
}

// askFirst asks those whose summaries have it, or everybody if there are none.
func (n *Node) askFirst(now time.Time, s *own) {
	if s.tries > 0 {
		for _, m := range s.first {
			s.trace.silent(m)
		}
	}
	tries, how := firstTries, HowSummary
	if s.only {
		tries, how = n.cfg.Tries, HowFlat
	}
	if len(s.first) > 0 && s.tries < tries {
		s.tries++
		if !now.IsZero() { // else Begun does
			n.due.set(&s.late, now.Add(n.cfg.Hop))
		}
		for _, m := range s.first {
			s.trace.asked(now, how, m)
			n.send(m, Packet{Type: typeAsk, Fan: uint16(n.cfg.Fan), ID: ID{n.cfg.Self, s.id}, Lo: m, Hi: m, Body: s.question})
		}
		return
	}
	if s.only {
		n.over(s, Result{Covered: 2 - len(s.first), Failed: slices.Clone(s.first)}) // which may be s.one
		return
	}
	if now.IsZero() {
		now = n.cfg.Now()
	}
	s.first = nil
	n.due.stop(&s.late)
	j := n.ours(s)
	n.count(j, n.cfg.Self)
	others := n.others(j)
	switch n.choose(s.trace.strategyOr(n.cfg.Strategy), len(others), len(s.question)) {
	case strategy.Broadcast:
		j.fan = Flat
		n.cast(now, j, others)
	case strategy.Unicast:
		j.fan = Flat
		n.cover(now, j, others)
	default:
		n.cover(now, j, others)
	}
	n.settle(now, j)
}

// choose returns the strategy by which a search with s asks a number of other members a question of
// some bytes.
func (n *Node) choose(s strategy.Strategy, others, bytes int) strategy.Strategy {
	canCast := n.cfg.Cast != nil && (n.cfg.Room == 0 || head+bytes <= n.cfg.Room)
	if s == strategy.Auto {
		switch {
		case canCast && others > 1 && others <= MostCast:
			return strategy.Broadcast
		case others <= MostFlat:
			return strategy.Unicast
		}
		return strategy.Tree
	}
	if s == strategy.Broadcast && (!canCast || others == 0) {
		return strategy.Unicast
	}
	return s
}

func (n *Node) count(j *job, m resource.NodeID) { j.covered++; j.sum ^= sum(m) }

// others are the members of j's range but for this node, and for the asker: it
// has looked.
func (n *Node) others(j *job) []resource.NodeID {
	all := n.cfg.Members()
	lo, _ := slices.BinarySearch(all, j.lo)
	hi, ok := slices.BinarySearch(all, j.hi)
	if ok {
		hi++
	}
	others := make([]resource.NodeID, 0, hi-lo)
	for _, m := range all[lo:hi] {
		if m != n.cfg.Self && m != j.id.Asker {
			others = append(others, m)
		}
	}
	return others
}

// cover cuts members into parts and asks their heads.
func (n *Node) cover(now time.Time, j *job, members []resource.NodeID) {
	for k := min(j.fan, len(members)); k > 0; k-- {
		size := (len(members) + k - 1) / k
		n.ask(now, j, &part{members: members[:size:size]})
		members = members[size:]
	}
}

// cast asks each of members, all with one packet.
func (n *Node) cast(now time.Time, j *job, members []resource.NodeID) {
	for i := range members {
		j.trace().asked(now, HowCast, members[i])
		n.await(now, j, &part{members: members[i : i+1 : i+1]})
	}
	n.cfg.Cast(&Packet{Type: typeAsk, Fan: castFan, ID: j.id, Hi: 1<<64 - 1, Body: j.question})
}

// await expects the head of a part to be heard of.
func (n *Node) await(now time.Time, j *job, p *part) {
	p.tries++
	p.late.ring = func(now time.Time) { n.again(now, j, p) }
	j.parts[p.head()] = p
	// Those asked later are sent to later, and answer later.
	n.due.set(&p.late, now.Add(n.cfg.Hop+2*pace*time.Duration(len(j.parts))))
}

// ask asks the head of a part.
func (n *Node) ask(now time.Time, j *job, p *part) {
	n.await(now, j, p)
	j.trace().asked(now, byCover(len(p.members)), p.members...)
	n.send(p.head(), Packet{Type: typeAsk, Fan: uint16(j.fan), ID: j.id, Lo: p.head(), Hi: p.last(), Body: j.question})
}

// Timeless says that Receive does not look at the time for this packet: most are
// so, and a clock costs as much as a question.
func (n *Node) Timeless(p *Packet) bool {
	switch p.Type {
	case typeAsk:
		return p.Lo == p.Hi || p.Fan == castFan
	case typeFound:
		s := n.own[p.ID.N]
		return s != nil && s.trace == nil && p.ID.Asker == n.cfg.Self
	}
	return false
}

// Receive works on a packet from another node. What it holds is not kept.
func (n *Node) Receive(now time.Time, from resource.NodeID, p *Packet) {
	switch p.Type {
	case typeAsk:
		n.asked(now, from, p)
	case typeFound, typeNone, typeBusy:
		n.answered(now, from, p)
	}
}

func (n *Node) asked(now time.Time, from resource.NodeID, p *Packet) {
	if p.Fan == castFan {
		p.Lo, p.Hi, p.Fan = n.cfg.Self, n.cfg.Self, Flat
	}
	k := key{p.ID, p.Lo, p.Hi, from}
	if p.Lo == p.Hi {
		// Which most are: nothing of it is remembered.
	} else if j := n.jobs[k]; j != nil {
		if j.reply != nil { // it was lost
			n.send(from, *j.reply)
		} else {
			n.send(from, k.packet(Packet{Type: typeBusy, Fan: p.Fan}))
		}
		return
	}
	if a, ok := n.cfg.Local(p.Body); ok {
		n.send(from, k.packet(Packet{Type: typeFound, Fan: p.Fan, From: n.cfg.Self, Body: a}))
		return
	}
	if p.Lo == p.Hi {
		n.send(from, k.packet(Packet{Type: typeNone, Fan: p.Fan, Covered: 1, Sum: n.sum}))
		return
	}
	if len(n.jobs) >= maxJobs {
		return // who asks will ask again, or somebody else
	}
	j := &job{key: k, fan: int(p.Fan), question: slices.Clone(p.Body)}
	n.add(j)
	n.count(j, n.cfg.Self)
	n.cover(now, j, n.others(j))
	n.settle(now, j)
}

// answered works on an answer to something this node asked.
func (n *Node) answered(now time.Time, from resource.NodeID, p *Packet) {
	if s := n.own[p.ID.N]; s != nil && p.ID.Asker == n.cfg.Self {
		s.trace.heard(now, from, p)
		if p.Type == typeFound {
			n.over(s, Result{Found: true, From: p.From, Answer: slices.Clone(p.Body)})
			return
		}
		if i := slices.Index(s.first, from); i >= 0 && p.Type == typeNone {
			if s.first = slices.Delete(s.first, i, i+1); len(s.first) == 0 {
				n.askFirst(now, s)
			}
			return
		}
	}
	for _, j := range n.byID[p.ID] {
		q := j.parts[from]
		if q == nil || p.Lo != from || p.Hi != q.last() {
			continue
		}
		switch p.Type {
		case typeFound:
			n.finish(now, j, Packet{Type: typeFound, From: p.From, Body: slices.Clone(p.Body)})
			return
		case typeBusy:
			if q.busy++; q.busy < maxBusy {
				q.tries = 0
				n.due.set(&q.late, now.Add(n.cfg.Hop))
			}
			return
		}
		delete(j.parts, from)
		n.due.stop(&q.late)
		want := uint64(0)
		for _, m := range q.members {
			want ^= sum(m)
		}
		if int(p.Covered) == len(q.members) && p.Sum == want {
			j.covered += p.Covered
			j.sum ^= p.Sum
			j.failed = append(j.failed, p.Failed...)
		} else {
			// It sees other members than we do: who it has not seen we ask.
			n.count(j, from)
			n.cover(now, j, q.members[1:])
		}
		n.settle(now, j)
		return
	}
}

// settle ends j if nothing is left of it.
func (n *Node) settle(now time.Time, j *job) {
	if len(j.parts) == 0 && j.reply == nil {
		if len(j.failed) > maxFailed && j.own == nil {
			// More than a packet names: who asked has to find out himself. It
			// sees that only this node is covered.
			j.covered, j.sum, j.failed = 0, 0, nil
			n.count(j, n.cfg.Self)
		}
		n.finish(now, j, Packet{Type: typeNone, Covered: j.covered, Sum: j.sum, Failed: j.failed})
	}
}

// finish answers who asked for j.
func (n *Node) finish(now time.Time, j *job, p Packet) {
	if s := j.own; s != nil {
		n.over(s, Result{Found: p.Type == typeFound, Answer: p.Body, Covered: int(j.covered) - len(j.failed), Failed: j.failed})
		return
	}
	p.Fan = uint16(j.fan)
	p = j.packet(p)
	j.reply = &p
	n.rest(j)
	n.due.set(&j.forget, now.Add(keepDone))
	n.send(j.from, p)
}

// packet is p, about a part.
func (k *key) packet(p Packet) Packet {
	p.ID, p.Lo, p.Hi = k.id, k.lo, k.hi
	return p
}

// send lends Send a packet that is not made anew for each.
func (n *Node) send(to resource.NodeID, p Packet) {
	n.lent = p
	n.cfg.Send(to, &n.lent)
	n.lent = Packet{}
}

func (n *Node) over(s *own, r Result) {
	by := s.asker
	n.end(s)
	by.Over(r)
}

// Tick works on what was not answered in time.
func (n *Node) Tick(now time.Time) { n.due.ring(now) }

// Next is when Tick is due; zero if nothing is under way.
func (n *Node) Next() time.Time { return n.due.next() }

// Pending counts what the node has not forgotten: parts covered for others, or
// just done, and searches of its own.
func (n *Node) Pending() (parts, searches int) { return len(n.jobs), len(n.own) }

// again goes on with a part whose head has been silent: it is asked once more,
// for a packet was lost, and then the part is cut and others are asked, the
// head by itself. A head that is heard of is waited for.
func (n *Node) again(now time.Time, j *job, p *part) {
	delete(j.parts, p.head())
	j.trace().silent(p.head())
	switch cut := (n.cfg.Tries + 1) / 2; {
	case len(p.members) > 1 && p.tries < cut:
		n.ask(now, j, p)
	case len(p.members) > 1:
		n.ask(now, j, &part{members: p.members[:1:1], tries: p.tries})
		n.cover(now, j, p.members[1:])
	case p.tries < n.cfg.Tries:
		n.ask(now, j, p)
	default:
		n.count(j, p.head())
		j.failed = append(j.failed, p.head())
	}
	n.settle(now, j)
}
