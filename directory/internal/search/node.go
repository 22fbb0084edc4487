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
	DefaultFan = 16
	Flat       = 1<<16 - 1 // the fan-out of a tree with one level, of up to so many nodes
	DefaultHop = 20 * time.Millisecond
	// MostBroadcast is the largest number of other members for which Auto casts, if it can. They
	// all answer at once (docs/SCALING.md gives the reason for the number).
	MostBroadcast = 128
	// MostUnicast is the largest number of other members for which Auto asks each. For more of them
	// a tree is faster if a hop is quick.
	MostUnicast = 64
	// DefaultTries is the default of Config.Tries. With it, if one packet of twenty is lost, one
	// living node of 100,000 is not reached.
	DefaultTries = 5
)

const (
	castFan = 1 // of a question that each receiving node answers for itself
	// keepDone is how long a finished part is remembered, in case it is asked for again.
	keepDone   = 5 * time.Second
	maxJobs    = 1 << 14              // parts under way for other nodes; further ones are not taken
	maxFirst   = 8                    // nodes asked because of their summaries before all nodes are asked
	firstTries = 2                    // times that these are asked
	silences   = 2                    // in a row, after which Config.Silent is called
	maxFailed  = 128                  // nodes named in one packet
	maxBusy    = 1 << 8               // times that a head may say of one part that it is busy
	pace       = 5 * time.Microsecond // time that sending one packet takes, if many are sent
)

// Config has the settings of a Node. Self, Members, Local and Send are required.
type Config struct {
	Self resource.NodeID
	// Members returns all live nodes with Self, in order. The result must not change afterwards.
	Members func() []resource.NodeID
	// Local returns this node's answer, which is valid until the next call.
	Local func(question []byte) (answer []byte, ok bool)
	// Send sends p, which is lent for the call.
	Send func(to resource.NodeID, p *Packet)
	// May returns a few nodes whose summary has what the question asks for. It may be nil.
	May func(search uint64, question []byte) []resource.NodeID
	// Silent is called when a node that was asked has not answered for the second time in a row. It
	// may be nil.
	Silent func(node resource.NodeID)
	// Cast sends p to all nodes. It is nil if the network cannot.
	Cast func(p *Packet)
	// MaxCast is how many bytes a cast carries; 0: any number. Larger questions go without a cast.
	MaxCast  int
	Strategy strategy.Strategy
	Fan      int // fan-out of trees; 0: DefaultFan
	// Hop is the longest time that one hop there and back mostly takes; 0: DefaultHop.
	Hop   time.Duration
	Now   func() time.Time // for a Search without a time; nil: time.Now
	Tries int              // of one node, before it counts as failed; 0: DefaultTries
}

// A Result tells how a search ended.
type Result struct {
	Found   bool
	From    resource.NodeID // the node that gave the answer
	Answer  []byte
	Covered int               // nodes that have no answer; if all nodes were asked, this one too
	Failed  []resource.NodeID // nodes that could not be asked: a no is definite if there are none
}

// Definite reports whether no node is left that could have an answer.
func (r *Result) Definite() bool { return r.Found || len(r.Failed) == 0 }

// An Asker is called, once, when its search has ended.
type Asker interface{ Ended(Result) }

// Func is a function that serves as an Asker.
type Func func(Result)

// Ended implements Asker.
func (f Func) Ended(r Result) { f(r) }

// A Node is one member's part in all searches. It has no lock: its methods must not be called
// concurrently.
type Node struct {
	cfg  Config
	next uint64
	jobs map[key]*job
	byID map[ID][]*job // those jobs that are not done
	own  map[uint64]*own
	due  Alarms
	sum  uint64 // checksum of Self
	lent Packet
	free []*own // to be used again
}

// mostSlow is log2 of how many times Hop a node gets for an answer in later rounds of SearchAmong.
const mostSlow = 3

// mostFree limits the ended searches that are kept to be used again: for a question that is
// answered in microseconds, garbage would be much of the cost.
const mostFree = 64

// A key names a part. from, the node that asked for the part, is Self for the part of a search of
// this node.
type key struct {
	id     ID
	lo, hi resource.NodeID
	from   resource.NodeID
}

