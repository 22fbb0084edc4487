package search

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/rocl-go/rocl/resource"
)

// Defaults of Config.
const (
	DefaultFan   = 16
	Flat         = 1<<16 - 1 // the fan-out of a tree with one level, of up to so many nodes
	DefaultHop   = 25 * time.Millisecond
	DefaultTries = 3
	keepDone     = 5 * time.Second // how long a finished part is remembered, for those who ask again
	maxJobs      = 1 << 14         // parts under way for others; beyond it they are not taken
	maxFirst     = 8               // nodes asked because of their summaries before everybody
	maxFailed    = 128             // named in one packet
)

// Config is what a Node needs. Self, Members, Local and Send are required.
type Config struct {
	Self    resource.NodeID
	Members func() []resource.NodeID // all live nodes with Self, in order; not changed afterwards
	Local   func(question []byte) (answer []byte, ok bool)
	Send    func(to resource.NodeID, p *Packet)
	May     func(question []byte) []resource.NodeID // whose summary has it; may be nil
	Fan     int                                     // 0: DefaultFan
	Hop     time.Duration                           // what one hop there and back takes at most, mostly; 0: DefaultHop
	Tries   int                                     // of one node, before it counts as failed; 0: DefaultTries
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

// A Node is one member's part in all searches. Its methods are called by one
// goroutine at a time.
type Node struct {
	cfg  Config
	next uint64
	jobs map[key]*job
	byID map[ID][]*job // of these, those not done
	own  map[uint64]*own
}

// key names a part: who asks for it tells ours from theirs.
type key struct {
	id     ID
	lo, hi resource.NodeID
	from   resource.NodeID
}

// own is a search of this node.
type own struct {
	question []byte
	done     func(Result)
	trace    *Trace                   // nil: nobody wants to know
	first    map[resource.NodeID]bool // nodes asked because of their summaries, and not heard of
	tries    int
	at       time.Time
	cover    *job // the second half
}

// job is a part that this node covers, for another or for a search of its own.
type job struct {
	key
	fan      int
	question []byte
	parts    []part // still to be answered
	covered  uint32
	sum      uint64
	failed   []resource.NodeID
	reply    *Packet // once it is done
	until    time.Time
	own      *own
}

// part is a range of which a head was asked.
type part struct {
	members []resource.NodeID // as we know them
	tries   int
	at      time.Time // when patience ends
}

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
	return &Node{cfg: cfg, jobs: map[key]*job{}, byID: map[ID][]*job{}, own: map[uint64]*own{}}
}

func sum(n resource.NodeID) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	return xxhash.Sum64(b[:])
}

// Search asks all other nodes and calls done once. The caller has looked at
// what it holds itself. It returns a number for Cancel.
func (n *Node) Search(now time.Time, question []byte, done func(Result)) uint64 {
	return n.SearchTraced(now, question, nil, done)
}

// SearchTraced is Search that tells t, until done is called, what happens.
func (n *Node) SearchTraced(now time.Time, question []byte, t *Trace, done func(Result)) uint64 {
	n.next++
	s := &own{question: question, done: done, trace: t, first: map[resource.NodeID]bool{}}
	n.own[n.next] = s
	if n.cfg.May != nil && !t.everybody() {
		for _, m := range n.cfg.May(question) {
			if m != n.cfg.Self && len(s.first) < maxFirst {
				s.first[m] = true
			}
		}
	}
	n.askFirst(now, n.next, s)
	return n.next
}

// SearchOne asks one node alone: who holds the identifier it minted.
func (n *Node) SearchOne(now time.Time, who resource.NodeID, question []byte, done func(Result)) uint64 {
	return n.SearchOneTraced(now, who, question, nil, done)
}

// SearchOneTraced is SearchOne that tells t, until done is called, what happens.
func (n *Node) SearchOneTraced(now time.Time, who resource.NodeID, question []byte, t *Trace, done func(Result)) uint64 {
	n.next++
	s := &own{question: question, done: done, trace: t}
	n.own[n.next] = s
	j := &job{key: key{ID{n.cfg.Self, n.next}, who, who, n.cfg.Self}, fan: n.cfg.Fan, question: question, own: s}
	s.cover = j
	n.add(j)
	if _, known := slices.BinarySearch(n.cfg.Members(), who); known && who != n.cfg.Self {
		n.ask(now, j, part{members: []resource.NodeID{who}})
	} else {
		n.count(j, who)
		j.failed = append(j.failed, who)
	}
	id := n.next
	n.settle(now, j)
	return id
}