// An own is a search of this node.
type own struct {
	id       uint64
	question []byte
	asker    Asker
	recorder *Recorder         // nil: not traced
	first    []resource.NodeID // nodes asked because of their summaries, and not heard of
	only     bool              // first has the one other node that exists
	one      [1]resource.NodeID
	tries    int
	late     Alarm
	cover    *job // the job that asks further nodes; nil before
}

// A job is a part that this node covers, for another node or for a search of its own.
type job struct {
	key
	fan      int
	question []byte
	parts    map[resource.NodeID]*part // still to be answered, by head
	covered  uint32
	sum      uint64
	failed   []resource.NodeID
	reply    *Packet // set when the job is done
	forget   Alarm   // removes the job after that
	own      *own
}

// A part is a range of nodes whose head was asked.
type part struct {
	members []resource.NodeID // as this node knows them
	tries   int               // since the head was last heard of
	busy    int               // times the head said that it is busy
	round   int               // of SearchAmong
	late    Alarm             // when the head is asked again
}

func (p *part) head() resource.NodeID { return p.members[0] }
func (p *part) last() resource.NodeID { return p.members[len(p.members)-1] }

// NewNode returns a node without searches.
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
	// A node that was started anew must not repeat its numbers: other nodes may still have the
	// answers to its last questions.
	return &Node{cfg: cfg, sum: sum(cfg.Self), next: rand.Uint64(), jobs: map[key]*job{}, byID: map[ID][]*job{}, own: map[uint64]*own{}}
}

// sum returns the checksum of one node.
func sum(n resource.NodeID) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	return xxhash.Sum64(b[:])
}

// Checksum returns a checksum of a list of nodes, which is never 0. It does not depend on the order
// of the list.
func Checksum(nodes []resource.NodeID) uint64 {
	var all uint64
	for _, n := range nodes {
		all ^= sum(n)
	}
	return max(all, 1)
}

// Search asks all other nodes, and calls by.Ended once when the search ends. The caller has looked
// before at what this node holds. Search returns a number for Cancel. If now is zero, the caller
// must call Begun when the datagrams of the search are sent.
func (n *Node) Search(now time.Time, question []byte, by Asker) uint64 {
	return n.SearchTraced(now, question, nil, by)
}

// Begun tells when a search without a time has begun. A clock and an alarm cost as much as a
// question: so they are read and set while the question is under way.
func (n *Node) Begun(now time.Time, id uint64) {
	if s := n.own[id]; s != nil && s.cover == nil && s.late.index == 0 {
		n.due.Set(&s.late, now.Add(n.cfg.Hop))
	}
}

// SearchTraced is Search that records in r, until the search ends, what happens. r may be nil.
func (n *Node) SearchTraced(now time.Time, question []byte, r *Recorder, by Asker) uint64 {
	s := n.begin(question, r, by)
	if all := n.cfg.Members(); len(all) == 2 { // there are no nodes to choose from
		s.one[0], s.only = all[0], true
		if all[0] == n.cfg.Self {
			s.one[0] = all[1]
		}
		s.first = s.one[:]
	} else if n.cfg.May != nil && !r.everybody() {
		for _, m := range n.cfg.May(s.id, question) {
			if m != n.cfg.Self && len(s.first) < maxFirst {
				s.first = append(s.first, m)
			}
		}
	}
	id := s.id // s may have ended in askFirst
	n.askFirst(now, s)
	return id
}

// begin returns a new search of this node, which asks no node yet.
func (n *Node) begin(question []byte, r *Recorder, by Asker) *own {
	var s *own
	if k := len(n.free); k > 0 {
		s, n.free = n.free[k-1], n.free[:k-1]
	} else {
		s = &own{}
		s.late.Ring = func(now time.Time) { n.askFirst(now, s) }
	}
	n.next++
	s.id, s.question, s.recorder, s.asker = n.next, question, r, by
	n.own[s.id] = s
	return s
}

// SearchAmong asks only the nodes in targets, each by itself: the node that minted an identifier,
// or nodes that did not answer before. A node that is named twice is asked once. Otherwise
// SearchAmong is like SearchTraced.
//
// round says how often these nodes were asked before in vain. With each round they get twice as
// long for an answer, up to eight times Hop. Otherwise nodes that have fallen behind would get more
// packets than they can read, and all answers would come too late for ever.
func (n *Node) SearchAmong(now time.Time, targets []resource.NodeID, round int, question []byte, r *Recorder, by Asker) uint64 {
	s := n.begin(question, r, by)
	id, j := s.id, n.ours(s)
	j.fan = Flat
	if len(targets) > 1 {
		targets = slices.Compact(slices.Sorted(slices.Values(targets)))
	}
	for _, m := range targets {
		if _, known := slices.BinarySearch(n.cfg.Members(), m); known && m != n.cfg.Self {
			n.ask(now, j, &part{members: []resource.NodeID{m}, round: round})
		} else {
			n.count(j, m)
			j.failed = append(j.failed, m)
		}
	}
	n.finishIfDone(now, j)
	return id
}

// Asker returns the Asker of the search with the number id, or nil if that has ended.
func (n *Node) Asker(id uint64) Asker {
	if s := n.own[id]; s != nil {
		return s.asker
	}
	return nil
}

// Cancel forgets a search. Its Asker is not called.
func (n *Node) Cancel(id uint64) {
	if s := n.own[id]; s != nil {
		n.end(s)
	}
}

// end forgets a search of this node. Another search may use s from then on.
func (n *Node) end(s *own) {
	delete(n.own, s.id)
	n.due.Stop(&s.late)
	if s.cover != nil {
		n.drop(s.cover)
	}
	if len(n.free) < mostFree {
		late := s.late
		*s = own{late: late}
		n.free = append(n.free, s)
	}
}

// ours begins the one job of a search of this node. Its range is all nodes.
func (n *Node) ours(s *own) *job {
	j := &job{key: key{ID{n.cfg.Self, s.id}, 0, 1<<64 - 1, n.cfg.Self}, fan: n.cfg.Fan, question: s.question, own: s}
	s.cover = j
	n.add(j)
	return j
}

// add takes up a job.
func (n *Node) add(j *job) {
	j.parts = map[resource.NodeID]*part{}
	j.forget.Ring = func(time.Time) { delete(n.jobs, j.key) }
	n.jobs[j.key] = j
	n.byID[j.id] = append(n.byID[j.id], j)
}

// stopParts ends the waiting of j for its parts.
func (n *Node) stopParts(j *job) {
	for _, p := range j.parts {
		n.due.Stop(&p.late)
	}
	j.parts = nil
	left := slices.DeleteFunc(n.byID[j.id], func(o *job) bool { return o == j })
	if len(left) == 0 {
		delete(n.byID, j.id)
	} else {
		n.byID[j.id] = left
	}
}

// drop forgets a job.
func (n *Node) drop(j *job) {
	if n.jobs[j.key] == j {
		delete(n.jobs, j.key)
		n.due.Stop(&j.forget)
		n.stopParts(j)
	}
}

// askFirst asks the nodes whose summaries have what is searched, or all nodes if there are none.
func (n *Node) askFirst(now time.Time, s *own) {
	if s.tries > 0 {
		for _, m := range s.first {
			n.silent(s.recorder, m, s.tries)
		}
	}
	tries, how := firstTries, HowSummary
	if s.only {
		tries, how = n.cfg.Tries, HowUnicast
	}
	if len(s.first) > 0 && s.tries < tries {
		s.tries++
		if !now.IsZero() { // otherwise Begun sets it
			n.due.Set(&s.late, now.Add(n.cfg.Hop))
		}
		for _, m := range s.first {
			s.recorder.asked(now, how, m)
			n.send(m, Packet{Type: typeAsk, Fan: uint16(n.cfg.Fan), ID: ID{n.cfg.Self, s.id}, Lo: m, Hi: m, Body: s.question})
		}
		return
	}
	if s.only {
		// The slice is cloned because s.first may be s.one.
		n.endWith(s, Result{Covered: 2 - len(s.first), Failed: slices.Clone(s.first)})
		return
	}
	if now.IsZero() {
		now = n.cfg.Now()
	}
	s.first = nil
	n.due.Stop(&s.late)
	j := n.ours(s)
	n.count(j, n.cfg.Self)
	others := n.remaining(j)
	switch n.choose(s.recorder.strategyOr(n.cfg.Strategy), len(others), len(s.question)) {
	case strategy.Broadcast:
		j.fan = Flat
		n.cast(now, j, others)
	case strategy.Unicast:
		j.fan = Flat
		n.cover(now, j, others)
	case strategy.Tree:
		n.cover(now, j, others)
	default:
		panic("search: unknown strategy") // NewNode and a Recorder get valid ones only
	}
	n.finishIfDone(now, j)
}