// Cancel forgets a search; done is not called.
func (n *Node) Cancel(id uint64) {
	if s := n.own[id]; s != nil {
		delete(n.own, id)
		if s.cover != nil {
			n.drop(s.cover)
		}
	}
}

func (n *Node) add(j *job) {
	n.jobs[j.key] = j
	n.byID[j.id] = append(n.byID[j.id], j)
}

// rest says that j asks nobody any more.
func (n *Node) rest(j *job) {
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
		n.rest(j)
	}
}

// askFirst asks those whose summaries have it, or everybody if there are none.
func (n *Node) askFirst(now time.Time, id uint64, s *own) {
	for m := range s.first { // it is not the first time
		s.trace.silent(m)
	}
	if len(s.first) > 0 && s.tries < n.cfg.Tries {
		s.tries++
		s.at = now.Add(n.cfg.Hop)
		for m := range s.first {
			s.trace.asked(now, BySummary, m)
			n.cfg.Send(m, &Packet{Type: typeAsk, Fan: uint16(n.cfg.Fan), ID: ID{n.cfg.Self, id}, Lo: m, Hi: m, Body: s.question})
		}
		return
	}
	s.first = nil
	all := n.cfg.Members()
	j := &job{key: key{ID{n.cfg.Self, id}, 0, 1<<64 - 1, n.cfg.Self}, fan: n.cfg.Fan, question: s.question, own: s}
	s.cover = j
	n.add(j)
	n.count(j, n.cfg.Self)
	n.cover(now, j, slices.DeleteFunc(slices.Clone(all), func(m resource.NodeID) bool { return m == n.cfg.Self }))
	n.settle(now, j)
}

func (n *Node) count(j *job, m resource.NodeID) { j.covered++; j.sum ^= sum(m) }

// cover cuts members into parts and asks their heads.
func (n *Node) cover(now time.Time, j *job, members []resource.NodeID) {
	for k := min(j.fan, len(members)); k > 0; k-- {
		size := (len(members) + k - 1) / k
		n.ask(now, j, part{members: members[:size:size]})
		members = members[size:]
	}
}

// ask asks the head of a part, whose place in j is taken by what is asked.
func (n *Node) ask(now time.Time, j *job, p part) {
	p.tries++
	p.at = now.Add(n.patience(len(p.members), j.fan))
	j.parts = append(j.parts, p)
	j.trace().asked(now, byCover(len(p.members)), p.members...)
	n.cfg.Send(p.members[0], &Packet{Type: typeAsk, Fan: uint16(j.fan), ID: j.id, Lo: p.members[0], Hi: p.members[len(p.members)-1], Body: j.question})
}

// patience is how long covering so many nodes may take: a hop for each level.
func (n *Node) patience(members, fan int) time.Duration {
	d := n.cfg.Hop
	for m := members - 1; m > 0; m /= fan {
		d += n.cfg.Hop
	}
	return d
}

// Receive works on a packet from another node. What it holds is not kept.
func (n *Node) Receive(now time.Time, from resource.NodeID, p *Packet) {
	switch p.Type {
	case typeAsk:
		n.asked(now, from, p)
	case typeFound, typeNone:
		n.answered(now, from, p)
	}
}

func (n *Node) asked(now time.Time, from resource.NodeID, p *Packet) {
	k := key{p.ID, p.Lo, p.Hi, from}
	if j := n.jobs[k]; j != nil {
		if j.reply != nil { // it was lost
			n.cfg.Send(from, j.reply)
		}
		return
	}
	if len(n.jobs) >= maxJobs || p.Fan < 2 {
		return // who asks will ask again, or somebody else
	}
	j := &job{key: k, fan: int(p.Fan), question: slices.Clone(p.Body)}
	n.add(j)
	if a, ok := n.cfg.Local(p.Body); ok {
		n.finish(now, j, &Packet{Type: typeFound, Body: a})
		return
	}
	n.count(j, n.cfg.Self)
	if p.Lo != p.Hi {
		all := n.cfg.Members()
		lo, _ := slices.BinarySearch(all, p.Lo)
		hi, ok := slices.BinarySearch(all, p.Hi)
		if ok {
			hi++
		}
		n.cover(now, j, slices.DeleteFunc(slices.Clone(all[lo:hi]), func(m resource.NodeID) bool { return m == n.cfg.Self || m == p.ID.Asker }))
	}
	n.settle(now, j)
}