// silent notes that m was asked times times in a row and has not answered.
func (n *Node) silent(r *Recorder, m resource.NodeID, times int) {
	r.silent(m)
	if times == silences && n.cfg.Silent != nil {
		n.cfg.Silent(m)
	}
}

// choose returns the strategy by which a search asks. s is the configured one, others the number of
// other members, and bytes the size of the question.
func (n *Node) choose(s strategy.Strategy, others, bytes int) strategy.Strategy {
	canCast := n.cfg.Cast != nil && (n.cfg.MaxCast == 0 || head+bytes <= n.cfg.MaxCast)
	if s == strategy.Auto {
		switch {
		case canCast && others > 1 && others <= MostBroadcast:
			return strategy.Broadcast
		case others <= MostUnicast:
			return strategy.Unicast
		}
		return strategy.Tree
	}
	if s == strategy.Broadcast && (!canCast || others == 0) {
		return strategy.Unicast
	}
	return s
}

// count counts m as covered by j.
func (n *Node) count(j *job, m resource.NodeID) { j.covered++; j.sum ^= sum(m) }

// remaining returns the members of j's range without this node, and without the asker, which has
// looked already.
func (n *Node) remaining(j *job) []resource.NodeID {
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
		j.recorder().asked(now, HowBroadcast, members[i])
		n.await(now, j, &part{members: members[i : i+1 : i+1]})
	}
	n.cfg.Cast(&Packet{Type: typeAsk, Fan: castFan, ID: j.id, Hi: 1<<64 - 1, Body: j.question})
}

// await waits for the head of a part, until the alarm p.late.
func (n *Node) await(now time.Time, j *job, p *part) {
	p.tries++
	p.late.Ring = func(now time.Time) { n.again(now, j, p) }
	j.parts[p.head()] = p
	// A node that is asked later is sent to later, and answers later.
	n.due.Set(&p.late, now.Add(n.cfg.Hop<<min(p.round, mostSlow)+2*pace*time.Duration(len(j.parts))))
}

// ask asks the head of a part.
func (n *Node) ask(now time.Time, j *job, p *part) {
	n.await(now, j, p)
	j.recorder().asked(now, byCover(len(p.members)), p.members...)
	n.send(p.head(), Packet{Type: typeAsk, Fan: uint16(j.fan), ID: j.id, Lo: p.head(), Hi: p.last(), Body: j.question})
}

// Timeless reports whether Receive ignores the time for the packet p. Most packets are so, and a
// clock costs as much as a question.
func (n *Node) Timeless(p *Packet) bool {
	switch p.Type {
	case typeAsk:
		return p.Lo == p.Hi || p.Fan == castFan
	case typeFound:
		s := n.own[p.ID.N]
		return s != nil && s.recorder == nil && p.ID.Asker == n.cfg.Self
	}
	return false
}

// Receive handles a packet from another node. It keeps nothing of p.
func (n *Node) Receive(now time.Time, from resource.NodeID, p *Packet) {
	switch p.Type {
	case typeAsk:
		n.asked(now, from, p)
	case typeFound, typeNone, typeBusy:
		n.answered(now, from, p)
	}
}