// answered works on an answer to something this node asked.
func (n *Node) answered(now time.Time, from resource.NodeID, p *Packet) {
	if s := n.own[p.ID.N]; s != nil && p.ID.Asker == n.cfg.Self {
		s.trace.heard(now, from, p)
		if p.Type == typeFound {
			n.over(p.ID.N, s, Result{Found: true, From: from, Answer: slices.Clone(p.Body)})
			return
		}
		if s.first[from] {
			if delete(s.first, from); len(s.first) == 0 {
				n.askFirst(now, p.ID.N, s)
			}
			return
		}
	}
	for _, j := range n.byID[p.ID] {
		i := slices.IndexFunc(j.parts, func(q part) bool {
			return q.members[0] == from && p.Lo == from && p.Hi == q.members[len(q.members)-1]
		})
		if i < 0 {
			continue
		}
		if p.Type == typeFound {
			n.finish(now, j, &Packet{Type: typeFound, Body: slices.Clone(p.Body)})
			return
		}
		q := j.parts[i]
		j.parts = slices.Delete(j.parts, i, i+1)
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
			// More than a packet names: let who asked find out by himself.
			n.drop(j)
			return
		}
		n.finish(now, j, &Packet{Type: typeNone, Covered: j.covered, Sum: j.sum, Failed: j.failed})
	}
}

// finish answers who asked for j.
func (n *Node) finish(now time.Time, j *job, p *Packet) {
	if s := j.own; s != nil {
		n.over(j.id.N, s, Result{Found: p.Type == typeFound, Answer: p.Body, Covered: int(j.covered) - len(j.failed), Failed: j.failed})
		return
	}
	p.ID, p.Lo, p.Hi, p.Fan = j.id, j.lo, j.hi, uint16(j.fan)
	j.reply, j.parts, j.until = p, nil, now.Add(keepDone)
	n.rest(j)
	n.cfg.Send(j.from, p)
}

func (n *Node) over(id uint64, s *own, r Result) {
	delete(n.own, id)
	if s.cover != nil {
		n.drop(s.cover)
	}
	s.done(r)
}

// Tick works on what was not answered in time.
func (n *Node) Tick(now time.Time) {
	for id, s := range n.own {
		if s.cover == nil && !now.Before(s.at) {
			n.askFirst(now, id, s)
		}
	}
	for k, j := range n.jobs {
		if j.reply != nil {
			if !now.Before(j.until) {
				delete(n.jobs, k)
			}
			continue
		}
		var late []part
		j.parts = slices.DeleteFunc(j.parts, func(p part) bool {
			if now.Before(p.at) {
				return false
			}
			late = append(late, p)
			return true
		})
		for _, p := range late {
			n.again(now, j, p)
		}
		if len(late) > 0 {
			n.settle(now, j)
		}
	}
}

// again goes on with a part whose head did not answer in time: it asks once
// more, then cuts the part and asks others, the head by itself.
func (n *Node) again(now time.Time, j *job, p part) {
	j.trace().silent(p.members[0])
	switch {
	case len(p.members) > 1:
		n.ask(now, j, part{members: p.members[:1:1], tries: p.tries})
		n.cover(now, j, p.members[1:])
	case p.tries < n.cfg.Tries:
		n.ask(now, j, p)
	default:
		n.count(j, p.members[0])
		j.failed = append(j.failed, p.members[0])
	}
}

// Next is when Tick is due; zero if nothing is under way.
func (n *Node) Next() (at time.Time) {
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, s := range n.own {
		if s.cover == nil {
			sooner(s.at)
		}
	}
	for _, j := range n.jobs {
		if j.reply != nil {
			sooner(j.until)
			continue
		}
		for _, p := range j.parts {
			sooner(p.at)
		}
	}
	return at
}