// asked handles an ask of another node.
func (n *Node) asked(now time.Time, from resource.NodeID, p *Packet) {
	if p.Fan == castFan {
		p.Lo, p.Hi, p.Fan = n.cfg.Self, n.cfg.Self, Flat
	}
	k := key{p.ID, p.Lo, p.Hi, from}
	if p.Lo == p.Hi {
		// Most questions are like this. Nothing is remembered of them.
	} else if j := n.jobs[k]; j != nil {
		if j.reply != nil { // the reply was lost
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
		return // the asking node will ask again, or will ask another node
	}
	j := &job{key: k, fan: int(p.Fan), question: slices.Clone(p.Body)}
	n.add(j)
	n.count(j, n.cfg.Self)
	n.cover(now, j, n.remaining(j))
	n.finishIfDone(now, j)
}

// answered handles an answer to something that this node asked.
func (n *Node) answered(now time.Time, from resource.NodeID, p *Packet) {
	if s := n.own[p.ID.N]; s != nil && p.ID.Asker == n.cfg.Self {
		s.recorder.heard(now, from, p)
		if p.Type == typeFound {
			n.endWith(s, Result{Found: true, From: p.From, Answer: slices.Clone(p.Body)})
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
				n.due.Set(&q.late, now.Add(n.cfg.Hop))
			}
			return
		}
		delete(j.parts, from)
		n.due.Stop(&q.late)
		want := uint64(0)
		for _, m := range q.members {
			want ^= sum(m)
		}
		if int(p.Covered) == len(q.members) && p.Sum == want {
			j.covered += p.Covered
			j.sum ^= p.Sum
			j.failed = append(j.failed, p.Failed...)
		} else {
			// The head knows other members than this node. This node asks those that the head has
			// not covered.
			n.count(j, from)
			n.cover(now, j, q.members[1:])
		}
		n.finishIfDone(now, j)
		return
	}
}

// finishIfDone finishes j if no part of it is left.
func (n *Node) finishIfDone(now time.Time, j *job) {
	if len(j.parts) == 0 && j.reply == nil {
		if len(j.failed) > maxFailed && j.own == nil {
			// These are more than a packet names, so the asking node has to find out itself. It
			// sees that only this node is covered.
			j.covered, j.sum, j.failed = 0, 0, nil
			n.count(j, n.cfg.Self)
		}
		n.finish(now, j, Packet{Type: typeNone, Covered: j.covered, Sum: j.sum, Failed: j.failed})
	}
}

// finish sends p to the node that asked for j, or ends the search of this node that j belongs to.
func (n *Node) finish(now time.Time, j *job, p Packet) {
	if s := j.own; s != nil {
		n.endWith(s, Result{Found: p.Type == typeFound, Answer: p.Body, Covered: int(j.covered) - len(j.failed), Failed: j.failed})
		return
	}
	p.Fan = uint16(j.fan)
	p = j.packet(p)
	j.reply = &p
	n.stopParts(j)
	n.due.Set(&j.forget, now.Add(keepDone))
	n.send(j.from, p)
}

// packet returns p with the fields that name the part k.
func (k *key) packet(p Packet) Packet {
	p.ID, p.Lo, p.Hi = k.id, k.lo, k.hi
	return p
}

// send lends p to cfg.Send. All calls use one packet in n, so that none is allocated.
func (n *Node) send(to resource.NodeID, p Packet) {
	n.lent = p
	n.cfg.Send(to, &n.lent)
	n.lent = Packet{}
}

// endWith ends a search of this node, and then calls its Asker.
func (n *Node) endWith(s *own, r Result) {
	by := s.asker
	n.end(s)
	by.Ended(r)
}

// Tick handles what was not answered in time.
func (n *Node) Tick(now time.Time) {
	for x := n.due.Next(); x != nil && !now.Before(x.At); x = n.due.Next() {
		n.due.Stop(x)
		x.Ring(now)
	}
}

// Next returns when Tick is due, or zero if nothing is under way.
func (n *Node) Next() time.Time {
	if x := n.due.Next(); x != nil {
		return x.At
	}
	return time.Time{}
}

// Pending returns how many parts of other nodes, under way or just done, and how many own searches
// the node remembers.
func (n *Node) Pending() (parts, searches int) { return len(n.jobs), len(n.own) }

// again handles a part whose head has been silent. The head is asked once more, because a packet
// may have been lost. After some tries the part is cut: the head is asked for itself alone, and
// other nodes for the rest. While a head is heard of, it is waited for.
func (n *Node) again(now time.Time, j *job, p *part) {
	delete(j.parts, p.head())
	n.silent(j.recorder(), p.head(), p.tries)
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
	n.finishIfDone(now, j)
}
